"""Define a mixture of experts on one GPU: each token passes through the experts that the router scores highest.

y[t] = sum over the selected experts e of g[t, e] down_e (silu(gate_e x[t]) * (up_e x[t])), where g is the softmax of
the scores of the selected experts. Without gates (`gated=0`), an expert computes down_e relu(up_e x[t])^2, as in
Nemotron-H.

Each of `tp` x `ep` GPUs has experts / ep experts, and intermediate / tp columns of each. A problem covers the first of
these GPUs, and y is this GPU's part of the sum over all GPUs. `routing` describes how unevenly the router selects
experts: their numbers of tokens follow a power law with the exponent routing / 100. It affects only predicted times,
because the scores are inputs.

Activations are bf16 (or f16) in every dtype, and the op quantizes them itself. On average, a GPU runs tokens x
topk / ep passes through an expert. FLOPs count the matmuls of these passes.
"""

from collections.abc import Mapping
from functools import cache
from math import sqrt
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.op.problem import SPREAD_8BIT, Dim, Names, Normal, Op
from kernrec.op.quantized import dequantized, format_number, format_of, operand_values, weight_scales

if TYPE_CHECKING:
    import numpy as np


def _derive(d: Names) -> dict[str, int]:
    for whole, part in (("experts", "ep"), ("intermediate", "tp")):
        if d[whole] % d[part]:
            raise UsageError(f"moe {part}={d[part]} must divide {whole}={d[whole]}")
    if d["topk"] > d["experts"]:
        raise UsageError(f"moe topk={d['topk']} is more than experts={d['experts']}")
    return {"local_experts": d["experts"] // d["ep"], "columns": d["intermediate"] // d["tp"]}


def _products(d: Names) -> dict[str, tuple[int, int]]:
    wide = d["columns"], d["hidden"]
    return {**({"gate": wide} if d["gated"] else {}), "up": wide, "down": (d["hidden"], d["columns"])}


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    experts, tokens = d["local_experts"], d["tokens"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, k) in _products(d).items():
        shapes[name] = (experts, rows, k)
        if quantized := format_of(d):
            shapes |= {f"{name}{ending}": (experts, *s) for ending, s in weight_scales(quantized, rows, k).items()}
        elif d["scaled"]:
            shapes[f"{name}_scale"] = (experts, 1, 1)
    whole = tokens, d["hidden"]
    return {"x": whole, "scores": (tokens, d["experts"]), **shapes, "y": whole}


def _element_types(d: Names) -> dict[str, str]:
    types = {"scores": "f32"}
    if quantized := format_of(d):
        for name in _products(d):
            types |= {name: quantized.weights, f"{name}_scale": quantized.scale}
    elif d["scaled"]:
        types |= dict.fromkeys((f"{name}_scale" for name in _products(d)), "f32")
    else:
        return types
    return types | {"x": "bf16", "y": "bf16"}


def active_experts(d: Names) -> int:
    """Return the number of experts on this GPU that get a token under even routing."""
    return min(d["local_experts"], -(-d["tokens"] * d["topk"] // d["ep"]))


def _untouched(d: Names) -> dict[str, int]:
    idle = d["local_experts"] - active_experts(d)
    if not idle:
        return {}
    shapes = _shapes(d, "row")
    weights = (name for product in _products(d) for name in (product, f"{product}_scale") if name in shapes)
    return {name: idle * shapes[name][1] * shapes[name][2] for name in weights}


def _flops(d: Names) -> int:
    per_token = sum(2 * rows * k for rows, k in _products(d).values())
    return -(-d["tokens"] * d["topk"] // d["ep"]) * per_token


def _values(d: Names) -> dict[str, Normal]:
    values: dict[str, Normal] = {"scores": (0, 2)}  # With a standard deviation of 2, a single expert often dominates.
    for name, (_, k) in _products(d).items():
        wide = 1 / sqrt(k)
        values[name] = 0, wide
        if quantized := format_of(d):
            of_name = operand_values(quantized, "x", name, wide)
            values |= {key: of_name[key] for key in (name, f"{name}_scale")}
            if quantized.weights == quantized.activations == "f4e2m1":
                values[f"{name}_scale"] = wide / 2, wide / 16
        elif d["scaled"]:
            values |= {name: (0, SPREAD_8BIT), f"{name}_scale": (wide / SPREAD_8BIT, wide / SPREAD_8BIT / 8)}
    return values


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    x, scores, quantized = tensors["x"], tensors["scores"], format_of(d)
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, : d["topk"]]
    strength = np.take_along_axis(scores, chosen, axis=1)
    shares = np.exp(strength - strength.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)

    def weights(name: str, expert: int) -> np.ndarray:
        scale = tensors.get(f"{name}_scale")
        group, rows = (quantized.group, quantized.rows) if quantized else (0, 1)
        return dequantized(tensors[name][expert], None if scale is None else scale[expert], group, rows)

    y = np.zeros(x.shape)
    for expert in range(d["local_experts"]):
        tokens, places = np.nonzero(chosen == expert)
        if not len(tokens):
            continue
        inner = x[tokens] @ weights("up", expert).T
        if d["gated"]:
            gate = x[tokens] @ weights("gate", expert).T
            inner = inner * (gate * 0.5 * (1 + np.tanh(gate / 2)))  # The tanh form of SiLU does not overflow.
        else:
            inner = np.maximum(inner, 0) ** 2
        y[tokens] += shares[tokens, places, None] * (inner @ weights("down", expert).T)
    return {"y": y}


MOE = Op(
    name="moe",
    title="mixture of experts, y = sum over topk of share * down(silu(gate(x)) * up(x))",
    aliases=("mixture of experts", "fused_moe", "experts"),
    dims=(
        Dim("tokens", "tokens of all sequences", aliases=("m", "seq")),
        Dim("hidden", "elements of a token", aliases=("hidden_size",)),
        Dim(
            "intermediate",
            "columns of an expert, before splitting across GPUs",
            aliases=("intermediate_size", "moe_intermediate_size"),
        ),
        Dim("experts", "experts, before splitting across GPUs", aliases=("num_experts", "e")),
        Dim("topk", "experts that a token goes through", aliases=("top_k", "num_experts_per_tok")),
        Dim("tp", "GPUs that share the columns of an expert", 1),
        Dim("ep", "GPUs that share the experts", 1),
        Dim("routing", "0 balanced, else a power law's exponent x 100", 0, minimum=0, maximum=500),
        Dim("gated", "1: SiLU with a gate, 0: squared ReLU", 1, minimum=0, maximum=1),
    ),
    dtypes=("bf16", "f16", "f8e4m3", "f8block", "nvfp4", "w4a16", "mxfp4", "mxfp4f8", "w4f8"),
    layouts=("row",),
    outputs=("y",),
    workload="mixtures-of-experts",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    of_dtype=cache(lambda dtype: {"scaled": int(dtype == "f8e4m3"), **format_number(dtype)}),
    derive=_derive,
    untouched=_untouched,
    values=_values,
    element_types=_element_types,
)
