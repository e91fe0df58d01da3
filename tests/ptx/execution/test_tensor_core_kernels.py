"""A whole tensor-core matmul, as NVRTC compiles it: `cp.async` stages, swizzled rows, `ldmatrix`, `mma.sync`."""

import numpy as np
import pytest

from kernrec.ptx import Counts, EmulationError, KernelLaunch, emulate
from tests.helpers.narrow_floats import bf16_bits, bf16_values
from tests.helpers.ptx_text import cuda
from tests.helpers.work import calls

SOURCE = """
#define STAGES 3
#define BK 32
typedef unsigned u32;
__device__ __forceinline__ void copy(u32 to, const void* from, bool in) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(in ? 16 : 0) : "memory");
}
__device__ __forceinline__ void load(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// C = A B of 128 x 128 tiles, a warp 64 x 32; a row of A in a stage is 64 bytes, of B 256, 16-byte pieces swizzled.
extern "C" __global__ void __launch_bounds__(256)
matmul(const unsigned short* a, const unsigned short* b, float* c, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned short memory[];
    const u32 base = (u32)__cvta_generic_to_shared(memory), a_bytes = 128 * BK * 2, stage = a_bytes + BK * 256;
    const int t = threadIdx.x, lane = t % 32, row = t / 128 * 64, column = t / 32 % 4 * 32;
    const int row0 = blockIdx.y * 128, column0 = blockIdx.x * 128, tiles = (k + BK - 1) / BK;
    auto fetch = [&](int tile) {
        const u32 to = base + tile % STAGES * stage;
        for (int i = t; i < 128 * 4; i += 256) {
            int r = i / 4, p = i % 4, x = tile * BK + p * 8;
            bool in = row0 + r < m && x < k;
            copy(to + r * 64 + (p ^ r / 2 % 4) * 16, in ? a + (row0 + r) * k + x : a, in);
        }
        for (int i = t; i < BK * 16; i += 256) {
            int r = i / 16, p = i % 16, x = column0 + p * 8;
            bool in = tile * BK + r < k && x < n;
            copy(to + a_bytes + r * 256 + (p ^ r % 8) * 16, in ? b + (tile * BK + r) * n + x : b, in);
        }
    };
    float sum[4][4][4] = {};
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < tiles) fetch(s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int tile = 0; tile < tiles; tile++) {
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2) : "memory");
        __syncthreads();
        if (tile + STAGES - 1 < tiles) fetch(tile + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const u32 from = base + tile % STAGES * stage;
        #pragma unroll
        for (int x = 0; x < BK / 16; x++) {
            u32 left[4][4], right[2][4];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = row + i * 16 + lane % 16, p = x * 2 + lane / 16;
                load(left[i], from + r * 64 + (p ^ r / 2 % 4) * 16);
            }
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                int r = x * 16 + lane % 16, p = (column + j * 16) / 8 + lane / 16;
                load_transposed(right[j], from + a_bytes + r * 256 + (p ^ r % 8) * 16);
            }
            #pragma unroll
            for (int i = 0; i < 4; i++)
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    const u32* pair = &right[j / 2][j % 2 * 2];
                    multiply(sum[i][j], left[i], pair[0], pair[1]);
                }
        }
    }
    #pragma unroll
    for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++)
            for (int h = 0; h < 2; h++) {
                int r = row0 + row + i * 16 + lane / 4 + h * 8, x = column0 + column + j * 8 + lane % 4 * 2;
                if (r < m && x < n) *(float2*)&c[r * n + x] = make_float2(sum[i][j][h * 2], sum[i][j][h * 2 + 1]);
            }
}
"""


def multiply(m: int, n: int, k: int, source: str = SOURCE, **options: bool) -> tuple[float, Counts]:
    """The largest error relative to the bound of an f32 sum of k products, and the counts."""
    rng = np.random.default_rng(m + n + k)
    a, b = (bf16_bits(rng.standard_normal(shape).astype(np.float32)) for shape in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    a.flags.writeable = b.flags.writeable = False
    program = cuda(source, "sm_80")
    arguments = ["a", "b", "c", np.int32(m), np.int32(n), np.int32(k)]
    grid = (-(-n // 128), -(-m // 128))
    counts = emulate(
        program,
        KernelLaunch("matmul", grid, (256,), arguments, {"a": a, "b": b, "c": c}, shared_bytes=3 * 16384),
        **options,
    )
    x, y = bf16_values(a).astype(np.float64), bf16_values(b).astype(np.float64)
    bound = k * 2.0**-24 * (abs(x) @ abs(y))
    return float((abs(c - x @ y) / bound).max()), counts


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 96), (8, 8, 8), (130, 136, 72), (1, 256, 200)])
def test_a_tensor_core_matmul_matches_numpy(m, n, k):
    error, counts = multiply(m, n, k, check_races=True)
    assert error < 1
    blocks, tiles = -(-m // 128) * -(-n // 128), -(-k // 32)
    assert counts["mma.bf16"] == blocks * tiles * 2 * 128 * 128 * 32
    assert counts["issue.mma"] == blocks * tiles * 8 * 2 * 16
    assert counts["barriers"] == blocks * tiles
    # A warp loads four A and two B fragments of four matrices for every 16 columns; the swizzle leaves no conflict.
    assert counts["shared.load_wavefronts"] == counts["shared.load_ideal"] == blocks * tiles * 8 * 2 * 6 * 4
    assert counts["shared.store_wavefronts"] == counts["shared.store_ideal"]


@pytest.mark.parametrize("mistake", [
    ("load_transposed(right", "load(right"),
    (
        "p ^ r % 8) * 16);\n            }\n            #pragma",
        "p ^ r % 4) * 16);\n            }\n            #pragma",
    ),
    ("STAGES - 2", "STAGES - 1"),
    ("lane % 4 * 2;", "lane % 4 * 2 ^ 2;"),
])  # fmt: skip
def test_a_mistake_in_a_layout_or_a_wait_shows(mistake):
    assert SOURCE.count(mistake[0]) == 1
    error, _ = multiply(128, 128, 96, SOURCE.replace(*mistake))
    assert not error < 1


def test_a_forgotten_barrier_is_a_race():
    with pytest.raises(EmulationError, match="race"):
        multiply(128, 128, 128, SOURCE.replace("        __syncthreads();\n", ""), check_races=True)


def test_the_emulator_handles_the_threads_of_all_blocks_as_arrays():
    """A step of 32 along k is some 1,300 calls, whether one block takes it or two; that is a few milliseconds."""

    def calls_for(m: int, k: int) -> int:
        return calls(lambda: multiply(m, 128, k))

    for m in (128, 256):  # what the compiler answers and how blocks are executed is kept
        calls_for(m, 96)
    once = calls_for(128, 96)
    assert (calls_for(128, 192) - once) / 3 < 2000
    assert calls_for(256, 96) - once < 100
