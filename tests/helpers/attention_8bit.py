"""Reference for attention whose weights are rounded to e4m3."""

import numpy as np

from kernrec.op import Problem, decode_elements, encode_elements

_SHIFT = 256.0
"""Factor by which weights, which are at most 1, are scaled before rounding."""


def with_rounded_weights(
    problem: Problem, operands: dict[str, np.ndarray], block_k: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return o with e4m3 weights and exact sums, and the error bound of o for a relative `error` of the weights.

    A weight is rounded relative to the largest score in its tile of `block_k` keys and all earlier tiles. An error
    changes the rounded weight only if the weight is within that error of the middle between two e4m3 numbers.
    """
    d = problem.sizes
    value = {name: decode_elements(tensor, problem.tensors[name].dtype) for name, tensor in operands.items()}
    q, k, v = (value[name] if problem.layout == "bhsd" else value[name].swapaxes(1, 2) for name in "qkv")
    scale = {name: np.broadcast_to(value[f"{name}_scale"], (d["batch"], d["kv_heads"])) for name in "qkv"}
    queries, keys = d["queries"], d["keys"]
    mask = np.where(np.tri(queries, keys, keys - queries), 0, -np.inf) if d["causal"] else 0.0
    o, slack = np.empty(q.shape), np.empty(q.shape)
    for b, h in np.ndindex(d["batch"], d["heads"]):
        shared = b, h // d["group"]
        factor = scale["q"][shared] * scale["k"][shared] / np.sqrt(d["head_dim"])
        scores = q[b, h] @ k[shared].T * factor + mask
        tiles = np.maximum.reduceat(scores, np.arange(0, keys, block_k), axis=1)
        met = np.maximum.accumulate(tiles, axis=1).repeat(block_k, axis=1)[:, :keys]
        held = np.exp(met - scores.max(axis=1, keepdims=True)) / _SHIFT
        weights = _SHIFT * np.exp(scores - met)
        low, near, high = (_rounded(weights * factor) * held for factor in (1 - error, 1, 1 + error))
        share = scale["v"][shared] / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
        o[b, h] = near @ v[shared] * share
        slack[b, h] = (high - low) @ np.abs(v[shared]) * share
    back = (lambda x: x) if problem.layout == "bhsd" else (lambda x: np.ascontiguousarray(x.swapaxes(1, 2)))
    return back(o), back(slack)


def _rounded(weights: np.ndarray) -> np.ndarray:
    return decode_elements(encode_elements(weights, "f8e4m3"), "f8e4m3")
