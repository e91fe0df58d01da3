"""Define a grouped matmul of experts, which stands in for an engine's Triton kernel if the engine is not installed."""

import triton
import triton.language as tl


@triton.jit
def grouped_experts(
    tokens, weights, out, token_scales, weight_scales, order, expert_of_tile, n, k, choices, tiles_m,
    TOP: tl.constexpr, BLOCK_SCALES: tl.constexpr, SCALE_N: tl.constexpr, SCALE_K: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """Compute out[c] = weights[expert of c] tokens[c // TOP] for every pair c of a token and its expert.

    `choices` is the number of pairs. `order` contains the index c of each pair, sorted by expert. The value `choices`
    fills the rest of each expert's last tile. If BLOCK_SCALES is true, each token has a scale per SCALE_K columns, and
    weights have a scale per block of SCALE_N rows and SCALE_K columns.
    """
    tiles_n = tl.cdiv(n, BLOCK_SIZE_N)
    in_group = GROUP_SIZE_M * tiles_n
    first_m = tl.program_id(0) // in_group * GROUP_SIZE_M
    rows = tl.minimum(tiles_m - first_m, GROUP_SIZE_M)
    tile_m = first_m + tl.program_id(0) % in_group % rows
    tile_n = tl.program_id(0) % in_group // rows
    choice = tl.load(order + tile_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)).to(tl.int64)
    real = choice < choices
    expert = tl.load(expert_of_tile + tile_m).to(tl.int64)
    column = tile_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    row_of_weights = column.to(tl.int64) % n
    depth = tl.arange(0, BLOCK_SIZE_K)
    from_tokens = tokens + (choice // TOP)[:, None] * k + depth[None, :]
    from_weights = weights + expert * n * k + depth[:, None] + row_of_weights[None, :] * k
    scales_k = tl.cdiv(k, SCALE_K)
    from_token_scales = token_scales + choice // TOP * scales_k
    from_weight_scales = weight_scales + (expert * tl.cdiv(n, SCALE_N) + row_of_weights // SCALE_N) * scales_k
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    for start in range(0, k, BLOCK_SIZE_K):
        left = depth < k - start
        x = tl.load(from_tokens, mask=real[:, None] & left[None, :], other=0.0)
        w = tl.load(from_weights, mask=left[:, None], other=0.0)
        if BLOCK_SCALES:
            by_token = tl.load(from_token_scales + start // SCALE_K, mask=real, other=0.0)
            by_weight = tl.load(from_weight_scales + start // SCALE_K)
            sums += tl.dot(x, w) * by_token[:, None] * by_weight[None, :]
        elif x.dtype == tl.int8:
            sums += tl.dot(x, w)
        else:
            sums = tl.dot(x, w, sums)
        from_tokens += BLOCK_SIZE_K
        from_weights += BLOCK_SIZE_K
    if not BLOCK_SCALES and tokens.dtype.element_ty != out.dtype.element_ty:
        sums = sums * tl.load(token_scales) * tl.load(weight_scales + expert)
    to = out + choice[:, None] * n + column[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=real[:, None] & (column < n)[None, :])
