"""Transposition of a matrix: y[j,i] = x[i,j], both row-major."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    return {"x": (d["rows"], d["columns"]), "y": (d["columns"], d["rows"])}


def _flops(d: Names) -> int:
    """Zero: a transposition only moves data."""
    return 0


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    return {"y": tensors["x"].T.copy()}


TRANSPOSE = Op(
    name="transpose",
    title="transposition, y[columns,rows] = x[rows,columns]",
    aliases=("transposition",),
    dims=(
        Dim("rows", "rows of x, columns of y"),
        Dim("columns", "columns of x, rows of y"),
    ),
    dtypes=("f32", "f16", "bf16"),
    layouts=("row",),
    outputs=("y",),
    workload="stable-diffusion-unet",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
)
