"""Root-mean-square normalization along the last axis, with weight (Zhang and Sennrich 2019, arXiv 1910.07467).

y = x / sqrt(mean of x^2 + EPSILON) * weight.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np

EPSILON = 1e-5
"""Added to the mean square: the value in the configuration of Llama 3."""


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    rows, columns = d["rows"], d["columns"]
    return {"x": (rows, columns), "weight": (columns,), "y": (rows, columns)}


def _flops(d: Names) -> int:
    """Four per element: multiply-add for the mean square, scale, multiply by the weight."""
    return 4 * d["rows"] * d["columns"]


def _values(d: Names) -> dict[str, Normal]:
    """Deviation 2, so that a kernel that skips the scale fails; weights near 1, as in trained networks."""
    return {"x": (0, 2), "weight": (1, 0.25)}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    x = tensors["x"]
    return {"y": x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * tensors["weight"]}


RMSNORM = Op(
    name="rmsnorm",
    title="root-mean-square normalization of each row, y = x / sqrt(mean of x^2 + epsilon) * weight",
    aliases=("root mean square normalization", "root mean square normalisation", "rms"),
    dims=(
        Dim("rows", "independent rows"),
        Dim("columns", "elements per row, normalized together"),
    ),
    dtypes=("f32", "f16", "bf16"),
    layouts=("row",),
    outputs=("y",),
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
)
