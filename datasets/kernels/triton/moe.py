"""The products of a mixture of experts in Triton: each tile of rows gathers the tokens of one expert."""

import triton
import triton.language as tl


@triton.jit
def experts(
    tokens, weights, out, order, expert_of_tile, n, k, count,
    TOP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[p] = weights[expert] tokens[p // TOP] for every choice p of an expert by a token.

    `order` lists the choices by expert, each expert's share filled up to whole tiles with `count`, which no choice is.
    """
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    choices = tl.load(order + tile_m * BLOCK_M + tl.arange(0, BLOCK_M))
    real = choices < count
    expert = tl.load(expert_of_tile + tile_m).to(tl.int64)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    from_tokens = tokens + (choices // TOP)[:, None] * k + depth[None, :]
    from_weights = weights + expert * n * k + depth[:, None] + columns[None, :] * k
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        left = depth < k - start
        x = tl.load(from_tokens, mask=real[:, None] & left[None, :], other=0.0)
        w = tl.load(from_weights, mask=left[:, None] & (columns < n)[None, :], other=0.0)
        sums = tl.dot(x, w, sums)
        from_tokens += BLOCK_K
        from_weights += BLOCK_K
    to = out + choices[:, None] * n + columns[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=real[:, None] & (columns < n)[None, :])


def grid(meta):
    """Tiles of the ordered choices by tiles of columns, in one axis."""
    return (triton.cdiv(meta["order"].shape[0], meta["BLOCK_M"]) * triton.cdiv(meta["n"], meta["BLOCK_N"]),)
