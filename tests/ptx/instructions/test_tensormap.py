"""Test tensor maps that a kernel writes field by field, which copies may use only after a fence."""

import numpy as np

from kernrec.ptx import KernelLaunch, TensorMap, emulate
from tests.helpers.ptx_text import cuda

SOURCE = r"""
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define SET(field, ...) asm volatile("tensormap.replace.tile." field :: "r"(at(map)), __VA_ARGS__ : "memory")
extern "C" __global__ void k(const short* x, char* made, short* out, int row) {
    __shared__ __align__(1024) short tile[16 * 32];
    __shared__ __align__(128) int map[32];
    __shared__ unsigned long long bar;
    map[threadIdx.x] = 0;
    __syncwarp();
    if (threadIdx.x == 0) {
        SET("global_address.shared::cta.b1024.b64 [%0], %1;", "l"(x));
        SET("rank.shared::cta.b1024.b32 [%0], 1;", "n"(0));
        SET("box_dim.shared::cta.b1024.b32 [%0], 0, %1;", "r"(32));
        SET("box_dim.shared::cta.b1024.b32 [%0], 1, %1;", "r"(16));
        SET("global_dim.shared::cta.b1024.b32 [%0], 0, %1;", "r"(40));
        SET("global_dim.shared::cta.b1024.b32 [%0], 1, %1;", "r"(24));
        SET("global_stride.shared::cta.b1024.b64 [%0], 0, %1;", "l"(80l));
        SET("element_stride.shared::cta.b1024.b32 [%0], 0, %1;", "r"(1));
        SET("element_stride.shared::cta.b1024.b32 [%0], 1, %1;", "r"(1));
        SET("elemtype.shared::cta.b1024.b32 [%0], 1;", "n"(0));
        SET("interleave_layout.shared::cta.b1024.b32 [%0], 0;", "n"(0));
        SET("swizzle_mode.shared::cta.b1024.b32 [%0], 2;", "n"(0));
        SET("fill_mode.shared::cta.b1024.b32 [%0], 0;", "n"(0));
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                 " [%0], [%1], 128;"
                 :: "l"(made), "r"(at(map)) : "memory");
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(made) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&bar)));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(at(&bar)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3}], [%4];"
                     :: "r"(at(tile)), "l"(made), "r"(0), "r"(row), "r"(at(&bar)) : "memory");
    }
    __syncwarp();
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }"
                 :: "r"(at(&bar)) : "memory");
    for (int i = threadIdx.x; i < 512; i += 32) out[i] = tile[i];
}
"""


def run(old: str = "", new: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run the kernel with a part of it replaced; return the matrix, the tensor map and the loaded tile."""
    assert old in SOURCE
    x, made = np.arange(24 * 40, dtype=np.int16).reshape(24, 40), np.zeros(128, np.uint8)
    out = np.zeros((16, 4, 8), np.int16)
    launch = KernelLaunch("k", (1,), (32,), ["x", "m", "o", np.int32(16)], {"x": x, "m": made, "o": out})
    emulate(cuda(SOURCE.replace(old, new), "sm_90a"), launch, check_races=True)
    return x, made, out


def test_kernel_can_build_and_use_a_tensor_map():
    x, made, out = run()
    assert made.tobytes() == TensorMap("x", "u16", (40, 24), (80,), (32, 16), 64).encode(1 << 40)
    # A 64-byte swizzle exchanges 16-byte pieces by a pattern that is equal for each pair of rows.
    row, piece = np.arange(16)[:, None], np.arange(4)
    tile = np.empty_like(out)
    tile[row, piece] = out[row, piece ^ row // 2 % 4]
    np.testing.assert_array_equal(tile.reshape(16, 32)[:8], x[16:, :32])
    assert not tile[8:].any()


def test_wrong_or_unfenced_tensor_map_is_an_error(refuses):
    refuses(lambda old, new: run(old, new), [
        ("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;", ""),
        ("rank.shared::cta.b1024.b32 [%0], 1;", "rank.shared::cta.b1024.b32 [%0], 2;"),
        ("box_dim.shared::cta.b1024.b32 [%0], 1,", "box_dim.shared::cta.b1024.b32 [%0], 0,"),
    ])  # fmt: skip
