"""Fused multiply-add with activation: y = relu(a x + b), x, b and y vectors of n elements, a one number in memory.

With a = 1 it is where the branches of a residual network join. ReLU is fixed: dimensions are numbers, which an
activation is not, and another one would move the same bytes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    return {"a": (1,), "x": (d["n"],), "b": (d["n"],), "y": (d["n"],)}


def _flops(d: Names) -> int:
    """Three an element: multiply, add, compare."""
    return 3 * d["n"]


def _values(d: Names) -> dict[str, Normal]:
    """A scale that is not 1, so that one left out shows."""
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
