"""Matrix multiplication: c = a b, for one pair of matrices or a batch of independent ones.

A layout has a letter for a and one for b: `n` stored as named in the product, row-major, `t` stored transposed. So `nt`
has b as (n, k), the way a linear layer keeps its weights. c is row-major in every layout. A batch of one has matrices,
not stacks of one.
"""

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from kernrec.op.problem import Dim, Names, Normal, Op

if TYPE_CHECKING:
    import numpy as np


def _shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
    m, n, k = d["m"], d["n"], d["k"]
    stack = (d["batch"],) if d["batch"] > 1 else ()
    a = (m, k) if layout[0] == "n" else (k, m)
    b = (k, n) if layout[1] == "n" else (n, k)
    return {"a": stack + a, "b": stack + b, "c": (*stack, m, n)}


def _flops(d: Names) -> int:
    return 2 * d["batch"] * d["m"] * d["n"] * d["k"]


def _values(d: Names) -> dict[str, Normal]:
    return {"b": (0, 1 / sqrt(d["k"]))}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    a, b = (
        tensors[name] if letter == "n" else tensors[name].swapaxes(-1, -2)
        for name, letter in zip("ab", layout, strict=True)
    )
    return {"c": a @ b}


MATMUL = Op(
    name="matmul",
    title="matrix multiplication, c[m,n] = a[m,k] b[k,n]",
    aliases=("mm", "gemm", "matrix multiplication", "bmm", "batched matmul"),
    dims=(
        Dim("m", "rows of a and c"),
        Dim("n", "columns of b and c"),
        Dim("k", "columns of a, rows of b"),
        Dim("batch", "independent products, their matrices one after another", 1, late=True),
    ),
    dtypes=("f32", "f16", "bf16", "f64"),
    layouts=("nn", "nt", "tn", "tt"),
    outputs=("c",),
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
)
