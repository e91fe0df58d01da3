"""Test where `ldmatrix`, `stmatrix` and `movmatrix` put the rows of matrices, and the cost of the moves."""

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate
from tests.helpers.ptx_text import LANE_POINTERS, cuda, run

MOVE = """
extern "C" __global__ void k(const unsigned short* x, unsigned* out, const unsigned* at) {{
    __shared__ __align__(16) unsigned short s[2048];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) s[i] = x[blockIdx.x * 2048 + i];
    __syncthreads();
    unsigned a = (unsigned)__cvta_generic_to_shared(s) + at[threadIdx.x], r[{n}];
    asm volatile("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {names}, [%{n}];" : {outputs} : "r"(a) : "memory");
    for (int i = 0; i < {n}; i++) out[(blockIdx.x * blockDim.x + threadIdx.x) * {n} + i] = r[i];
}}
"""


def load_matrices(number: int, trans: bool, rows: np.ndarray, arch: str) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Load matrices in three blocks of two warps from byte offsets per thread; return data, registers and counts."""
    x = np.arange(3 * 2048, dtype=np.uint16)
    out = np.zeros((3, 2, 32, number), np.uint32)
    source = MOVE.format(
        n=number,
        trans=".trans" if trans else "",
        names="{" + ", ".join(f"%{i}" for i in range(number)) + "}",
        outputs=", ".join(f'"=r"(r[{i}])' for i in range(number)),
    )
    buffers = {"x": x, "out": out, "at": rows.astype(np.uint32)}
    counts = emulate(cuda(source, arch), KernelLaunch("k", (3,), (64,), list(buffers), buffers))
    return x.reshape(3, 2048), out, counts


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_loaded_matrices_equal_direct_loads(number, trans, arch):
    rng = np.random.default_rng(number)
    # Rows have random offsets; unused lanes have addresses out of bounds.
    starts = rng.permutation(256)[:64].reshape(2, 32) * 16
    starts[:, 8 * number :] = 1 << 20
    x, out, _ = load_matrices(number, trans, starts.reshape(-1), arch)
    for warp in range(2):
        for matrix in range(number):
            rows = starts[warp, 8 * matrix : 8 * matrix + 8] // 2
            elements = x[:, rows[:, None] + np.arange(8)]
            if trans:
                elements = elements.transpose(0, 2, 1)
            want = np.ascontiguousarray(elements).reshape(3, 64).view(np.uint32)
            np.testing.assert_array_equal(out[:, warp, :, matrix], want)


@pytest.mark.parametrize(("place", "per_matrix"), [
    (lambda row: row * 16, 1),  # eight adjacent rows use all banks once
    (lambda row: row * 128, 8),  # all rows use the same four banks
    (lambda row: row * 64, 4),
    (lambda row: row * 144, 1),  # padded by 16 bytes
    (lambda row: row * 128 + (row ^ 5) % 8 * 16, 1),  # swizzled
    (lambda row: row * 64 + ((row >> 1) & 3) * 16, 1),
    (lambda row: row * 0, 1),  # all lanes load the same row
])  # fmt: skip
def test_matrix_load_takes_the_wavefronts_of_its_busiest_bank(place, per_matrix):
    for number in (1, 2, 4):
        starts = np.array([place(lane % 8) + lane // 8 % 4 * 1024 for lane in range(64)])
        _, _, counts = load_matrices(number, False, starts, "sm_80")
        warps = 6
        assert counts["issue.ld_shared"] == warps
        assert counts["shared.load_ideal"] == warps * number
        assert counts["shared.load_wavefronts"] == warps * number * per_matrix


def test_matrix_load_from_outside_is_an_error():
    with pytest.raises(EmulationError, match=r"thread \(5, 0, 0\) .*ldmatrix|ldmatrix.*thread \(5, 0, 0\)"):
        load_matrices(1, False, np.where(np.arange(64) == 5, 4096, 0), "sm_80")
    with pytest.raises(EmulationError, match="not a multiple of 16"):
        load_matrices(1, False, np.full(64, 8), "sm_80")


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_matrix_store_is_the_inverse_of_the_load(number, trans):
    x = np.random.default_rng(0).integers(0, 1 << 32, (number, 64)).astype(np.uint32)
    out = np.zeros_like(x)
    registers = "{" + ", ".join(f"%r{i}" for i in range(1, number + 1)) + "}"
    back = "{" + ", ".join(f"%r{i}" for i in range(11, number + 11)) + "}"
    body = f"""{LANE_POINTERS} shl.b32 %r40, %r50, 4; mad.lo.u32 %r41, %r50, 16, 0;
      {"".join(f"ld.global.b32 %r{1 + i}, [%rd0+{256 * i}];" for i in range(number))}
      stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 [%r40], {registers}; bar.sync 0;
      ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {back}, [%r41];
      {"".join(f"st.global.b32 [%rd1+{256 * i}], %r{11 + i};" for i in range(number))}"""
    counts = run(body, "u64 x, u64 o", ["x", "o"], {"x": x, "o": out}, block=(64,), shared_bytes=1024)
    np.testing.assert_array_equal(out, x)
    assert counts["shared.store_wavefronts"] == counts["shared.load_wavefronts"] == 2 * number
    assert (counts["issue.st_shared"], counts["issue.ld_shared"]) == (2, 2)


def test_matrix_row_accesses_are_checked_for_races():
    body = """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; shl.b32 %r2, %r2, 2; setp.lt.u32 %p1, %r1, 32;
      @%p1 st.shared.u32 [%r2], %r1; SYNC and.b32 %r3, %r1, 7; shl.b32 %r3, %r3, 4;
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];"""
    options = {"block": (64,), "shared_bytes": 128, "check_races": True}
    run(body.replace("SYNC", "bar.sync 0;"), **options)  # type: ignore[arg-type]
    with pytest.raises(EmulationError, match=r"ldmatrix.*race: warp 1 .*reads byte 0 .*warp 0 wrote"):
        run(body.replace("SYNC", ""), **options)  # type: ignore[arg-type]
