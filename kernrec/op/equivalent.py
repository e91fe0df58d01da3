"""Convert problems that two ops can express: a matvec with n vectors is a matmul with n rows.

Kernels, measurements and baselines of a problem also apply to its equivalent.
"""

from collections.abc import Mapping
from functools import lru_cache

from kernrec.op.matmul import MATMUL
from kernrec.op.memory_bound import MATVEC
from kernrec.op.problem import ANY_LAYOUT, Problem

MOST_VECTORS = next(dim.maximum for dim in MATVEC.dims if dim.name == "n")

_SAME: Mapping[str, str] = {}
_ROWS = {"a": "b", "x": "a", "y": "c"}
"""Matmul tensor for each matvec tensor, in a matmul whose matrix `a` contains the vectors as rows."""
_COLUMN = {"a": "a", "x": "b", "y": "c"}
"""Matmul tensor for each matvec tensor, in a matmul whose matrix `b` is a single vector."""


def as_matmul(problem: Problem, rows: int | None = None) -> Problem:
    """Convert a matvec to the matmul (layout `nt`) of a linear layer. Return any other problem unchanged.

    The vectors become rows of the first matrix. `rows` sets another number of rows, which may exceed a matvec's limit.
    """
    if problem.op != MATVEC.name or problem.layout == ANY_LAYOUT:
        return problem
    return _as_matmul(problem) if rows is None else _matmul(problem, rows)


def equivalents(problem: Problem) -> tuple[Problem, ...]:
    """Return the problem and its equivalents, one per op, in a fixed order."""
    if problem.layout == ANY_LAYOUT:  # A spec's own op has no equivalent, even if its name is `matmul` or `matvec`.
        return (problem,)
    if problem.op == MATVEC.name:
        return as_matmul(problem), problem
    sizes = problem.sizes
    if problem.op != MATMUL.name or problem.layout[0] == "t" or (sizes["m"] > MOST_VECTORS and sizes["n"] > 1):
        return (problem,)
    vectors = _few_vectors(problem)
    return (problem,) if vectors is None else (problem, vectors)


def as_op(problem: Problem, op: str) -> Problem | None:
    """Return the problem as a problem of `op`, or None if `op` cannot express it."""
    if problem.op == op:
        return problem
    return next((form for form in equivalents(problem) if form.op == op), None)


def tensor_names(problem: Problem, op: str) -> Mapping[str, str]:
    """Return the name of the tensor in `problem` for each tensor of the equivalent op `op`."""
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


@lru_cache(maxsize=1024)
def _few_vectors(problem: Problem) -> Problem | None:
    sizes, layout = problem.sizes, problem.layout
    plain = sizes["batch"] == 1 and not sizes["bias"] and not sizes["activation"]
    if not plain or problem.dtype not in MATVEC.dtypes:
        return None
    if sizes["m"] <= MOST_VECTORS and layout == "nt":
        return MATVEC.problem(problem.dtype, None, m=sizes["n"], k=sizes["k"], n=sizes["m"])
    return MATVEC.problem(problem.dtype, None, m=sizes["m"], k=sizes["k"]) if sizes["n"] == 1 else None
