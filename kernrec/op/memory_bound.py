"""Define memory-bound ops on row-major tensors: ops on rows or vectors, and a matrix times a few vectors."""

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

from kernrec.op.problem import Dim, Names, Op

if TYPE_CHECKING:
    import numpy as np

    Tensors = Mapping[str, np.ndarray]

EPSILON = 1e-5
"""Constant under the square root in layernorm and rmsnorm, as in PyTorch."""
_ROWS = ("m", "batch", "b", "tokens")
_COLUMNS = ("n", "cols", "hidden", "hidden_size", "dim")


def _op(**fields: Any) -> Op:
    return Op(dtypes=("f32", "f16", "bf16"), layouts=("row",), outputs=("y",), **fields)


def _row_op(columns: str, flops: int, parameters: tuple[str, ...] = (), **fields: Any) -> Op:
    """Return an op on independent rows.

    Args:
        columns: meaning of the dimension `columns`.
        flops: FLOPs per element.
        parameters: tensors with one element per column.
    """

    def shapes(d: Names, layout: str) -> dict[str, tuple[int, ...]]:
        whole = d["rows"], d["columns"]
        return {"x": whole, **dict.fromkeys(parameters, (d["columns"],)), "y": whole}

    dims = Dim("rows", "independent rows", aliases=_ROWS), Dim("columns", columns, aliases=_COLUMNS)
    return _op(dims=dims, shapes=shapes, flops=lambda d: flops * d["rows"] * d["columns"], **fields)


def _softmax(d: Names, layout: str, tensors: "Tensors") -> "dict[str, np.ndarray]":
    import numpy as np

    x = tensors["x"]
    y = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": y / y.sum(axis=1, keepdims=True)}


SOFTMAX = _row_op(
    columns="elements per row",
    flops=5,  # compare, subtract, exponential, add, multiply (the division per row is not counted)
    name="softmax",
    title="softmax of each row, y[rows,columns]",  # y = exp(x - max) / sum of exp(x - max)
    aliases=("row softmax",),
    workload="gpt2",
    reference=_softmax,
    # With a standard deviation of 3, about columns / exp(9) elements dominate the sum of a row, as in trained networks.
    values=lambda d: {"x": (0, 3)},
)


def _layernorm(d: Names, layout: str, tensors: "Tensors") -> "dict[str, np.ndarray]":
    import numpy as np

    centered = tensors["x"] - tensors["x"].mean(axis=1, keepdims=True)  # Ba et al. 2016, arXiv 1607.06450
    deviation = np.sqrt((centered**2).mean(axis=1, keepdims=True) + EPSILON)
    return {"y": centered / deviation * tensors["weight"] + tensors["bias"]}


LAYERNORM = _row_op(
    columns="elements per row, normalized together",
    parameters=("weight", "bias"),
    flops=7,  # mean (add), subtract, variance (multiply-add), scale, times weight, plus bias
    name="layernorm",
    title="layer normalization of each row, y = (x - mean) / sqrt(variance + epsilon) * weight + bias",
    aliases=("layer normalization", "layer normalisation", "ln"),
    workload="gpt2",
    reference=_layernorm,
    # With these values, a kernel that omits the mean or the variance gives wrong results. Weights are near 1, as in
    # trained networks.
    values=lambda d: {"x": (1, 2), "weight": (1, 0.25), "bias": (0, 0.25)},
)


def _rmsnorm(d: Names, layout: str, tensors: "Tensors") -> "dict[str, np.ndarray]":
    import numpy as np

    x = tensors["x"]  # Zhang and Sennrich 2019, arXiv 1910.07467
    return {"y": x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * tensors["weight"]}


RMSNORM = _row_op(
    columns="elements per row, normalized together",
    parameters=("weight",),
    flops=4,  # multiply-add for the mean square, scale, multiply by the weight
    name="rmsnorm",
    title="root-mean-square normalization of each row, y = x / sqrt(mean of x^2 + epsilon) * weight",
    aliases=("root mean square normalization", "root mean square normalisation", "rms"),
    workload="llama-3-8b-prefill",
    reference=_rmsnorm,
    # These values reveal kernels that do not divide by the root mean square. Weights are near 1, as in real networks.
    values=lambda d: {"x": (0, 2), "weight": (1, 0.25)},
)


REDUCE = _op(
    name="reduce",
    title="sum of each row, y[rows] = sum over columns of x",
    aliases=("reduction", "sum", "row sum"),
    dims=(
        Dim("rows", "independent sums", aliases=_ROWS),
        Dim("columns", "elements per row, added up", aliases=_COLUMNS),
    ),
    workload="resnet50",
    shapes=lambda d, layout: {"x": (d["rows"], d["columns"]), "y": (d["rows"],)},
    flops=lambda d: d["rows"] * d["columns"],  # Count the addition of the first element to zero, as in a matmul.
    reference=lambda d, layout, tensors: {"y": tensors["x"].sum(axis=1)},
    values=lambda d: {"x": (0, 1 / sqrt(d["columns"]))},
)


TRANSPOSE = _op(
    name="transpose",
    title="transposition, y[columns,rows] = x[rows,columns]",
    aliases=("transposition",),
    dims=(
        Dim("rows", "rows of x, columns of y", aliases=_ROWS),
        Dim("columns", "columns of x, rows of y", aliases=_COLUMNS),
    ),
    workload="stable-diffusion-unet",
    shapes=lambda d, layout: {"x": (d["rows"], d["columns"]), "y": (d["columns"], d["rows"])},
    flops=lambda d: 0,
    reference=lambda d, layout, tensors: {"y": tensors["x"].T.copy()},
)


def _elementwise(d: Names, layout: str, tensors: "Tensors") -> "dict[str, np.ndarray]":
    import numpy as np

    return {"y": np.maximum(tensors["a"] * tensors["x"] + tensors["b"], 0)}


# The op also represents kernels that move as many bytes: the addition in a residual block (a = 1), and activations
# other than ReLU.
ELEMENTWISE = _op(
    name="elementwise",
    title="fused multiply-add with ReLU, y[n] = relu(a x[n] + b[n])",
    aliases=("pointwise", "fma"),
    dims=(Dim("n", "elements", aliases=("elements", "size", "length")),),
    workload="resnet50",
    shapes=lambda d, layout: {"a": (1,), "x": (d["n"],), "b": (d["n"],), "y": (d["n"],)},
    flops=lambda d: 3 * d["n"],  # multiply, add, compare
    reference=_elementwise,
    values=lambda d: {"a": (1, 0.25)},  # If a were 1, a kernel that omits the scale would pass the check.
)


# A matvec is a linear layer that generates up to 16 tokens, with weights of shape (output features, input features). A
# layer with more tokens is a matmul with layout `nt`.
MATVEC = _op(
    name="matvec",
    title="matrix times 1 to 16 vectors, y[n,m] = sum over k of a[m,k] x[n,k]",
    aliases=("mv", "gemv", "matrix vector multiplication"),
    dims=(
        Dim("m", "rows of a, elements of each result"),
        Dim("k", "columns of a, elements of each vector"),
        Dim("n", "vectors", 1, maximum=16, aliases=("b", "batch", "vectors")),
    ),
    workload="llama-3-8b-decode",
    shapes=lambda d, layout: {"a": (d["m"], d["k"]), "x": (d["n"], d["k"]), "y": (d["n"], d["m"])},
    flops=lambda d: 2 * d["m"] * d["n"] * d["k"],
    reference=lambda d, layout, tensors: {"y": tensors["x"] @ tensors["a"].T},
    values=lambda d: {"a": (0, 1 / sqrt(d["k"]))},
)
