"""Test bulk copies of byte rows and tensor boxes among global memory, shared memory and the cluster."""

from typing import Any

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, TensorMap, emulate
from tests.helpers.ptx_text import cuda

HEAD = r"""
struct alignas(64) Map { char bytes[128]; };
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(void* bar, int n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(n));
}
__device__ void expect(void* bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void wait(void* bar, int parity) {
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra W; }"
                 :: "r"(at(bar)), "r"(parity) : "memory");
}
"""
ADD_ONE = (
    HEAD
    + r"""
extern "C" __global__ void k(const __grid_constant__ Map in, const __grid_constant__ Map out, int x, int y, int bytes) {
    extern __shared__ __align__(1024) unsigned short tile[];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) {
        start(&bar, 1);
        asm volatile("fence.mbarrier_init.release.cluster;");
        expect(&bar, bytes);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
                     " [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(at(tile)), "l"(&in), "r"(x), "r"(y), "r"(at(&bar)), "l"(0x1000000000000000l) : "memory");
    }
    __syncthreads();
    wait(&bar, 0);
    for (int i = threadIdx.x; i < bytes / 2; i += 32) tile[i] += 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("STORE.tensor.2d.global.shared::cta.REDUCEbulk_group [%0, {%1, %2}], [%3];"
                     :: "l"(&out), "r"(x), "r"(y), "r"(at(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}
"""
)


def add_one(
    source: str, corner: tuple[int, int], swizzle: int, kind: str = "u16"
) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Add one to a box of a matrix by bulk copies; return the matrix, the stored result and the counts."""
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


ROW = (
    HEAD
    + r"""
extern "C" __global__ void k(const int* x, int* o, int bytes) {
    __shared__ __align__(128) int s[64], t[64];
    __shared__ unsigned long long bar;
    if (threadIdx.x == 0) start(&bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(&bar, 256);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at(s)), "l"(x), "r"(bytes), "r"(at(&bar)) : "memory");
        wait(&bar, 0);
        expect(&bar, 256);
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at(t)), "r"(at(s)), "r"(256), "r"(at(&bar)) : "memory");
        wait(&bar, 1);
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%0], [%1], %2;"
                     :: "l"(o), "r"(at(t)), "r"(256) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""
)


def rows(bytes_: int = 256, x: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copy a row through shared memory and add it to the output; return the row and the output before and after."""
    rng = np.random.default_rng(0)
    values, out = rng.integers(-99, 99, x, np.int32), rng.integers(-99, 99, 64, np.int32)
    before = out.copy()
    emulate(cuda(ROW, "sm_90a"), KernelLaunch("k", (1,), (32,), ["x", "o", np.int32(bytes_)], {"x": values, "o": out}))
    return values, before, out


def test_row_is_copied_to_shared_memory_and_reduced_into_global_memory():
    values, before, out = rows()
    np.testing.assert_array_equal(out, np.maximum(values, before))


def test_wrong_size_is_an_error(refuses):
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
    with pytest.raises(EmulationError, match="no tensor map"):
        emulate(cuda(COPY, "sm_90a"), KernelLaunch("k", (1,), (32,), arguments, {}, 4096))


def test_four_separate_rows_are_gathered():
    source = (
        HEAD
        + r"""
    extern "C" __global__ void k(const __grid_constant__ Map in, short* out) {
        __shared__ __align__(1024) short tile[4 * 64];
        __shared__ unsigned long long bar;
        if (threadIdx.x == 0) {
            start(&bar, 1);
            expect(&bar, 512);
            asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
                         " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
                         :: "r"(at(tile)), "l"(&in), "r"(0), "r"(9), "r"(2), "r"(40), "r"(2), "r"(at(&bar)) : "memory");
        }
        __syncwarp();
        wait(&bar, 0);
        for (int i = threadIdx.x; i < 256; i += 32) out[i] = tile[i];
    }
    """
    )
    x, out = np.arange(20 * 64, dtype=np.int16).reshape(20, 64) + 1, np.zeros((4, 64), np.int16)
    rows_map = TensorMap("x", "u16", (64, 20), (128,), (64, 1))
    emulate(cuda(source, "sm_100a"), KernelLaunch("k", (1,), (32,), [rows_map, "o"], {"x": x, "o": out}))
    np.testing.assert_array_equal(out, [x[9], x[2], np.zeros(64), x[2]])
