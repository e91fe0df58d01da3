"""Define matrix multiplication, c = a b, of one pair of matrices or a batch of pairs.

A layout has a letter for a and one for b: `n` is row-major as in the formula, `t` is stored transposed. In layout `nt`,
b is stored as (n, k), like the weights of a linear layer. c is row-major. With batch size 1, tensors have two axes.

The optional epilogue adds a bias per column, which all matrices of a batch share, and applies an activation. FLOPs
exclude it, as in published figures. `tf32` tensors are stored as f32, multiplied with 10 bits of mantissa, and summed
in f32. The reference does not round them.

8-bit dtypes (`f8e4m3`, `i8`) have f32 scales: one per matrix, or one per row of a and column of b. Each sum (f32, or an
exact 32-bit integer for `i8`) is multiplied by both scales, then the f32 bias is added. c is bf16, f16 or f32.

In `kernrec.op.dtype.FORMATS`, a contains activations and b weights, with scales for groups along k: `a_scale` (m,
groups), `b_scale` (n, groups), or (n / 128, groups) in `f8block`. nvfp4 also has `ab_scale`, an f32 scale of c.
"""

from collections.abc import Mapping
from functools import cache
from math import sqrt
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.op.problem import SPREAD_8BIT, Dim, Names, Normal, Op
from kernrec.op.quantized import (
    activation_scales,
    dequantized,
    format_number,
    format_of,
    operand_values,
    weight_scales,
)

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    m, n, k = d["m"], d["n"], d["k"]
    stack = (d["batch"],) if d["batch"] > 1 else ()
    a = (m, k) if layout[0] == "n" else (k, m)
    b = (k, n) if layout[1] == "n" else (n, k)
    scales = {}
    if quantized := format_of(d):
        scales = {f"a{name}": (*stack, *shape) for name, shape in activation_scales(quantized, m, k).items()}
        scales |= {f"b{name}": (*stack, *shape) for name, shape in weight_scales(quantized, n, k).items()}
        if quantized.weights == quantized.activations == "f4e2m1":
            scales["ab_scale"] = (1,)
    elif d["scaled"]:
        scales = {"a_scale": (*stack, m if d["scales"] else 1), "b_scale": (*stack, n if d["scales"] else 1)}
    bias = {"bias": (n,)} if d["bias"] else {}
    return {"a": stack + a, "b": stack + b, **scales, **bias, "c": (*stack, m, n)}


OUTPUTS = ("bf16", "f16", "f32")
"""Types of c for 8-bit a and b, indexed by the dimension `output`."""


def _derive(d: Names) -> dict[str, int]:
    for name in ("scales", "output"):
        if d[name] and not d["scaled"]:
            raise UsageError(f"matmul: {name}={d[name]} is only for {' and '.join(_SCALED)}; expected {name}=0")
    return {}


def _element_types(d: Names) -> dict[str, str]:
    if quantized := format_of(d):
        types = {"a": quantized.activations, "b": quantized.weights, "bias": "bf16", "c": "bf16", "ab_scale": "f32"}
        return types | {"a_scale": quantized.activation_scale, "b_scale": quantized.scale}
    if not d["scaled"]:
        return {}
    return {"a_scale": "f32", "b_scale": "f32", "bias": "f32", "c": OUTPUTS[d["output"]]}


_SCALED = ("f8e4m3", "i8")
_FORMATS = ("f8block", "nvfp4", "w8a16", "w4a16")


def _values(d: Names) -> dict[str, Normal]:
    wide = 1 / sqrt(d["k"])
    if quantized := format_of(d):
        return operand_values(quantized, "a", "b", wide)
    if not d["scaled"]:
        return {"b": (0, wide)}
    scale = 1 / SPREAD_8BIT
    spread: Normal = 0, SPREAD_8BIT
    return {"a": spread, "b": spread, "a_scale": (scale, scale / 8), "b_scale": (wide * scale, wide * scale / 8)}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    a, b = (
        tensors[name] if letter == "n" else tensors[name].swapaxes(-1, -2)
        for name, letter in zip("ab", layout, strict=True)
    )
    if quantized := format_of(d):
        a = dequantized(a, tensors.get("a_scale"), quantized.activation_group, 1)
        b = dequantized(b.swapaxes(-1, -2), tensors.get("b_scale"), quantized.group, quantized.rows).swapaxes(-1, -2)
    c = a @ b
    if "ab_scale" in tensors:
        c = c * tensors["ab_scale"]
    if d["scaled"]:
        c = c * tensors["a_scale"][..., :, None] * tensors["b_scale"][..., None, :]
    if d["bias"]:
        c = c + tensors["bias"]
    return {"c": _activated(c, d["activation"])}


def _activated(x: "np.ndarray", activation: int) -> "np.ndarray":
    import numpy as np

    activated: np.ndarray = np.maximum(x, 0) if activation == 1 else x
    if activation == 2:
        activated = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    elif activation == 3:
        activated = x * 0.5 * (1 + np.tanh(x / 2))  # The tanh form of SiLU does not overflow.
    return activated


_BIAS = {
    "issue.fma32": 1.0, "issue.alu": 1.0, "issue.wide64": 1.0, "issue.imad": 0.5, "issue.ld_global": 0.5,
    "global.bias.read_sectors": 0.5,
}  # fmt: skip
_ACTIVATIONS: tuple[dict[str, float], ...] = (
    {},
    {"issue.alu": 1.0, "issue.setp": 1.0},
    *({"issue.fma32": 5.0, "issue.mufu": 2.0},) * 2,
)
"""Instructions that each activation function needs per 32 results, indexed by the dimension `activation`. Source:
emulation of the tiled kernels (`tests/model/analytical/test_launch_time.py`)."""


def _finishing(d: Names) -> dict[str, float]:
    counts = dict(_BIAS) if d["bias"] else {}
    if d["scaled"] and OUTPUTS[d["output"]] == "f32":
        counts["global.c.write_sectors"] = 2.0  # Profiles assume 16 bits per element of c.
    for metric, count in _ACTIVATIONS[d["activation"]].items():
        counts[metric] = counts.get(metric, 0.0) + count
    return counts


MATMUL = Op(
    name="matmul",
    title="matrix multiplication, c[m,n] = activation(a[m,k] b[k,n] + bias[n])",
    aliases=("mm", "gemm", "matrix multiplication", "bmm", "batched matmul", "linear", "dense"),
    dims=(
        Dim("m", "rows of a and c"),
        Dim("n", "columns of b and c"),
        Dim("k", "columns of a, rows of b"),
        Dim("batch", "independent products of contiguous matrices", 1, late=True, aliases=("b", "batch_size")),
        Dim("bias", "1: a bias is added to every column of c", 0, minimum=0, maximum=1, late=True),
        Dim("activation", "of c: 0 none, 1 ReLU, 2 GELU (tanh form), 3 SiLU", 0, minimum=0, maximum=3, late=True),
        Dim("scales", "8 bits: 0 one a matrix, 1 a row of a, a column of b", 0, minimum=0, maximum=1, late=True),
        Dim("output", "8 bits: c is 0 bf16, 1 f16, 2 f32", 0, minimum=0, maximum=2, late=True),
    ),
    dtypes=("f32", "f16", "bf16", "f64", "tf32", *_SCALED, *_FORMATS),
    layouts=("nn", "nt", "tn", "tt"),
    outputs=("c",),
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    flops=lambda d: 2 * d["batch"] * d["m"] * d["n"] * d["k"],
    reference=_reference,
    values=_values,
    of_dtype=cache(lambda dtype: {"scaled": int(dtype in _SCALED), **format_number(dtype)}),
    derive=_derive,
    element_types=_element_types,
    dtype_layouts=dict.fromkeys((*_SCALED, *_FORMATS), "nt"),
    finishing=_finishing,
)
