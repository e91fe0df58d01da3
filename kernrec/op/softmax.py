"""Softmax along the last axis: y = exp(x - max) / sum of exp(x - max), a row at a time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys("xy", (d["rows"], d["columns"]))


def _flops(d: Names) -> int:
    """Five an element: compare, subtract, exponential, add, multiply. The one division a row is left out."""
    return 5 * d["rows"] * d["columns"]


def _values(d: Names) -> dict[str, Normal]:
    """Logits as far apart as trained ones: few elements hold most of a row's sum, as many as columns / exp(9)."""
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
        Dim("columns", "elements that a row's weights are shared out over"),
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
