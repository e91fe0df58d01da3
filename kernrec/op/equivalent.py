"""Problems that two ops express differently: a matvec of n vectors is a matmul of n rows.

Only this module knows the equivalence. Kernels, measurements and baselines of either op apply to both. `Context.tables`
offers the kernels of every form, a kernel states a problem in its own terms (`Kernel.form`), `kernrec.kernel.binding`
passes it the tensors under the problem's names, and baselines are looked up as a matmul.
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
"""Tensors of the matmul whose rows are the vectors of a matvec, by tensor of the matvec."""
_COLUMN = {"a": "a", "x": "b", "y": "c"}
"""Tensors of the matmul whose only column is the result of a matvec of one vector, by tensor of the matvec."""


def as_matmul(problem: Problem, rows: int | None = None, dtype: str | None = None) -> Problem:
    """Return a matvec as the matmul of a linear layer: vectors are rows, and the matrix is the weights, layout `nt`.

    Problems of other ops are returned unchanged.

    Args:
        rows: Number of vectors, if it differs from the problem's. It may exceed a matvec's limit.
        dtype: Data type, if it differs from the problem's.
    """
    if problem.op != MATVEC.name or problem.layout == ANY_LAYOUT:
        return problem
    return _as_matmul(problem) if rows is None and dtype is None else _matmul(problem, rows, dtype)


def equivalents(problem: Problem) -> tuple[Problem, ...]:
    """Return a problem in the terms of every op that can express it, in a fixed order."""
    if problem.layout == ANY_LAYOUT:  # a kernel's own problem may have the op's name
        return (problem,)
    if problem.op == MATVEC.name:
        return as_matmul(problem), problem
    vectors = _as_matvec(problem) if problem.op == MATMUL.name else None
    return (problem,) if vectors is None else (problem, vectors)


def as_op(problem: Problem, op: str) -> Problem | None:
    """Return a problem in the terms of an op; None if the op cannot express it."""
    if problem.op == op:
        return problem
    return next((form for form in equivalents(problem) if form.op == op), None)


def tensor_names(problem: Problem, op: str) -> Mapping[str, str]:
    """Return the problem's name of each tensor that has a different name in the op's terms."""
    if problem.op == op:
        return _SAME
    if problem.op == MATVEC.name:
        return {of_matmul: of_matvec for of_matvec, of_matmul in _ROWS.items()}
    return _ROWS if problem.sizes["m"] <= MOST_VECTORS and problem.layout == "nt" else _COLUMN


def _matmul(problem: Problem, rows: int | None = None, dtype: str | None = None) -> Problem:
    sizes = problem.sizes
    dims = {"m": rows or sizes["n"], "n": sizes["m"], "k": sizes["k"]}
    return MATMUL.problem(dtype or problem.dtype, "nt", **dims)


_as_matmul = lru_cache(maxsize=1024)(_matmul)


def _as_matvec(problem: Problem) -> Problem | None:
    """Return a matmul with few rows or one column as a matvec; None for any other."""
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
