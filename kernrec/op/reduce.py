"""Sum along the last axis: y[i] = sum over j of x[i,j]."""

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    return {"x": (d["rows"], d["columns"]), "y": (d["rows"],)}


def _flops(d: Names) -> int:
    """One addition per element (the first is added to zero), as for the sums of a matmul."""
    return d["rows"] * d["columns"]


def _values(d: Names) -> dict[str, Normal]:
    return {"x": (0, 1 / sqrt(d["columns"]))}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    return {"y": tensors["x"].sum(axis=1)}


REDUCE = Op(
    name="reduce",
    title="sum of each row, y[rows] = sum over columns of x",
    aliases=("reduction", "sum", "row sum"),
    dims=(
        Dim("rows", "independent sums"),
        Dim("columns", "elements per row, added up"),
    ),
    dtypes=("f32", "f16", "bf16"),
    layouts=("row",),
    outputs=("y",),
    workload="resnet50",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
)
