"""Attention in Triton after FlashAttention-2 (Dao 2023, arXiv 2307.08691): keys in tiles, running maxima and sums.

A block meets the tiles of keys that all its queries see first, then those that need a mask: at the edge of causal
attention and at the last key.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend(
    query, k, v, place, step, inside, most, total, sums, first, end, visible, scale,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The tiles of keys from `first` to `end`: pointers, and each row's greatest score, sum of weights and result.

    place, inside: of a tile's elements, from k and v, and which of them there are.
    """
    for start in range(first, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        # what lies past the block's last key is not read, and then not visible
        there = inside & (key < end)[:, None] if MASKED else inside
        score = tl.dot(query, tl.trans(tl.load(k + place, mask=there, other=0.0)))
        if MASKED:
            score = tl.where(key[None, :] < visible[:, None], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp2(score * scale - (higher * scale)[:, None])
        shrink = tl.exp2((most - higher) * scale)
        total = total * shrink + tl.sum(weight, 1)
        sums = tl.dot(weight.to(query.dtype), tl.load(v + place, mask=there, other=0.0), sums * shrink[:, None])
        most = higher
        k += step
        v += step
    return k, v, most, total, sums


@triton.jit
def attention_triton(
    q, k, v, o, queries, keys, eighths, heads, kv_heads, group, q_pitch, q_head, kv_pitch, kv_head, older,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A block computes BLOCK_M queries of one head.

    eighths: head_dim / 8, so that the compiler knows of the factor. Between two tokens of a head lie `pitch` rows of
    head_dim elements, between two heads of a token `head` rows. older: keys that the first query meets besides its own;
    keys or more: every query meets all.
    """
    head_dim = eighths * 8
    # the longest tiles of causal attention come first: they end last
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, width = first + tl.arange(0, BLOCK_M), tl.arange(0, HEAD)
    inside = width < head_dim
    place = row[:, None].to(tl.int64) * (q_pitch * head_dim) + width[None, :]
    place += (batch * heads * queries + head * q_head) * head_dim
    query = tl.load(q + place, mask=(row < queries)[:, None] & inside[None, :], other=0.0)

    start = (batch * kv_heads * keys + (head // group) * kv_head) * head_dim
    step = BLOCK_N * kv_pitch * head_dim
    tile = tl.arange(0, BLOCK_N)[:, None] * (kv_pitch * head_dim) + width[None, :]
    k += start
    v += start

    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, HEAD), tl.float32)
    visible = tl.minimum(keys, row + 1 + older)
    unmasked = tl.minimum(keys, first + 1 + older) // BLOCK_N * BLOCK_N
    end = tl.minimum(keys, first + BLOCK_M + older)
    scale = LOG2_E * tl.rsqrt(head_dim.to(tl.float32))
    k, v, most, total, sums = attend(
        query, k, v, tile, step, inside[None, :], most, total, sums, 0, unmasked, visible, scale, BLOCK_N, False
    )
    k, v, most, total, sums = attend(
        query, k, v, tile, step, inside[None, :], most, total, sums, unmasked, end, visible, scale, BLOCK_N, True
    )
    result = (sums / total[:, None]).to(o.dtype.element_ty)
    tl.store(o + place, result, mask=(row < queries)[:, None] & inside[None, :])
