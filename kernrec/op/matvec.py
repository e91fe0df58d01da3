"""A matrix times 1 to 16 vectors: the linear layers of a language model that generates one token at a time.

y[j,i] = sum over l of a[i,l] x[j,l]. The matrix is row-major, each vector of x and y contiguous: the weights of a
linear layer (output features, input features) and up to 16 tokens. More tokens are a matmul with layout `nt`.
"""

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    m, k, n = d["m"], d["k"], d["n"]
    return {"a": (m, k), "x": (n, k), "y": (n, m)}


def _flops(d: Names) -> int:
    return 2 * d["m"] * d["n"] * d["k"]


def _values(d: Names) -> dict[str, Normal]:
    return {"a": (0, 1 / sqrt(d["k"]))}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    return {"y": tensors["x"] @ tensors["a"].T}


MATVEC = Op(
    name="matvec",
    title="matrix times 1 to 16 vectors, y[n,m] = sum over k of a[m,k] x[n,k]",
    aliases=("mv", "gemv", "matrix vector multiplication"),
    dims=(
        Dim("m", "rows of a, elements of each result"),
        Dim("k", "columns of a, elements of each vector"),
        Dim("n", "vectors", 1, maximum=16),
    ),
    dtypes=("f32", "f16", "bf16"),
    layouts=("row",),
    outputs=("y",),
    workload="llama-3-8b-decode",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
)
