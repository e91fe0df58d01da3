"""A small matmul with Triton's autotuner, for the tests of emitted caches."""

import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": depth}, num_warps=4, num_stages=2) for depth in (32, 64)
]


@triton.autotune(CONFIGS, key=["k"])
@triton.jit
def product(a, b, c, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Compute c = a b for matrices of BLOCK_M x k and k x BLOCK_N."""
    rows, columns, depth = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :], tl.arange(0, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        x = tl.load(a + rows * k + start + depth[None, :])
        y = tl.load(b + (start + depth[:, None]) * BLOCK_N + columns)
        sums = tl.dot(x, y, sums)
    tl.store(c + rows * BLOCK_N + columns, sums.to(c.dtype.element_ty))


def grid(meta):
    """Return a grid of one block."""
    return (1,)
