"""Fused multiply-add with activation: y = relu(a x + b), with vectors x, b, y and a scalar a in memory.

With a = 1 it is the addition that joins the branches of a residual network. The activation is always ReLU: another
one would move the same bytes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    return {"a": (1,), "x": (d["n"],), "b": (d["n"],), "y": (d["n"],)}


def _flops(d: Names) -> int:
    """Three per element: multiply, add, compare."""
    return 3 * d["n"]


def _values(d: Names) -> dict[str, Normal]:
    """Mean 1 and deviation 0.25: a kernel that skips the scale gives wrong results."""
    return {"a": (1, 0.25)}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    return {"y": np.maximum(tensors["a"] * tensors["x"] + tensors["b"], 0)}


ELEMENTWISE = Op(
    name="elementwise",
    title="fused multiply-add with ReLU, y[n] = relu(a x[n] + b[n])",
    aliases=("pointwise", "fma"),
    dims=(Dim("n", "elements"),),
    dtypes=("f32", "f16", "bf16"),
    layouts=("row",),
    outputs=("y",),
    workload="resnet50",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
)
