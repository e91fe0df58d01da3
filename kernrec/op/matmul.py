"""Matrix multiplication: c = a b, all matrices row-major."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    m, n, k = d["m"], d["n"], d["k"]
    return {"a": (m, k), "b": (k, n), "c": (m, n)}


def _flops(d: Names) -> int:
    return 2 * d["m"] * d["n"] * d["k"]


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    return {"c": tensors["a"] @ tensors["b"]}


MATMUL = Op(
    name="matmul",
    title="matrix multiplication, c[m,n] = a[m,k] b[k,n]",
    aliases=("mm", "gemm", "matrix multiplication"),
    dims=(
        Dim("m", "rows of a and c"),
        Dim("n", "columns of b and c"),
        Dim("k", "columns of a, rows of b"),
    ),
    dtypes=("f32", "f16", "bf16", "f64"),
    layouts=("nn",),
    outputs=("c",),
    weights="b",
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
)
