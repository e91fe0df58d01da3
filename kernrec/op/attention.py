"""Define attention, forward: o = softmax(q k^T / sqrt(head_dim)) v for every head.

Heads h*group to (h+1)*group - 1 of q share head h of k and v, where group = heads / kv_heads. In causal attention, the
queries are the last tokens of the sequence. So the last query attends to every key, the query before it to all but one,
and so on. With a window, each query attends only to the last `window` of these keys.

Layout `bhsd` is (batch, heads, tokens, head_dim). Layout `bshd` is (batch, tokens, heads, head_dim), as linear layers
store their outputs.

In dtype `f8e4m3`, q, k and v have positive f32 scales: one per tensor, or one per sequence and key/value head (as in
FlashAttention-3). Scores are multiplied by the scales of q and k, and results by the scale of v. The output is bf16 or
f16. A quantized cache (`kv_dtype=1`) has 8-bit k and v with one scale each.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.op.problem import SPREAD_8BIT, Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _derive(d: Names) -> dict[str, int]:
    heads, kv_heads = d["heads"], d["kv_heads"]
    if heads % kv_heads:
        raise UsageError(f"attention kv_heads={kv_heads} must divide heads={heads}")
    for name in ("scales", "output"):
        if d[name] and not d["scaled"]:
            raise UsageError(f"attention dimension {name} is {d[name]}; only f8e4m3 has it; expected 0")
    if d["kv_dtype"] and d["scaled"]:
        raise UsageError(
            "attention kv_dtype=1 requires queries of 16 or 32 bits; in f8e4m3, keys and values already have 8"
        )
    if d["window"] and not d["causal"] and d["queries"] > 1:
        raise UsageError(f"attention window={d['window']} needs causal=1, or a single query")
    if d["causal"] and d["queries"] > d["keys"]:
        raise UsageError(
            f"causal attention has queries={d['queries']} but only keys={d['keys']}; expected at least as many keys as "
            "queries"
        )
    return {"group": heads // kv_heads}


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    def shape(heads: str, tokens: str) -> tuple[int, ...]:
        inner = (d[heads], d[tokens]) if layout == "bhsd" else (d[tokens], d[heads])
        return (d["batch"], *inner, d["head_dim"])

    keys = shape("kv_heads", "keys")
    scales = {}
    if d["scaled"]:
        scales = dict.fromkeys(SCALES, (d["batch"], d["kv_heads"]) if d["scales"] else (1,))
    elif d["kv_dtype"]:
        scales = dict.fromkeys(SCALES[1:], (1,))
    return {"q": shape("heads", "queries"), "k": keys, "v": keys, **scales, "o": shape("heads", "queries")}


SCALES = ("q_scale", "k_scale", "v_scale")
"""Tensors with the scales of 8-bit q, k and v."""

OUTPUTS = ("bf16", "f16")
"""Types of o for 8-bit q, k and v, indexed by the dimension `output`."""


def pairs(d: Names) -> int:
    queries, keys = d["queries"], d["keys"]
    masked = queries * (queries - 1) // 2 if d["causal"] else 0
    if 0 < (window := d["window"]) < keys:
        # Number of queries that would attend to more than `window` keys without the window.
        longer = min(queries, keys - window)
        masked += longer * (keys - window) - longer * (longer - 1) // 2
    return queries * keys - masked


def _untouched(d: Names) -> dict[str, int]:
    before = max(d["keys"] - d["queries"] + 1 - d["window"], 0) if d["window"] else 0
    return dict.fromkeys("kv", before * d["batch"] * d["kv_heads"] * d["head_dim"]) if before else {}


def _element_types(d: Names) -> dict[str, str]:
    if d["scaled"]:
        return {**dict.fromkeys(SCALES, "f32"), "o": OUTPUTS[d["output"]]}
    return {"k": "f8e4m3", "v": "f8e4m3", **dict.fromkeys(SCALES[1:], "f32")} if d["kv_dtype"] else {}


def _values(d: Names) -> dict[str, Normal]:
    # With a standard deviation of 2 instead of 1 for q, few keys dominate the softmax.
    if not (d["scaled"] or d["kv_dtype"]):
        return {"q": (0, 2)}
    scales = {"q_scale": 2 / SPREAD_8BIT, "k_scale": 1 / SPREAD_8BIT, "v_scale": 1 / SPREAD_8BIT}
    spread: dict[str, Normal] = dict.fromkeys("qkv", (0, SPREAD_8BIT))
    if d["kv_dtype"]:
        spread["q"] = 0, 2
    return spread | {name: (scale, scale / 8) for name, scale in scales.items()}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    q, k, v = (tensors[name] if layout == "bhsd" else tensors[name].swapaxes(1, 2) for name in "qkv")
    queries, keys = d["queries"], d["keys"]
    by_head = {name: np.broadcast_to(tensors.get(name, 1.0), (d["batch"], d["kv_heads"])) for name in SCALES}
    of_scores, of_values = by_head["q_scale"] * by_head["k_scale"] / np.sqrt(d["head_dim"]), by_head["v_scale"]
    mask = np.where(np.tri(queries, keys, keys - queries), 0, -np.inf) if d["causal"] else np.zeros((queries, keys))
    if d["window"]:
        mask = np.where(np.tri(queries, keys, keys - queries - d["window"]), -np.inf, mask)
    o = np.empty(q.shape)
    # Compute one head at a time, because the scores of all heads of a long prompt do not fit in memory.
    for b in range(d["batch"]):
        for h in range(d["heads"]):
            shared = b, h // d["group"]
            scores = q[b, h] @ k[shared].T * of_scores[shared] + mask
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            o[b, h] = weights @ v[shared] * of_values[shared] / weights.sum(axis=1, keepdims=True)
    return {"o": o if layout == "bhsd" else np.ascontiguousarray(o.swapaxes(1, 2))}


ATTENTION = Op(
    name="attention",
    title="attention, o = softmax(q k^T / sqrt(head_dim)) v",
    aliases=("mha", "attn", "flash_attention", "multi-head attention", "gqa", "sdpa"),
    dims=(
        Dim("batch", "sequences in the batch", 1, aliases=("b", "batch_size")),
        Dim("heads", "heads of the queries", aliases=("h", "num_heads", "n_heads", "q_heads")),
        Dim("kv_heads", "heads of keys and values", "heads", aliases=("h_kv", "num_kv_heads", "n_kv_heads")),
        Dim(
            "queries",
            "query tokens per sequence; 1 in decode",
            aliases=("s", "seq", "seqlen", "seq_len", "sequence", "tokens", "q_len", "seqlen_q"),
        ),
        Dim("keys", "key and value tokens per sequence", "queries", aliases=("kv_len", "k_len", "seqlen_k", "context")),
        Dim("head_dim", "elements per token and head", aliases=("d", "dim", "head_size", "headdim")),
        Dim("causal", "1: a query does not attend to later tokens", 0, minimum=0, maximum=1),
        Dim("scales", "8 bits: 0 one a tensor, 1 a sequence and kv head", 0, minimum=0, maximum=1, late=True),
        Dim("output", "8 bits: o is 0 bf16, 1 f16", 0, minimum=0, maximum=1, late=True),
        Dim(
            "window",
            "keys that a query attends to at most; 0: all",
            0,
            minimum=0,
            late=True,
            aliases=("sliding_window",),
        ),
        Dim("kv_dtype", "keys and values: 0 as queries, 1 f8e4m3", 0, minimum=0, maximum=1, late=True),
    ),
    dtypes=("f32", "f16", "bf16", "f8e4m3"),
    layouts=("bhsd", "bshd"),
    outputs=("o",),
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    # Count both matmuls for unmasked pairs but not the softmax, as published figures do.
    flops=lambda d: 4 * d["batch"] * d["heads"] * pairs(d) * d["head_dim"],
    reference=_reference,
    derive=_derive,
    untouched=_untouched,
    values=_values,
    of_dtype=cache(lambda dtype: {"scaled": int(dtype == "f8e4m3")}),
    element_types=_element_types,
)
