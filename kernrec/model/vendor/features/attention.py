"""Attention of stacks over prompts and over single tokens: a bound of tiles of queries, DRAM and L2, and features."""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.model.vendor.bound import TILE_CLK, Bound, Card

Array = np.ndarray

DIMS = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "prompt": lambda d: bool(d["causal"]) and d["queries"] == d["keys"],
    "token": lambda d: d["queries"] == 1 < d["keys"],
}
"""Whether the dimensions of a problem are of a case."""
_QUERY_TILE = 128


def bound(card: Card, sizes: Mapping[str, Array], layout: str) -> Bound:
    """The bound and the features of attention.

    Causal, as recorded: of a prompt half of the keys are masked; one query sees all.
    """
    batch, heads, kv_heads, queries, keys, head_dim = (sizes[name] for name in DIMS)
    gpu = card.gpu
    pairs = queries * keys - queries * (queries - 1) / 2
    flops = 4 * batch * heads * pairs * head_dim
    cached = 2 * card.element_bytes * batch * kv_heads * keys * head_dim
    moved = cached + 2 * card.element_bytes * batch * heads * queries * head_dim
    group = heads / kv_heads
    # With one query the heads of a group are the rows of a tile, and keys are split over the SMs.
    blocks = np.where(queries > 1, batch * heads * np.ceil(queries / _QUERY_TILE), batch * kv_heads)
    rows = np.where(queries > 1, np.minimum(queries, _QUERY_TILE), group)
    block_s = flops / blocks * (np.maximum(rows, 64) / rows) / (card.flops / gpu.sms) + card.seconds(TILE_CLK)
    waves = np.where(queries > 1, np.ceil(blocks / gpu.sms), np.maximum(blocks / gpu.sms, 1 / gpu.sms))
    math_s, memory_s = waves * block_s, card.memory_s(moved, cached)
    parts = card.parts(flops, moved)
    shares = {"tiles": math_s, "memory": memory_s, "flops": parts["math"], "dram": parts["dram"]}
    columns = {
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "l2.cached": np.log2(cached / gpu.l2_bytes),
        "waves": np.log2(blocks / gpu.sms),
        "full": blocks / (np.ceil(blocks / gpu.sms) * gpu.sms),
        "group": np.log2(group),
        "log.heads in batch": np.log2(batch * heads),
        "log.cached heads": np.log2(batch * kv_heads),
        "per key": np.log2(batch * kv_heads * keys / gpu.sms),
        "rest.queries": queries % _QUERY_TILE,
    }
    return Bound(card.total(math_s, memory_s), parts, shares, columns)
