"""Combine the problem that a file gives for each result with the one that the user gives.

An autotuner's log names the op, its sizes and types. A benchmark names some dimensions, and the user adds the others.
Results of other problems are skipped.
"""

from collections.abc import Iterable

from kernrec.errors import UsageError
from kernrec.interop.results import ForeignResult, StatedProblem
from kernrec.kernel import Kernel
from kernrec.op import Op, Problem, find_op
from kernrec.op.dtype import canonical_dtype
from kernrec.util.human import counted


def by_problem(
    results: Iterable[ForeignResult], wanted: StatedProblem, definition: Op | None = None, kernel: Kernel | None = None
) -> tuple[dict[Problem, list[ForeignResult]], list[str]]:
    """Return (results by problem, notes on skipped results).

    Args:
        results: results of a file.
        wanted: problem that the user states.
        definition: op of a spec, if there is one.
        kernel: kernel whose first data type and layout are the defaults; None for the op's.

    Raises:
        UsageError: neither file nor user names the op, a dimension is missing or impossible, or no result has the
            user's problem.
    """
    groups: dict[Problem, list[ForeignResult]] = {}
    problems: dict[StatedProblem, Problem | None] = {}
    other: list[StatedProblem] = []
    for result in results:
        if result.problem not in problems:
            problems[result.problem] = _problem(result.problem, wanted, definition, kernel)
        problem = problems[result.problem]
        if problem is None:
            other.append(result.problem)
        else:
            groups.setdefault(problem, []).append(result)
    if not groups:
        shown = "; ".join(dict.fromkeys(map(_text, other[:1000])))
        raise UsageError(f"none of its results is for the given problem; they are for {shown:.300}")
    return groups, [f"skipped: {counted(len(other), 'result')} of other problems"] if other else []


def _problem(
    stated: StatedProblem, wanted: StatedProblem, definition: Op | None, kernel: Kernel | None
) -> Problem | None:
    """Return the problem from file and user together; None if they contradict each other."""
    if definition is None:
        name = wanted.op or stated.op
        if name is None:
            raise UsageError("it does not say what was measured: give --kernel SOURCE --spec SPEC, or --op and --shape")
        definition = find_op(name)
        if stated.op is not None and find_op(stated.op) != definition:
            return None
    dims = dict(wanted.dims)
    for name, value in stated.dims:
        if dims.setdefault(name, value) != value:
            return None
    dtype, layout = (canonical_dtype(each) if each else None for each in (wanted.dtype, stated.dtype)), wanted.layout
    first, second = dtype
    if (first and second and first != second) or (layout and stated.layout and layout != stated.layout):
        return None
    usual = (None, None) if kernel is None else (kernel.dtypes[0], kernel.layouts[0])
    return definition.problem(first or second or usual[0], layout or stated.layout or usual[1], **dims)


def _text(stated: StatedProblem) -> str:
    sizes = ",".join(f"{name}={value}" for name, value in stated.dims)
    return " ".join(part for part in (stated.op, sizes, stated.dtype, stated.layout) if part)
