"""Matrix multiplication: c = a b, for one pair of matrices or a batch of independent ones.

A layout has one letter for a and one for b: `n` is row-major as written in the product, `t` is stored transposed. So
`nt` has b as (n, k), like the weights of a linear layer. c is row-major in every layout. A batch of one has
tensors of two axes.

The epilogue of a linear layer is optional: a bias for every column, the same for all products of a batch, then an
activation. FLOPs are those of the product alone, as in published figures. Dtype `tf32` is f32 in memory, multiplied
as on tensor cores: a and b rounded to 10 bits of mantissa, sums in f32. Its reference is that of f32.
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
    bias = {"bias": (n,)} if d["bias"] else {}
    return {"a": stack + a, "b": stack + b, **bias, "c": (*stack, m, n)}


def _flops(d: Names) -> int:
    return 2 * d["batch"] * d["m"] * d["n"] * d["k"]


def _values(d: Names) -> dict[str, Normal]:
    return {"b": (0, 1 / sqrt(d["k"]))}


def _reference(d: Names, layout: str, tensors: "Mapping[str, np.ndarray]") -> "dict[str, np.ndarray]":
    a, b = (
        tensors[name] if letter == "n" else tensors[name].swapaxes(-1, -2)
        for name, letter in zip("ab", layout, strict=True)
    )
    c = a @ b + tensors["bias"] if d["bias"] else a @ b
    return {"c": _activated(c, d["activation"])}


def _activated(x: "np.ndarray", activation: int) -> "np.ndarray":
    """x after activation 0 to 3: none, ReLU, GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415) or SiLU."""
    import numpy as np

    if activation == 2:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if activation == 3:
        return x * 0.5 * (1 + np.tanh(x / 2))  # the logistic function, without overflow
    return np.maximum(x, 0) if activation == 1 else x


_BIAS = {
    "issue.fma32": 1.0, "issue.alu": 1.0, "issue.wide64": 1.0, "issue.imad": 0.5, "issue.ld_global": 0.5,
    "global.bias.read_sectors": 0.5,
}  # fmt: skip
_ACTIVATIONS: tuple[dict[str, float], ...] = (
    {},
    {"issue.alu": 1.0, "issue.setp": 1.0},
    *({"issue.fma32": 5.0, "issue.mufu": 2.0},) * 2,
)
"""By number. GELU and SiLU need an exponential and a division. These counts, and those of the bias, were counted by the
emulator on the tiled kernels (`tests/model/test_finish.py`)."""


def _finishing(d: Names) -> dict[str, float]:
    counts = dict(_BIAS) if d["bias"] else {}
    for metric, count in _ACTIVATIONS[d["activation"]].items():
        counts[metric] = counts.get(metric, 0.0) + count
    return counts


MATMUL = Op(
    name="matmul",
    title="matrix multiplication, c[m,n] = activation(a[m,k] b[k,n] + bias[n])",
    aliases=("mm", "gemm", "matrix multiplication", "bmm", "batched matmul"),
    dims=(
        Dim("m", "rows of a and c"),
        Dim("n", "columns of b and c"),
        Dim("k", "columns of a, rows of b"),
        Dim("batch", "independent products of contiguous matrices", 1, late=True),
        Dim("bias", "1: a bias is added to every column of c", 0, minimum=0, maximum=1, late=True),
        Dim("activation", "of c: 0 none, 1 ReLU, 2 GELU (tanh form), 3 SiLU", 0, minimum=0, maximum=3, late=True),
    ),
    dtypes=("f32", "f16", "bf16", "f64", "tf32"),
    layouts=("nn", "nt", "tn", "tt"),
    outputs=("c",),
    workload="llama-3-8b-prefill",
    shapes=_shapes,
    flops=_flops,
    reference=_reference,
    values=_values,
    finishing=_finishing,
)
