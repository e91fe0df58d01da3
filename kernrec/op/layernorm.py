"""Layer normalization along the last axis, with weight and bias (Ba et al. 2016, arXiv 1607.06450).

y = (x - mean) / sqrt(variance + EPSILON) * weight + bias; the variance is the mean squared distance from the mean.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np

EPSILON = 1e-5
"""Added to the variance: the default of PyTorch's LayerNorm, and the value GPT-2 was trained with."""


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    rows, columns = d["rows"], d["columns"]
    return {"x": (rows, columns), "weight": (columns,), "bias": (columns,), "y": (rows, columns)}


def _flops(d: Names) -> int:
    """Seven per element: mean (add), subtract, variance (multiply-add), scale, times weight, plus bias."""
    return 7 * d["rows"] * d["columns"]


def _values(d: Names) -> dict[str, Normal]:
    """Mean 1, deviation 2: a kernel that skips the mean or variance fails. Weights near 1, as in trained networks."""
    return {"x": (1, 2), "weight": (1, 0.25), "bias": (0, 0.25)}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    centered = tensors["x"] - tensors["x"].mean(axis=1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=1, keepdims=True) + EPSILON)
    return {"y": centered / deviation * tensors["weight"] + tensors["bias"]}


LAYERNORM = Op(
    name="layernorm",
    title="layer normalization of each row, y = (x - mean) / sqrt(variance + epsilon) * weight + bias",
    aliases=("layer normalization", "layer normalisation", "ln"),
    dims=(
        Dim("rows", "independent rows"),
        Dim("columns", "elements per row, normalized together"),
    ),
    dtypes=("f32", "f16", "bf16"),
    layouts=("row",),
    outputs=("y",),
    workload="gpt2",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
)
