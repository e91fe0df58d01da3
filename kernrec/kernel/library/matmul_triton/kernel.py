"""C = A B in Triton, with the tunables of TorchInductor's template: tiles, stages, warps, bands of tile rows.

Sums are f32. f32 inputs are multiplied as they are, tf32 inputs (f32 in memory) on tensor cores.
"""

import triton
import triton.language as tl


@triton.jit
def matmul_triton(
    a, b, c, m, n, k, row_a, row_b, row_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    LAYOUT_TN: tl.constexpr = 0, LAYOUT_NT: tl.constexpr = 0, LAYOUT_TT: tl.constexpr = 0, DTYPE_F32: tl.constexpr = 0,
):  # fmt: skip
    """A block computes one tile of C. row_a, row_b, row_c: elements of a row, as the matrices lie in memory."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0)
    band = tile // (GROUP_M * tiles_n)
    rows_of_band = min(tiles_m - band * GROUP_M, GROUP_M)
    inside = tile - band * GROUP_M * tiles_n
    first_m = (band * GROUP_M + inside % rows_of_band) * BLOCK_M
    first_n = (inside // rows_of_band) * BLOCK_N

    # Rows and columns beyond the edge read others instead, so that only the depth needs a mask.
    rows = tl.max_contiguous(tl.multiple_of((first_m + tl.arange(0, BLOCK_M)) % m, BLOCK_M), BLOCK_M)
    columns = tl.max_contiguous(tl.multiple_of((first_n + tl.arange(0, BLOCK_N)) % n, BLOCK_N), BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    if LAYOUT_TN or LAYOUT_TT:
        from_a = a + depth[None, :] * row_a + rows[:, None]
        step_a = BLOCK_K * row_a
    else:
        from_a = a + rows[:, None] * row_a + depth[None, :]
        step_a = BLOCK_K
    if LAYOUT_NT or LAYOUT_TT:
        from_b = b + columns[None, :] * row_b + depth[:, None]
        step_b = BLOCK_K
    else:
        from_b = b + depth[:, None] * row_b + columns[None, :]
        step_b = BLOCK_K * row_b

    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for left in range(k, 0, -BLOCK_K):
        x = tl.load(from_a, mask=depth[None, :] < left, other=0.0)
        y = tl.load(from_b, mask=depth[:, None] < left, other=0.0)
        sums = tl.dot(x, y, sums, input_precision="ieee" if DTYPE_F32 else "tf32")
        from_a += step_a
        from_b += step_b

    out_m = first_m + tl.arange(0, BLOCK_M)
    out_n = first_n + tl.arange(0, BLOCK_N)
    to = c + out_m[:, None].to(tl.int64) * row_c + out_n[None, :]
    tl.store(to, sums.to(c.dtype.element_ty), mask=(out_m < m)[:, None] & (out_n < n)[None, :])
