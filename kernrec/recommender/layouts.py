"""Choose the layout of a problem if the user did not fix it, and report the cost of a fixed layout.

A kernel takes about the same time in all of its layouts. So the search tries only the default layout and layouts with
additional kernels. For example, Hopper's asynchronous matmuls need both operands contiguous along k.
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import lru_cache
from math import inf
from typing import Any

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Kernel, kernels_for
from kernrec.kernel.library import triton_kernels
from kernrec.op import Problem
from kernrec.op.equivalent import equivalents
from kernrec.recommender.baselines import PREDICTED, baselines_of
from kernrec.recommender.candidates import CandidateSet, candidate_set
from kernrec.recommender.context import GpuContext
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.request import Query, op_points
from kernrec.recommender.result import Answer
from kernrec.util.engine import query

MATTERS = 0.10
"""Minimum slowdown of a fixed layout, as a fraction, for a note that recommends another layout."""
_GAIN = 0.02
"""Minimum fraction of time that another layout must save. Smaller savings are within the error of predictions."""


Asking = Generator[Problem, CandidateSet | None, Problem]
"""Generator that searches for a layout. It yields problems, receives the candidates (or None) of each, and returns the
problem in the best layout."""


def in_layout(problem: Problem, layout: str) -> Problem:
    """Return the problem in another layout. Raise `UsageError` if the layout does not support its sizes."""
    return problem.definition.problem(problem.dtype, layout, **problem.dim)


def layouts_that_matter(problem: Problem, gpu: GPU) -> tuple[str, ...]:
    """Return the layouts in which additional kernels can run the problem, most kernels first."""
    names, key = problem.names, (problem.op, problem.dtype, problem.layout, gpu.sm)
    if (rules := _RULES.get(key)) is None:
        rules = _RULES[key] = _rules_of_missing_kernels(problem, gpu.sm)
    if not rules:
        return ()
    own = [
        (-count, number, layout)
        for number, (layout, kernels) in enumerate(rules)
        if (count := sum([rules_of_kernel.holds(names) for rules_of_kernel in kernels]))
    ]
    return tuple([layout for _, _, layout in sorted(own)])


_Rules = tuple[tuple[str, tuple[Any, ...]], ...]
_RULES: dict[tuple[str, str, str, int], _Rules] = {}
"""Cached results of `_rules_of_missing_kernels`, keyed by op, data type, layout and compute capability."""


def _rules_of_missing_kernels(problem: Problem, sm: int) -> _Rules:
    """Return the other layouts whose kernels cannot run `problem`, each with these kernels' size constraints."""
    op, dtype, names = problem.definition, problem.dtype, problem.names.keys()
    facts = {name: value for name, value in problem.names.items() if isinstance(value, str)}
    here = _names(problem, sm)
    lacking = {
        other: [kernel for kernel in _kernels(op.name, dtype, other, sm) if kernel.name not in here]
        for other in op.layouts
        if other != problem.layout
    }
    return tuple(
        (
            other,
            tuple(
                query.Space({}, None, {}, facts, [], [rule for rule in kernel.constraints if rule.names <= names], 1)
                for kernel in kernels
            ),
        )
        for other, kernels in lacking.items()
        if kernels
    )


@lru_cache
def _kernels(op: str, dtype: str, layout: str, sm: int) -> tuple[Kernel, ...]:
    able = [kernel for kernel in kernels_for(op, dtype, layout, sm) if kernel.runs_on(dtype, sm)]
    return (*able, *triton_kernels(op, dtype, layout, sm))


def _names(problem: Problem, sm: int) -> frozenset[str]:
    return frozenset(kernel.name for kernel in _kernels(problem.op, problem.dtype, problem.layout, sm))


def lacks(problem: Problem, kernel: Kernel, gpu: GPU) -> bool:
    """Return whether a kernel cannot run in the layout of a problem."""
    return kernel.name not in _names(problem, gpu.sm)


def in_best_layout(context: GpuContext, problem: Problem, others: tuple[str, ...]) -> Asking:
    """Search for the best layout among the layout of `problem` and the layouts in `others`.

    A layout with measurements takes precedence. Without measurements, the costs at the default power limit decide, so
    that the result does not depend on the query.
    """
    if measured := _measured_layout(context, problem, others):
        return measured
    chosen, gpu, best_s = problem, context.gpu, inf
    for other in _problems(problem, others):
        if (candidates := (yield other)) is not None:
            kernel, latency_s = candidates.fastest_kernel
            if latency_s < best_s and lacks(problem, kernel, gpu):
                best_s, chosen = latency_s, other
    # Skip the default layout if the chosen layout offers all kernels of the default layout.
    if chosen is not problem and _names(chosen, gpu.sm) >= _names(problem, gpu.sm):
        return chosen
    default = yield problem
    if chosen is not problem:
        return chosen if default is None or best_s < default.fastest_kernel[1] * (1.0 - _GAIN) else problem
    if default is not None:
        return problem
    for other in _problems(problem, problem.definition.layouts):
        if (yield other) is not None:
            return other
    for other in (problem, *_problems(problem, problem.definition.layouts)):
        if any(baseline.source != PREDICTED for baseline in baselines_of(context, other, DEFAULT_POINT)):
            return other
    return problem


def _problems(problem: Problem, layouts: tuple[str, ...]) -> Iterator[Problem]:
    for layout in layouts:
        if layout != problem.layout:
            with suppress(UsageError):  # Skip layouts that do not support the sizes.
                yield in_layout(problem, layout)


def _measured_layout(context: GpuContext, problem: Problem, others: tuple[str, ...]) -> Problem | None:
    """Return the problem in the first layout with measurements, or None if there are no measurements."""
    if not others:
        return None
    for candidate in (problem, *_problems(problem, others)):
        names = [name for form in equivalents(candidate) for name in _names(form, context.gpu.sm)]
        if names and context.evidence(candidate, names).measured:
            return candidate
    return None


def gain_elsewhere(context: GpuContext, answer: Answer, query: Query) -> Iterator[str]:
    """Yield a note if another layout has a much faster kernel."""
    problem, gpu = answer.problem, answer.gpu
    others = layouts_that_matter(problem, gpu)
    if not answer.recommendations or not others:
        return
    most, fastest = 1.0 + MATTERS, ""
    point = op_points(gpu, query)[0]
    for other in _problems(problem, others):
        if (candidates := _of_missing_kernels(context, problem, other, point)) is None:
            continue
        factor = answer.best.latency_s.value / float(candidates.latency_s[0].min())
        if factor > most:
            most, fastest = factor, other.layout
    if fastest:
        yield f"expected to take {100.0 - 100.0 / most:.0f} % less time in layout {fastest}"


def _of_missing_kernels(
    context: GpuContext, problem: Problem, other: Problem, point: OperatingPoint
) -> CandidateSet | None:
    """Return the candidates for `other`, a problem in another layout, from kernels that cannot run `problem`."""
    try:
        tables = [t for t in context.tables(other) if lacks(problem, t.kernel, context.gpu)]
    except KernrecError:
        return None
    candidates = candidate_set(Space(tables, context.models), other, (point,)) if tables else None
    return candidates if candidates is not None and candidates.kernels else None
