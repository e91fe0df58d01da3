"""C = A B in Triton: tiles in bands of rows for reuse in L2, shares of the reduction, and a persistent form."""

import triton
import triton.language as tl


@triton.jit
def tile_of(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """(row, column) of a tile; bands of GROUP_M rows are walked column by column."""
    band = tile // (GROUP_M * tiles_n)
    first = band * GROUP_M
    rows = min(tiles_m - first, GROUP_M)
    inside = tile - band * GROUP_M * tiles_n
    return first + inside % rows, inside // rows


@triton.jit
def product(
    a, b, m, n, k, stride_a, stride_b, tile_m, tile_n, share,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """The f32 sums of one tile over one share of the reduction."""
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % m
    columns = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % n
    depth = share * BLOCK_K + tl.arange(0, BLOCK_K)
    from_a = a + rows[:, None] * stride_a + depth[None, :]
    from_b = b + depth[:, None] * stride_b + columns[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, tl.cdiv(k, BLOCK_K * SPLIT_K)):
        left = k - step * BLOCK_K * SPLIT_K
        x = tl.load(from_a, mask=depth[None, :] < left, other=0.0)
        y = tl.load(from_b, mask=depth[:, None] < left, other=0.0)
        sums = tl.dot(x, y, sums)
        from_a += BLOCK_K * SPLIT_K
        from_b += BLOCK_K * SPLIT_K * stride_b
    return sums


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8}, num_warps=8, num_stages=3),
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8}, num_warps=4, num_stages=3),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8}, num_warps=4, num_stages=4),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP_M": 4}, num_warps=4, num_stages=2),
    ],
    key=["m", "n", "k"],
)
@triton.jit
def matmul(
    a, b, c, m, n, k, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr = 1,
):  # fmt: skip
    """A block computes one tile of C; with SPLIT_K > 1 one share of it, added to a C of zeros."""
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    sums = product(
        a, b, m, n, k, stride_a, stride_b, tile_m, tile_n, tl.program_id(1), BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K
    )
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    to = c + rows[:, None] * stride_c + columns[None, :]
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    if SPLIT_K == 1:
        tl.store(to, sums.to(c.dtype.element_ty), mask=inside)
    else:
        tl.atomic_add(to, sums.to(c.dtype.element_ty), mask=inside, sem="relaxed")


def grid(meta):
    """The grid of `matmul`."""
    tiles = triton.cdiv(meta["m"], meta["BLOCK_M"]) * triton.cdiv(meta["n"], meta["BLOCK_N"])
    return tiles, meta.get("SPLIT_K", 1)


@triton.jit
def persistent_matmul(
    a, b, c, m, n, k, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """As many blocks as run at once; each computes every BLOCKS-th tile."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, BLOCKS):
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        sums = product(a, b, m, n, k, stride_a, stride_b, tile_m, tile_n, 0, BLOCK_M, BLOCK_N, BLOCK_K, 1)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(c + rows[:, None] * stride_c + columns[None, :], sums.to(c.dtype.element_ty), mask=inside)


def persistent_grid(meta):
    """The grid of `persistent_matmul`."""
    return (meta["BLOCKS"],)
