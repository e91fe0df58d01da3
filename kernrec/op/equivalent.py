"""Convert problems that two ops can express: a matvec of n vectors is a matmul of n rows.

Kernels, measurements and baselines of either op apply to both. `Context.tables` includes the kernels of every form.
`Kernel.form` converts a problem to the kernel's op, and `kernrec.kernel.binding` maps the tensors' names. Baselines are
looked up as matmuls.
"""

from collections.abc import Mapping
from functools import lru_cache

from kernrec.op.matmul import MATMUL
from kernrec.op.memory_bound import MATVEC
from kernrec.op.problem import ANY_LAYOUT, Problem

MOST_VECTORS = next(dim.maximum for dim in MATVEC.dims if dim.name == "n")
"""Largest number of vectors of a `matvec`."""

_SAME: Mapping[str, str] = {}
_ROWS = {"a": "b", "x": "a", "y": "c"}
"""Tensors of a matmul by tensor of the matvec, if the vectors are the matmul's rows."""
_COLUMN = {"a": "a", "x": "b", "y": "c"}
"""Tensors of a matmul by tensor of the matvec, if the matmul has one column, the matvec's result."""


def as_matmul(problem: Problem, rows: int | None = None) -> Problem:
    """Return a matvec as the matmul of a linear layer: vectors are rows, and the matrix is the weights, layout `nt`.

    Problems of other ops are returned unchanged.

    Args:
        rows: Number of vectors, if it differs from the problem's. It may exceed a matvec's limit.
    """
    if problem.op != MATVEC.name or problem.layout == ANY_LAYOUT:
        return problem
    return _as_matmul(problem) if rows is None else _matmul(problem, rows)


def equivalents(problem: Problem) -> tuple[Problem, ...]:
    """Return the forms of a problem in every op that can express it, in a fixed order."""
    if problem.layout == ANY_LAYOUT:  # A problem that a kernel declares may have the op's name.
        return (problem,)
    if problem.op == MATVEC.name:
        return as_matmul(problem), problem
    vectors = _as_matvec(problem) if problem.op == MATMUL.name else None
    return (problem,) if vectors is None else (problem, vectors)


def as_op(problem: Problem, op: str) -> Problem | None:
    """Convert a problem to an op; return None if the op cannot express it."""
    if problem.op == op:
        return problem
    return next((form for form in equivalents(problem) if form.op == op), None)


def tensor_names(problem: Problem, op: str) -> Mapping[str, str]:
    """Map tensor names of the op to those of the problem, where they differ."""
    if problem.op == op:
        return _SAME
    if problem.op == MATVEC.name:
        return {of_matmul: of_matvec for of_matvec, of_matmul in _ROWS.items()}
    return _ROWS if problem.sizes["m"] <= MOST_VECTORS and problem.layout == "nt" else _COLUMN


def _matmul(problem: Problem, rows: int | None = None) -> Problem:
    sizes = problem.sizes
    dims = {"m": rows or sizes["n"], "n": sizes["m"], "k": sizes["k"]}
    return MATMUL.problem(problem.dtype, "nt", **dims)


_as_matmul = lru_cache(maxsize=1024)(_matmul)


def _as_matvec(problem: Problem) -> Problem | None:
    """Convert a matmul with few rows or one column to a matvec; return None for any other matmul."""
    sizes = problem.sizes
    if problem.layout[0] == "t" or (sizes["m"] > MOST_VECTORS and sizes["n"] > 1):
        return None
    return _few_vectors(problem)


@lru_cache(maxsize=1024)
def _few_vectors(problem: Problem) -> Problem | None:
    sizes, layout = problem.sizes, problem.layout
    plain = sizes["batch"] == 1 and not sizes["bias"] and not sizes["activation"]
    if not plain or problem.dtype not in MATVEC.dtypes:
        return None
    if sizes["m"] <= MOST_VECTORS and layout == "nt":
        return MATVEC.problem(problem.dtype, None, m=sizes["n"], k=sizes["k"], n=sizes["m"])
    return MATVEC.problem(problem.dtype, None, m=sizes["m"], k=sizes["k"]) if sizes["n"] == 1 else None
