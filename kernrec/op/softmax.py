"""Softmax along the last axis: y = exp(x - max) / sum of exp(x - max), for every row."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys("xy", (d["rows"], d["columns"]))


def _flops(d: Names) -> int:
    """Five per element: compare, subtract, exponential, add, multiply. The one division per row is not counted."""
    return 5 * d["rows"] * d["columns"]


def _values(d: Names) -> dict[str, Normal]:
    """Deviation 3, as in trained networks: about columns / exp(9) elements hold most of a row's sum."""
    return {"x": (0, 3)}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    import numpy as np

    x = tensors["x"]
    y = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": y / y.sum(axis=1, keepdims=True)}


SOFTMAX = Op(
    name="softmax",
    title="softmax of each row, y[rows,columns]",
    aliases=("row softmax",),
    dims=(
        Dim("rows", "independent rows"),
        Dim("columns", "elements per row"),
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
