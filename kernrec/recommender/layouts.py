"""The layout of a problem whose layout the user did not fix, and what a fixed one costs.

Kernels that run in several layouts take about as long in each. A layout matters where it has a kernel that another
lacks: the implicit GEMM on tensor cores wants channels last, Hopper's asynchronous products want both operands along k.
So only layouts with such kernels are tried beside the op's default, and one is chosen where such a kernel comes first.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Protocol, TypeVar

from kernrec.errors import KernrecError, NoKernelError, UsageError
from kernrec.gpu import GPU
from kernrec.kernel import Expression, Kernel, kernels_for
from kernrec.kernel.library import triton_kernels
from kernrec.op import Problem
from kernrec.recommender.answer import recommendation
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.infeasible import no_kernel_runs
from kernrec.recommender.request import Objective, Query
from kernrec.recommender.result import Estimate, Recommendation
from kernrec.recommender.sweep import op_points
from kernrec.store import Evidence
from kernrec.util.light_dataclass import dataclass

MATTERS = 0.10
"""A fixed layout that takes this much longer than another one, as a fraction, is worth a note."""
_GAIN = 0.02
"""A smaller gain is none: predictions in two layouts are no surer than that, and another layout has to be stored."""


class Best(Protocol):
    """The first choice of an answer, as far as layouts are compared by it."""

    @property
    def kernel(self) -> Kernel: ...
    @property
    def latency_s(self) -> Estimate: ...


class Answer(Protocol):
    """An answer for a problem, as far as layouts are compared by it."""

    @property
    def problem(self) -> Problem: ...
    @property
    def choices(self) -> Sequence[object]:
        """Empty where stacks alone run it."""

    @property
    def best(self) -> Best: ...


AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True)
class LayoutGain:
    """Another layout in which a problem is faster."""

    layout: str
    factor: float
    """Latency in the fixed layout over that in this one."""

    @property
    def note(self) -> str:
        """The gain as a note."""
        return f"in layout {self.layout} it is expected to take {100.0 - 100.0 / self.factor:.0f} % less time"


def in_layout(problem: Problem, layout: str) -> Problem:
    """The same sizes in another layout; `UsageError` where they do not exist there."""
    return problem.definition.problem(problem.dtype, layout, **problem.dim)


def layouts_that_matter(problem: Problem, gpu: GPU) -> tuple[str, ...]:
    """The layouts that have a kernel for a problem on a GPU which its own layout lacks, those with most of them first.

    Constraints on sizes alone are asked, so a kernel for a few rows is none for many; no space is enumerated.
    """
    names, key = problem.names, (problem.op, problem.dtype, problem.layout, gpu.sm)
    if (rules := _RULES.get(key)) is None:
        rules = _RULES[key] = _own_rules(problem, gpu.sm)
    own = [
        (-count, number, layout)
        for number, (layout, kernels) in enumerate(rules)
        if (count := sum([all(rule.run(names) for rule in of_kernel) for of_kernel in kernels]))
    ]
    return tuple([layout for _, _, layout in sorted(own)])


_Rules = tuple[tuple[str, tuple[tuple[Expression, ...], ...]], ...]
_RULES: dict[tuple[str, str, str, int], _Rules] = {}
"""The results of `_own_rules`, by op, data type, layout and architecture."""


def _own_rules(problem: Problem, sm: int) -> _Rules:
    """By other layout, for each of the kernels that a problem's layout lacks the constraints that are about the problem
    alone; the problem may be any of its data type and layout."""
    op, dtype, names = problem.definition, problem.dtype, problem.names.keys()
    here = _names(op.name, dtype, problem.layout, sm)
    lacking = {
        other: [kernel for kernel in _kernels(op.name, dtype, other, sm) if kernel.name not in here]
        for other in op.layouts
        if other != problem.layout
    }
    return tuple(
        (other, tuple(tuple(rule for rule in kernel.constraints if rule.names <= names) for kernel in kernels))
        for other, kernels in lacking.items()
        if kernels
    )


@lru_cache
def _kernels(op: str, dtype: str, layout: str, sm: int) -> tuple[Kernel, ...]:
    able = [kernel for kernel in kernels_for(op, dtype, layout, sm) if kernel.runs_on(dtype, sm)]
    return (*able, *triton_kernels(op, dtype, layout, sm))


def _names(op: str, dtype: str, layout: str, sm: int) -> frozenset[str]:
    return frozenset(kernel.name for kernel in _kernels(op, dtype, layout, sm))


def lacks(problem: Problem, kernel: Kernel, gpu: GPU) -> bool:
    """Whether a kernel does not run in a problem's layout."""
    return kernel.name not in _names(problem.op, problem.dtype, problem.layout, gpu.sm)


def covers(other: Problem, problem: Problem, gpu: GPU) -> bool:
    """Whether another layout has all kernels that a problem's layout has."""
    here, there = (_names(each.op, each.dtype, each.layout, gpu.sm) for each in (problem, other))
    return there >= here


def answer_in_best_layout(
    context: Context, problem: Problem, gpu: GPU, answer: Callable[[Problem], AnswerT]
) -> AnswerT:
    """The answer for a problem in its layout or in a better one.

    Args:
        context: whose databases may have measured the problem.
        problem: in the op's default layout.
        answer: gives the answer for a problem, or raises `KernrecError`.

    Raises:
        KernrecError: nothing can run the problem in any layout.
    """
    search: Generator[Problem, AnswerT | KernrecError, AnswerT | KernrecError] = _search(context, problem, gpu)
    wanted = next(search)
    try:
        while True:
            wanted = search.send(_tried(answer, wanted))
    except StopIteration as stop:
        result: AnswerT | KernrecError = stop.value
    try:
        if isinstance(result, KernrecError):
            raise result
        return result
    finally:
        del result  # its traceback has this frame: the two would keep each other, and databases open


def answer_in_best_layouts(
    context: Context,
    problems: Sequence[Problem],
    gpu: GPU,
    answer: "Callable[[Sequence[Problem]], Sequence[AnswerT | KernrecError]]",
) -> "list[AnswerT | KernrecError]":
    """The answers of `answer_in_best_layout`, or its errors, for many problems, which are asked about side by side."""
    searches: list[Generator[Problem, AnswerT | KernrecError, AnswerT | KernrecError]] = [
        _search(context, problem, gpu) for problem in problems
    ]
    pending = {number: next(search) for number, search in enumerate(searches)}
    results: dict[int, AnswerT | KernrecError] = {}
    while pending:
        answers = dict(zip(pending, answer(list(pending.values())), strict=True))
        pending = {}
        for number, result in answers.items():
            try:
                pending[number] = searches[number].send(result)
            except StopIteration as stop:
                results[number] = stop.value
    return [results[number] for number in range(len(problems))]


def _tried(answer: Callable[[Problem], AnswerT], problem: Problem) -> "AnswerT | KernrecError":
    try:
        return answer(problem)
    except KernrecError as error:
        return without_frames(error)


def without_frames(error: KernrecError) -> KernrecError:
    """An error that is kept as a value: its frames would keep it in turn, and with it databases open."""
    error.__traceback__ = error.__context__ = None
    return error


def _search(
    context: Context, problem: Problem, gpu: GPU
) -> "Generator[Problem, AnswerT | KernrecError, AnswerT | KernrecError]":
    """The search for the best layout: yields each problem that it wants answered, and is sent the answer or the error.

    Measurements decide before predictions: with rows of the problem in one layout it stays there.
    """
    others = layouts_that_matter(problem, gpu)
    if measured := _measured_layout(context, problem, gpu, others):
        return (yield measured)
    with_own_kernel = list[AnswerT]()
    for other in _problems(problem, others):
        best = yield other
        if not isinstance(best, KernrecError) and best.choices and lacks(problem, best.best.kernel, gpu):
            with_own_kernel.append(best)
    fastest = min(with_own_kernel, key=_latency_s, default=None)
    if fastest is not None and covers(fastest.problem, problem, gpu):  # it came before all that the default has
        return fastest
    default = yield problem
    if not isinstance(default, KernrecError) and default.choices:
        sooner = fastest is not None and _latency_s(fastest) < _latency_s(default) * (1.0 - _GAIN)
        return fastest if fastest is not None and sooner else default
    # Nothing runs it, or it has lines of stacks alone: a layout with kernels is the better answer.
    if fastest is not None:
        return fastest
    # Of other errors a bound or a profile is the reason, and a kernel runs it.
    by_lines = isinstance(default, NoKernelError)
    for other in _problems(problem, problem.definition.layouts):
        best = yield other
        if not isinstance(best, KernrecError) and (best.choices or by_lines):
            return best
    return default


def problem_in_best_layout(context: Context, problem: Problem, gpu: GPU, query: Query) -> Problem:
    """A problem in the layout that `answer_in_best_layout` chooses, of a request that is answered from a context."""
    if not layouts_that_matter(problem, gpu):
        return problem
    point = (op_points(gpu, query)[0],)

    def answer(other: Problem) -> Recommendation:
        tables, evidence = context.tables_and_evidence(other, gpu)
        candidates = candidate_set(tables, other, point, evidence, context.models)
        if not candidates.kernels:
            raise no_kernel_runs(candidates)
        return recommendation(candidates, Query(Objective.LATENCY, top=1), context)

    return answer_in_best_layout(context, problem, gpu, answer).problem


def _latency_s(answer: Answer) -> float:
    return answer.best.latency_s.value


def _problems(problem: Problem, layouts: tuple[str, ...]) -> Iterator[Problem]:
    for layout in layouts:
        if layout != problem.layout:
            with suppress(UsageError):  # sizes that exist in some layouts only
                yield in_layout(problem, layout)


def _measured_layout(context: Context, problem: Problem, gpu: GPU, others: tuple[str, ...]) -> Problem | None:
    """The problem in the layout that databases have rows of, the default one first; None without any rows."""
    if not others:
        return None
    for candidate in (problem, *_problems(problem, others)):
        kernels = _kernels(problem.op, problem.dtype, candidate.layout, gpu.sm)
        if kernels and context.evidence(candidate, gpu, kernels).measured:
            return candidate
    return None


def gain_elsewhere(context: Context, answer: Recommendation, query: Query) -> LayoutGain | None:
    """The layout in which a problem takes much less time than its answer, by a kernel that the answer's layout lacks.

    None where there is none. Only those kernels are estimated, at the first operating point.
    """
    problem, gpu = answer.problem, answer.gpu
    if not answer.choices:
        return None
    best: LayoutGain | None = None
    point = op_points(gpu, query)[0]
    for other in _problems(problem, layouts_that_matter(problem, gpu)):
        if (candidates := _of_own_kernels(context, problem, other, gpu, point)) is None:
            continue
        factor = answer.best.latency_s.value / float(candidates.latency_s[0].min())
        if factor > 1.0 + MATTERS and (best is None or factor > best.factor):
            best = LayoutGain(other.layout, factor)
    return best


def _of_own_kernels(
    context: Context, problem: Problem, other: Problem, gpu: GPU, point: OperatingPoint
) -> CandidateSet | None:
    """The candidates in another layout of the kernels that a problem's layout lacks; None without any."""
    try:
        tables = [t for t in context.tables(other, gpu) if lacks(problem, t.kernel, gpu)]
    except KernrecError:
        return None
    candidates = candidate_set(tables, other, (point,), Evidence(), context.models) if tables else None
    return candidates if candidates is not None and candidates.kernels else None
