"""Test bulk copies of byte rows and tensor boxes, tensor maps written by kernels, and the `mbarrier` they use."""

from typing import Any

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, TensorMap, emulate
from tests.helpers.paths import beside
from tests.helpers.ptx_text import cuda, run

HEAD = beside(__file__, "bulk_copies_head.cu")
ADD_ONE = HEAD + beside(__file__, "add_one.cu")


def add_one(
    source: str, corner: tuple[int, int], swizzle: int, kind: str = "u16"
) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Add one to a box of a matrix by bulk copies. Return the matrix, the stored result and the counts."""
    matrix, out = np.arange(40 * 104, dtype=np.uint16).reshape(40, 104), np.zeros((40, 104), np.uint16)
    maps = [TensorMap(name, kind, (104, 40), (208,), (swizzle // 2 or 64, 16), swizzle) for name in ("x", "o")]
    bytes_ = (swizzle // 2 or 64) * 16 * 2
    launch = KernelLaunch("k", (1,), (32,), [*maps, *corner, bytes_], {"x": matrix, "o": out}, 4096)
    return matrix, out, emulate(cuda(source, "sm_90a"), launch, check_races=True)


COPY = ADD_ONE.replace("STORE", "cp.async.bulk").replace("REDUCE", "")


@pytest.mark.parametrize("corner", [(0, 0), (8, 3), (-4, -2), (64, 30), (200, 0)])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_box_is_copied_only_inside_the_tensor(swizzle, corner):
    matrix, out, counts = add_one(COPY, corner, swizzle)
    x, y = corner
    box = np.s_[max(y, 0) : y + 16, max(x, 0) : max(x + (swizzle // 2 or 64), 0)]
    wanted = np.zeros_like(matrix)
    wanted[box] = matrix[box] + 1
    np.testing.assert_array_equal(out, wanted)
    assert counts["global.x.read_bytes"] == counts["global.o.write_bytes"] == wanted[box].size * 2
    assert counts["bulk.shared_write_bytes"] == 16 * (swizzle or 128)


def test_box_is_added_to_existing_values():
    source = ADD_ONE.replace("STORE", "cp.reduce.async.bulk").replace("REDUCE", "add.tile.")
    matrix, out, counts = add_one(source, (16, 8), 128, "f16")
    np.testing.assert_array_equal(out[8:24, 16:80], matrix[8:24, 16:80] + 1)
    assert counts["global.o.atomic_bytes"] == 2048
    with pytest.raises(EmulationError, match=r"combines elements of \.u16, for which there is no reduction"):
        add_one(source, (16, 8), 128)


def rows(bytes_: int = 256, x: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copy a row through shared memory and add it to the output. Return the row and the output before and after."""
    rng = np.random.default_rng(0)
    values, out = rng.integers(-99, 99, x, np.int32), rng.integers(-99, 99, 64, np.int32)
    before = out.copy()
    emulate(
        cuda(HEAD + beside(__file__, "bulk_copies_row.cu"), "sm_90a"),
        KernelLaunch("k", (1,), (32,), ["x", "o", np.int32(bytes_)], {"x": values, "o": out}),
    )
    return values, before, out


def test_row_is_copied_to_shared_memory_and_reduced_into_global_memory():
    values, before, out = rows()
    np.testing.assert_array_equal(out, np.maximum(values, before))


def test_bulk_copy_of_a_wrong_size_is_an_error(refuses):
    refuses(lambda bytes_, x: rows(bytes_, x), [(252, 64), (256, 60), (240, 64), (272, 68)])


def test_unusable_tensor_map_is_refused_when_built(refuses):
    def refused(changed: dict[str, Any]) -> None:
        fields = {"address": "x", "type": "u16", "extents": (104, 40), "strides": (208,), "box": (64, 16), **changed}
        TensorMap(**fields).encode(1 << 40)

    refuses(refused, [
        {"strides": (200,)}, {"box": (300, 1)}, {"box": (4, 1)}, {"box": (128, 1), "swizzle": 128}, {"swizzle": 96},
        {"type": "f8"}, {"interleave": 16},
    ])  # fmt: skip


def test_tensor_map_moved_to_the_stack_is_refused():
    """Taking the address of a parameter that is not __grid_constant__ copies the parameter to the stack."""
    with pytest.raises(EmulationError, match=r"a tensor map in local memory.*__grid_constant__"):
        add_one(COPY.replace("const __grid_constant__ Map in,", "Map in,"), (0, 0), 128)


def test_bytes_that_are_not_a_tensor_map_are_refused():
    arguments = [bytes(128), bytes(128), 0, 0, 2048]
    with pytest.raises(EmulationError, match="not a tensor map"):
        emulate(cuda(COPY, "sm_90a"), KernelLaunch("k", (1,), (32,), arguments, {}, 4096))


def test_bulk_copy_gathers_four_separate_rows():
    source = HEAD + beside(__file__, "gather_rows.cu")
    x, out = np.arange(20 * 64, dtype=np.int16).reshape(20, 64) + 1, np.zeros((4, 64), np.int16)
    rows_map = TensorMap("x", "u16", (64, 20), (128,), (64, 1))
    emulate(cuda(source, "sm_100a"), KernelLaunch("k", (1,), (32,), [rows_map, "o"], {"x": x, "o": out}))
    np.testing.assert_array_equal(out, [x[9], x[2], np.zeros(64), x[2]])


SOURCE = beside(__file__, "made_tensor_map.cu")


def load_by_made_map(old: str = "", new: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run the kernel with a part of it replaced. Return the matrix, the tensor map and the loaded tile."""
    assert old in SOURCE
    x, made = np.arange(24 * 40, dtype=np.int16).reshape(24, 40), np.zeros(128, np.uint8)
    out = np.zeros((16, 4, 8), np.int16)
    launch = KernelLaunch("k", (1,), (32,), ["x", "m", "o", np.int32(16)], {"x": x, "m": made, "o": out})
    emulate(cuda(SOURCE.replace(old, new), "sm_90a"), launch, check_races=True)
    return x, made, out


def test_kernel_can_build_and_use_a_tensor_map():
    x, made, out = load_by_made_map()
    assert made.tobytes() == TensorMap("x", "u16", (40, 24), (80,), (32, 16), 64).encode(1 << 40)
    # A 64-byte swizzle permutes 16-byte pieces. The permutation changes every two rows.
    row, piece = np.arange(16)[:, None], np.arange(4)
    tile = np.empty_like(out)
    tile[row, piece] = out[row, piece ^ row // 2 % 4]
    np.testing.assert_array_equal(tile.reshape(16, 32)[:8], x[16:, :32])
    assert not tile[8:].any()


def test_wrong_or_unfenced_tensor_map_is_an_error(refuses):
    refuses(lambda old, new: load_by_made_map(old, new), [
        ("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;", ""),
        ("rank.shared::cta.b1024.b32 [%0], 1;", "rank.shared::cta.b1024.b32 [%0], 2;"),
        ("box_dim.shared::cta.b1024.b32 [%0], 1,", "box_dim.shared::cta.b1024.b32 [%0], 0,"),
    ])  # fmt: skip


STEPS = 5
PIPE = f"""
    .shared .align 8 .b64 bar[2]; .shared .align 4 .b32 s[32];
    mov.u32 %r0, %tid.x; mov.u32 %r1, bar; mov.u32 %r2, s; ld.param.u64 %rd0, [o];
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r1+8], 32;
    bar.sync 0;
    mov.u32 %r9, 0; mov.u32 %r10, 0; mov.u32 %r11, 1;
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra CONSUMER;
PRODUCER:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], %r11;
    @!%p2 bra PRODUCER;
    shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2;
    mad.lo.u32 %r4, %r9, 100, %r0;
    st.shared.u32 [%r3], %r4;
    mbarrier.arrive.shared::cta.b64 %rd5, [%r1];
    xor.b32 %r11, %r11, 1;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p3, %r9, {STEPS};
    @%p3 bra PRODUCER;
    bra END;
CONSUMER:
    mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r1], %r10;
    @!%p2 bra CONSUMER;
    sub.u32 %r8, %r0, 32; xor.b32 %r5, %r8, 1; shl.b32 %r5, %r5, 2; add.u32 %r6, %r5, %r2;
    ld.shared.u32 %r7, [%r6];
    mad.lo.u32 %r8, %r9, 32, %r8; mul.wide.u32 %rd1, %r8, 4; add.u64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1], %r7;
    mbarrier.arrive.release.cta.shared::cta.b64 _, [%r1+8];
    xor.b32 %r10, %r10, 1;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p3, %r9, {STEPS};
    @%p3 bra CONSUMER;
END:
"""


def pipe(old: str = "", new: str = "") -> tuple[np.ndarray, Counts]:
    assert old in PIPE
    out = np.zeros((STEPS, 32), np.uint32)
    counts = run(PIPE.replace(old, new), "u64 o", ["o"], {"o": out}, block=(64,), check_races=True)
    return out, counts


def test_producer_and_consumer_stay_synchronized():
    out, counts = pipe()
    np.testing.assert_array_equal(out, np.arange(STEPS)[:, None] * 100 + (np.arange(32) ^ 1))
    assert counts["mbarrier.waits"] >= 2 * STEPS


def test_broken_pipeline_ends_in_one_clear_error(refuses):
    refuses(lambda old, new: pipe(old, new), [
        ("[%r1+8], 32", "[%r1+8], 33"), ("xor.b32 %r10, %r10, 1;", ""),
        ("@%p0 mbarrier.init.shared::cta.b64 [%r1], 32;", ""), ("[%r1], 32", "[%r1], 0"),
        ("arrive.shared::cta.b64 %rd5, [%r1]", "arrive.shared::cta.b64 %rd5, [%r1+4]"),
        ("_, [%r1+8];", "_, [%r1+8], 33;"),
    ])  # fmt: skip


def test_invalidated_mbarrier_can_be_initialized_again():
    start, end = "mbarrier.init.shared.b64 [%r1], 1;", "mbarrier.inval.shared.b64 [%r1];"
    head = ".shared .align 8 .b64 bar; mov.u32 %r1, bar;"
    run(f"{head} {start} {end} {start}", block=(1,))
    run(f"{head} {start} st.shared.b64 [%r1], 0; {start}", block=(1,))  # the barrier no longer exists
    with pytest.raises(EmulationError, match=r"byte 0 of shared memory, which is initialized already, with no .*inval"):
        run(f"{head} {start} {start}", block=(1,))


def test_mbarrier_can_be_tested_before_its_phase_completes():
    body = beside(__file__, "barrier_tested_early.ptx")
    out = np.full(3, 9, np.uint32)
    run(body, "u64 o", ["o"], {"o": out}, block=(1,))
    assert out.tolist() == [0, 1, 1]


def test_copies_arrive_at_a_barrier_when_done():
    body = beside(__file__, "copies_arrive.ptx")
    x, out = np.arange(64, dtype=np.uint64).reshape(32, 2), np.zeros((32, 2), np.uint64)
    run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out}, check_races=True)
    np.testing.assert_array_equal(out, x[::-1])
