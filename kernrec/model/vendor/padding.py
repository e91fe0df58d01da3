"""Find aligned forms to which matmuls with unaligned rows could be padded."""

from functools import lru_cache
from itertools import product

from kernrec.op import Problem
from kernrec.op.problem import ANY_LAYOUT, LARGEST

_MULTIPLES = (8, 64)
"""Multiples to which rows of a matmul are padded: 16 bytes of 16-bit elements, and a tile."""


@lru_cache(maxsize=256)
def padded(problem: Problem) -> tuple[Problem, ...]:
    """Return the problem and its padded forms; empty if all rows are aligned."""
    sizes = problem.dim
    unaligned = [name for name in _contiguous(problem) if sizes[name] % _MULTIPLES[0]]
    if not unaligned:
        return ()
    return tuple(
        problem.definition.problem(problem.dtype, problem.layout, **sizes | dict(zip(unaligned, changed, strict=True)))
        for changed in product(*(_multiples(sizes[name]) for name in unaligned))
    )


def _multiples(size: int) -> set[int]:
    return {padded for step in (1, *_MULTIPLES) if (padded := -(-size // step) * step) <= LARGEST}


def _contiguous(problem: Problem) -> tuple[str, ...]:
    """Return the dimensions along which some operand of a matmul has contiguous rows."""
    if problem.op != "matmul" or problem.layout == ANY_LAYOUT:  # A problem that a spec declares may have any name.
        return ()
    a, b = tuple(problem.layout)
    return tuple(dict.fromkeys(("k" if a == "n" else "m", "n" if b == "n" else "k", "n")))
