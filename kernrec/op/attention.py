"""Scaled dot-product attention, forward: o = softmax(q k^T / sqrt(head_dim)) v for every head.

Grouped queries: heads h*group to (h+1)*group - 1 of q share head h of k and v, with group = heads / kv_heads. In causal
attention the queries are the last tokens of the sequence: the last query attends to every key, each earlier query to
one key fewer than the next. A prompt has queries = keys, a generated token queries = 1.

Layout `bhsd` is (batch, heads, tokens, head_dim). Layout `bshd` is (batch, tokens, heads, head_dim), as linear layers
write it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _derive(d: Names) -> dict[str, int]:
    """Query heads per key-value head; refuses an uneven division of the heads and causal queries without a key."""
    heads, kv_heads = d["heads"], d["kv_heads"]
    if heads % kv_heads:
        raise UsageError(f"attention kv_heads={kv_heads} must divide heads={heads}")
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
    return {"q": shape("heads", "queries"), "k": keys, "v": keys, "o": shape("heads", "queries")}


def _flops(d: Names) -> int:
    """The two products over the unmasked pairs of query and key; softmax is not counted, as in published figures."""
    queries, keys = d["queries"], d["keys"]
    pairs = queries * keys - (queries * (queries - 1) // 2 if d["causal"] else 0)
    return 4 * d["batch"] * d["heads"] * pairs * d["head_dim"]


def _values(d: Names) -> dict[str, Normal]:
    """Queries of deviation 2 give scores of deviation 2, so that a few keys dominate, as in trained networks."""
    return {"q": (0, 2)}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    q, k, v = (tensors[name] if layout == "bhsd" else tensors[name].swapaxes(1, 2) for name in "qkv")
    queries, keys = d["queries"], d["keys"]
    mask = np.where(np.tri(queries, keys, keys - queries), 0, -np.inf) if d["causal"] else 0.0
    o = np.empty(q.shape)
    for b in range(d["batch"]):  # one head at a time: the scores of all heads of a long prompt would not fit in memory
        for h in range(d["heads"]):
            scores = q[b, h] @ k[b, h // d["group"]].T / np.sqrt(d["head_dim"]) + mask
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            o[b, h] = weights @ v[b, h // d["group"]] / weights.sum(axis=1, keepdims=True)
    return {"o": o if layout == "bhsd" else np.ascontiguousarray(o.swapaxes(1, 2))}


ATTENTION = Op(
    name="attention",
    title="attention, o = softmax(q k^T / sqrt(head_dim)) v",
    aliases=("mha", "attn", "flash_attention", "multi-head attention", "gqa", "sdpa"),
    dims=(
        Dim("batch", "sequences in the batch", 1),
        Dim("heads", "heads of the queries"),
        Dim("kv_heads", "heads of keys and values", "heads"),
        Dim("queries", "query tokens per sequence; 1 in decode"),
        Dim("keys", "key and value tokens per sequence", "queries"),
        Dim("head_dim", "elements per token and head"),
        Dim("causal", "1: a query does not attend to later tokens", 0, minimum=0, maximum=1),
    ),
    dtypes=("f32", "f16", "bf16"),
    layouts=("bhsd", "bshd"),
    outputs=("o",),
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    derive=_derive,
    values=_values,
)
