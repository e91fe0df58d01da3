"""Attention in Triton with running maxima and sums: causal or not, several query heads to a head of keys."""

import triton
import triton.language as tl


@triton.jit
def attention(
    q, k, v, out, heads, group, length, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out = softmax(scale q k^T) v. q and out are (heads, length, WIDTH), k and v (heads / group, length, WIDTH)."""
    head = tl.program_id(1)
    first = tl.program_id(0) * BLOCK_M
    own = head.to(tl.int64) * length * WIDTH
    shared = (head // group).to(tl.int64) * length * WIDTH
    rows = first + tl.arange(0, BLOCK_M)
    width = tl.arange(0, WIDTH)
    queries = tl.load(q + own + rows[:, None] * WIDTH + width[None, :], mask=rows[:, None] < length, other=0.0)
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    end = min(first + BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        inside = columns < length
        keys = tl.load(k + shared + columns[None, :] * WIDTH + width[:, None], mask=inside[None, :], other=0.0)
        scores = tl.dot(queries, keys) * (scale * 1.4426950408889634)
        allowed = inside[None, :] & (columns[None, :] <= rows[:, None]) if CAUSAL else inside[None, :]
        scores = tl.where(allowed, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        powers = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(most - higher)
        values = tl.load(v + shared + columns[:, None] * WIDTH + width[None, :], mask=inside[:, None], other=0.0)
        sums = sums * shrink[:, None]
        sums = tl.dot(powers.to(values.dtype), values, sums)
        total = total * shrink + tl.sum(powers, 1)
        most = higher
    result = (sums / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + own + rows[:, None] * WIDTH + width[None, :], result, mask=rows[:, None] < length)


def grid(meta):
    """Tiles of rows by heads."""
    return triton.cdiv(meta["length"], meta["BLOCK_M"]), meta["heads"]
