"""Define the `Recommender`, which every command uses to rank, explain or order configs."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernrec.errors import KernrecError, NoKernelError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.op import Problem
from kernrec.recommender.answer import answer, answer_by_baselines
from kernrec.recommender.baselines import predict_baselines
from kernrec.recommender.candidates import CandidateSet, candidate_set, candidate_sets
from kernrec.recommender.context import Context, GpuContext, Kind, kind_of
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import (
    DEFAULT_POINT,
    MEASURED_CONDITIONS,
    Conditions,
    OperatingPoint,
)
from kernrec.recommender.estimate.physics import fits
from kernrec.recommender.estimate.space import Space
from kernrec.recommender.infeasible import instead_of, no_kernel_runs
from kernrec.recommender.layouts import Asking, gain_elsewhere, in_best_layout, layouts_that_matter
from kernrec.recommender.request import Query, Request, kernel_points, measured_limits, op_points
from kernrec.recommender.result import Answer
from kernrec.store.measurement_log import NO_EVIDENCE

if TYPE_CHECKING:
    from kernrec.recommender.contenders import Regret

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_CACHED_ANSWERS, _CACHED_SETS, _MOST_SETS = 1024, 4, 256
"""Maximum numbers of cached answers, of cached candidate sets, and of candidate sets that `prepare` caches.

A set has about 160 KB. With many more sets, most queries would miss the processor's L2 cache.
"""
_AHEAD = 128


class _Latest(OrderedDict[_Key, _Value]):
    """Cache of the most recently used entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def use(self, key: _Key) -> _Value | None:
        if (value := self.get(key)) is not None:
            self.move_to_end(key)
        return value

    def add(self, key: _Key, value: _Value) -> _Value:
        self[key] = value
        if len(self) > self.most:
            self.popitem(last=False)
        return value

    def shrink(self) -> None:
        while len(self) > self.most:
            self.popitem(last=False)


class _Caches:
    def __init__(self) -> None:
        self.answers = _Latest[tuple[GpuContext, Problem, Query, bool | None], Answer](_CACHED_ANSWERS)
        self.layouts = _Latest[tuple[GpuContext, Problem], Problem](_CACHED_ANSWERS)
        self.sets = _Latest[tuple[GpuContext, Problem, tuple[OperatingPoint, ...]], CandidateSet](_CACHED_SETS)


class Recommender:
    """Recommend configs, with data of the given databases and of the shipped database.

    Create one instance per program, because it caches data and answers. The arguments are those of `Context`. To use an
    open context, pass `context` instead.
    """

    def __init__(
        self,
        databases: Sequence[Path | str] | None = None,
        calibrated: bool = True,
        models: ModelStore | None = None,
        context: Context | None = None,
        triton: bool = True,
    ) -> None:
        self.context = context or Context(databases, calibrated, models, triton=triton)
        self._caches, self._version = _Caches(), self.context.stack.version()

    @cached_property
    def without_triton(self) -> "Recommender":
        """Return a recommender that ignores the library's Triton kernels in requests about an op."""
        return Recommender(context=self.context.without_triton())

    def on(self, gpu: GPU, conditions: Conditions = MEASURED_CONDITIONS) -> "GpuRecommender":
        """Return a recommender for one GPU, and for certain input data and L2 state.

        The recommender shares cached results with earlier calls. A change of a database empties the cache.
        """
        if (version := self.context.stack.version()) != self._version:
            self._caches, self._version = _Caches(), version
        return GpuRecommender(self.context.on(gpu, conditions), self._caches)

    def recommend(
        self,
        op: str,
        gpu: str,
        shape: str | Mapping[str, int],
        dtype: str | None = None,
        layout: str | None = None,
        query: Query | None = None,
    ) -> Answer:
        """Return the answer for one problem of an op. See `Request` and `answer`."""
        return self.answer(Request(gpu, op, None, shape, dtype, layout, query or Query()))

    def answer(self, request: Request) -> Answer:
        """Return the recommendations for a request, best first (fastest first on a Pareto front).

        If no kernel runs the problem, the answer contains only baselines.

        Raises:
            UsageError: a name is unknown, or a value is impossible.
            KernrecError: neither a kernel nor a backend runs the problem, or there are no profiles to predict from.
        """
        on_gpu, query = self.on(find_gpu(request.gpu), request.query.conditions), request.query
        if request.kernel is None:
            return on_gpu.answer_op(request.problem_of(), query, request.layout is not None)
        kernel = self.context.kernel(request.kernel)
        return on_gpu.answer_kernel(kernel, request.problem_of(kernel), query)

    def answer_calls(self, request: Request) -> list[Answer]:
        """Return one answer for each analyzed call of a user's function, such as a captured launch.

        Raises:
            UsageError: as in `answer`.
            KernrecError: no call was analyzed for the GPU, or as in `answer`.
        """
        on_gpu = self.on(find_gpu(request.gpu), request.query.conditions)
        calls = [(kernel, request.problem_of(kernel)) for kernel in self.context.calls(request.kernel or "")]
        analyzed = [call for call in calls if on_gpu.context.find_profiles(*call)]
        if not analyzed:
            return [self.answer(request)]  # `answer` raises an error that names the missing profiles.
        return [on_gpu.answer_kernel(*call, request.query) for call in analyzed]

    def regrets(self, answer: Answer) -> "tuple[Regret, ...]":
        """Return the expected loss from running the top recommendation instead of the best config.

        The result has one element, or two (latency, energy) for a Pareto front. It is empty without recommendations.
        """
        return self.on(answer.gpu, answer.query.conditions).regrets(answer) if answer.recommendations else ()


class GpuRecommender:
    """Recommender for one GPU and one set of conditions: input data and state of L2. Queries must match the conditions.

    Call `Recommender.on` again for each request, because this class does not notice changes of a database.
    """

    def __init__(self, context: GpuContext, caches: _Caches) -> None:
        self.context, self.gpu = context, context.gpu
        self._answers, self._layouts, self._sets = caches.answers, caches.layouts, caches.sets

    def answer_op(self, problem: Problem, query: Query, fixed: bool | None = None) -> Answer:
        """Return the answer for a problem of an op, from a cache if possible.

        Args:
            fixed: False to choose the layout, True to keep it and report faster layouts, None to only keep it.
        """
        fixed = fixed if len(problem.definition.layouts) > 1 else None
        if (cached := self._answers.use(key := (self.context, problem, query, fixed))) is not None:
            return cached
        self._check(query)
        if fixed is None:
            return self._answers.add(key, self._in_some_dtype(problem, query))
        answered = problem if fixed else self.as_answered([problem], op_points(self.gpu, query))[0]
        answer = self._in_some_dtype(answered, query)
        if answered is not problem and answered != problem:  # Comparing identical problems takes longer.
            answer = replace(answer, layout_chosen=True)
        elif fixed and (gains := tuple(gain_elsewhere(self.context, answer, query))):
            answer = replace(answer, remarks=(*answer.remarks, lambda: gains))
        return self._answers.add(key, answer)

    def as_answered(
        self, problems: Sequence[Problem], points: tuple[OperatingPoint, ...] = (DEFAULT_POINT,)
    ) -> list[Problem]:
        """Return each problem in its best layout.

        Args:
            problems: problems in the default layout of their op.
            points: operating points of the answers.
        """
        for start in range(0, len(problems), _AHEAD):
            some = [each for each in problems[start : start + _AHEAD] if (self.context, each) not in self._layouts]
            searches: list[tuple[Problem, Asking, CandidateSet | None]] = []
            alone = True
            for problem in some:
                others = layouts_that_matter(problem, self.gpu)
                if not others and len(some) == 1 and self.candidates_if_any(problem, points) is not None:
                    self._layouts[self.context, problem] = problem  # There is no other layout.
                    continue
                searches.append((problem, in_best_layout(self.context, problem, others), None))
                alone = alone and not others
            # Layouts are compared at the default power limit and clock. Without layouts to compare, prepare the
            # requested points.
            compared_at = points if alone or points[0].is_default(self.gpu) else (DEFAULT_POINT,)
            while searches:
                wanted = list[tuple[Problem, Asking, Problem]]()
                for problem, search, candidates in searches:
                    try:
                        wanted.append((problem, search, search.send(candidates)))
                    except StopIteration as stop:
                        self._layouts[self.context, problem] = stop.value
                if len(wanted) > 1:
                    self.prepare([other for _, _, other in wanted], compared_at)
                searches = [
                    (problem, search, self.candidates_if_any(other, compared_at)) for problem, search, other in wanted
                ]
        answered = [self._layouts[self.context, each] for each in problems]
        self._layouts.shrink()
        return answered

    def candidates_if_any(self, problem: Problem, points: tuple[OperatingPoint, ...]) -> CandidateSet | None:
        """Return the candidates of a problem, or None if no kernel can run the problem."""
        try:
            return self.candidates(problem, points)
        except KernrecError:
            return None

    def answer_many(
        self, problems: Sequence[Problem], query: Query, fixed: bool = False
    ) -> "Iterator[tuple[Problem, CandidateSet | Answer | KernrecError]]":
        """Yield each distinct problem with its candidates, or with an answer or error if there are no candidates.

        Args:
            problems: problems of one op, data type and layout.
            fixed: whether the user fixed the layout.
        """
        self._check(query)
        distinct, points = list(dict.fromkeys(problems)), op_points(self.gpu, query)
        for first in range(0, len(distinct), _AHEAD):
            some = distinct[first : first + _AHEAD]
            free = not fixed and len(some[0].definition.layouts) > 1
            answered = self.as_answered(some, points) if free else some
            wanted = () if query.source else dict.fromkeys(answered)
            sets = {each.problem: each for each in self.candidate_sets(list(wanted), points) if len(each)}
            predict_baselines(self.context, [each for each in answered if each not in sets])
            for original, problem in zip(some, answered, strict=True):
                try:
                    yield original, sets.get(problem) or self.answer_op(problem, query)
                except KernrecError as error:
                    error.__traceback__ = error.__context__ = None  # A traceback would keep databases open.
                    yield original, error

    def _in_some_dtype(self, problem: Problem, query: Query) -> Answer:
        """Return the answer for a problem. If no kernel runs the problem, try similar data types."""
        try:
            return self._new_answer(problem, query)
        except NoKernelError:
            for other, note in instead_of(problem, self.gpu):
                with suppress(NoKernelError):
                    answer = self._new_answer(other, query)
                    return replace(answer, remarks=(partial(tuple, [note]), *answer.remarks))
            raise

    def _new_answer(self, problem: Problem, query: Query) -> Answer:
        source, points = query.source, op_points(self.gpu, query)
        if source != "published":
            try:
                if source == "predicted":  # Use only the analytical model.
                    candidates = _not_empty(candidate_set(Space(self.context.tables(problem)), problem, points))
                else:
                    candidates = self.candidates(problem, points)
            except NoKernelError as error:
                return answer_by_baselines(self.context, problem, query, error)
            if source not in ("transferred", "learned") or (
                (candidates.latency_source == SOURCES.index(Source(source))).any()
            ):
                return answer(candidates, query, self.context)
        reason = NoKernelError(f"only {source} estimates are wanted")
        return answer_by_baselines(self.context, problem, query, reason)

    def answer_kernel(self, kernel: Kernel, problem: Problem, query: Query) -> Answer:
        """Return the answer about one kernel at the query's power limit. Without a limit, sweep over power limits."""
        candidates = self.kernel_candidates(kernel, problem, query)
        return answer(candidates, query, self.context, of_one_kernel=True)

    def kernel_candidates(self, kernel: Kernel, problem: Problem, query: Query) -> CandidateSet:
        """Return all configs of one kernel at the operating points of a query. The set may be empty."""
        self._check(query)
        space = self.context.space(problem, kernel, whole=True)
        return candidate_set(space, problem, kernel_points(self.gpu, query, space.evidence, kernel))

    def candidates(self, problem: Problem, points: tuple[OperatingPoint, ...]) -> CandidateSet:
        """Return the candidates of an op's problem at the given operating points, from a cache if possible.

        If there are several points, the result also includes all power limits with measurements of the problem.

        Raises:
            KernrecError: no config of any kernel can run the problem.
        """
        if (cached := self._sets.use(key := (self.context, problem, points))) is not None:
            return cached
        space = self.context.space(problem)
        if len(points) > 1 and space.evidence.measured:
            measured = measured_limits(self.gpu, space.evidence, [table.kernel for table in space.tables])
            limits = [OperatingPoint(limit) for limit in measured if limit != self.gpu.tdp_w]
            points = tuple(dict.fromkeys([*points, *limits]))
        return self._sets.add(key, _not_empty(candidate_set(space, problem, points)))

    def prepare(self, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]) -> None:
        """Estimate many problems in one batch, so that `candidates` is fast."""
        wanted = list(dict.fromkeys(problems))[:_MOST_SETS]
        distinct = []
        for each in wanted:
            if (key := (self.context, each, points)) in self._sets:
                self._sets.move_to_end(key)
            else:
                distinct.append(each)
        # New candidate sets must not displace earlier sets, which a comparison of layouts or GPUs uses again.
        self._sets.most = max(self._sets.most, min(len(self._sets) + len(distinct), _MOST_SETS))
        for candidates in self.candidate_sets(distinct, points):
            if len(candidates):
                self._sets[self.context, candidates.problem, points] = candidates
        self._sets.shrink()

    def candidates_of_each(
        self, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]
    ) -> Iterator[CandidateSet]:
        """Yield the candidates of each problem in order.

        Raises:
            KernrecError: no config of any kernel can run one of the problems.
        """
        for first in range(0, len(problems), _AHEAD):
            some = problems[first : first + _AHEAD]
            sets = {each.problem: each for each in self.candidate_sets(list(dict.fromkeys(some)), points)}
            for problem in some:
                together = sets.get(problem)
                yield together if together else self.candidates(problem, points)

    def candidate_sets(self, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]) -> Iterator[CandidateSet]:
        """Yield the candidates of each problem, estimated in batches. Skip problems for which a database has rows."""
        alike: dict[Kind, list[Problem]] = {}
        for problem in problems:
            if (prepared := self._sets.get((self.context, problem, points))) is not None:
                yield prepared
            else:
                alike.setdefault(kind_of(problem), []).append(problem)
        context = self.context
        for some in alike.values():
            with suppress(KernrecError):
                tables = context.tables(some[0])
                names = [table.kernel.name for table in tables]
                if all(table.of_any_problem(some[0]) for table in tables):
                    new = [
                        each for each in some if fits(each, self.gpu) and context.evidence(each, names) == NO_EVIDENCE
                    ]
                    yield from candidate_sets(Space(tables, context.models), new, points)

    def regrets(self, answer: Answer) -> "tuple[Regret, ...]":
        """Return the expected losses of an answer with recommendations. See `Recommender.regrets`."""
        from kernrec.recommender.contenders import answer_regrets

        self._check(answer.query)
        problem, kernel, point = answer.problem, answer.kernel, answer.point
        space = self.context.space(problem, kernel)
        evidence, candidates = space.evidence, None
        if evidence == NO_EVIDENCE and kernel is None:
            wanted = self.context, problem, point
            cached = (each for (*key, points), each in self._sets.items() if (*key, points[0]) == wanted)
            candidates = next((each.at(0) for each in cached), None)
        if candidates is None:
            space = Space(space.tables, space.models, whole=bool(evidence.measured or kernel))
            candidates = candidate_set(space, problem, [point])
        return answer_regrets(candidates, evidence, answer.objective)

    def _check(self, query: Query) -> None:
        if query.conditions != self.context.conditions:
            raise UsageError(f"the recommender is for other conditions: call `Recommender.on` with {query.conditions}")


def _not_empty(candidates: CandidateSet) -> CandidateSet:
    if not len(candidates):
        raise no_kernel_runs(candidates)
    return candidates
