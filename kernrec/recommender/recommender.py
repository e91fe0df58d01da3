"""Define the `Recommender`, which every command uses to rank, explain or order configs."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernrec.errors import KernrecError, NoKernelError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.model.analytical.spread import SOURCES, Source
from kernrec.op import Problem
from kernrec.recommender.answer import answer, answer_by_baselines
from kernrec.recommender.baselines import predict_baselines
from kernrec.recommender.candidates import CandidateSet, candidate_set, candidate_sets
from kernrec.recommender.context import Context, Kind, kind_of
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, Conditions, OperatingPoint
from kernrec.recommender.estimate.physics import fits
from kernrec.recommender.estimate.prediction import Space
from kernrec.recommender.infeasible import instead_of, no_kernel_runs
from kernrec.recommender.layouts import Asking, Fastest, gain_elsewhere, in_best_layout, layouts_that_matter
from kernrec.recommender.request import Query, Request, kernel_points, measured_limits, op_points
from kernrec.recommender.result import Answer
from kernrec.store import Evidence

if TYPE_CHECKING:
    from kernrec.recommender.contenders import Regret

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_CACHED_ANSWERS, _CACHED_SETS, _MOST_SETS = 1024, 16, 256
"""Maximum number of cached answers, default maximum of cached candidate sets, and maximum of sets that `prepare`
estimates per batch."""
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
            self.shrink()
        return value

    def shrink(self) -> None:
        while len(self) > self.most:
            self.popitem(last=False)


class Recommender:
    """Answer requests with data of the given databases and of the shipped database.

    Reuse one instance in a program, because it caches static tables, candidate sets and answers. The arguments are
    those of `Context`; pass `context` to use an open one.
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
        self._answers = _Latest[tuple[Problem, str, Query, bool | None], Answer](_CACHED_ANSWERS)
        self._layouts = _Latest[tuple[Problem, str], Problem](_CACHED_ANSWERS)
        self._sets = _Latest[tuple[Problem, str, tuple[OperatingPoint, ...]], CandidateSet](_CACHED_SETS)
        self._version = self.context.stack.version()
        self._others: dict[Conditions, Recommender] = {}

    def for_conditions(self, conditions: Conditions) -> "Recommender":
        """Return a recommender for other conditions that shares databases and models with this one."""
        if conditions == self.context.conditions:
            return self
        if conditions not in self._others:
            other = self._others[conditions] = type(self)(context=self.context.for_conditions(conditions))
            other._others[self.context.conditions] = self
        return self._others[conditions]

    def recommend(
        self,
        op: str,
        gpu: str,
        shape: str | Mapping[str, int],
        dtype: str | None = None,
        layout: str | None = None,
        query: Query | None = None,
    ) -> Answer:
        """Return the recommendations for one problem of an op (see `Request` and `answer`)."""
        return self.answer(Request(gpu, op, None, shape, dtype, layout, query or Query()))

    def answer(self, request: Request) -> Answer:
        """Return the recommendations for a request, best first (fastest first on a Pareto front).

        If no kernel runs the problem, the answer contains only baselines.

        Raises:
            UsageError: a name is unknown, or a value is impossible.
            KernrecError: neither a kernel nor a backend runs the problem, or there are no profiles to predict from.
        """
        gpu = find_gpu(request.gpu)
        if request.kernel is None:
            return self.answer_op(request.problem_of(), gpu, request.query, request.layout is not None)
        kernel = self.context.kernel(request.kernel)
        return self.answer_kernel(kernel, request.problem_of(kernel), gpu, request.query)

    def answer_op(self, problem: Problem, gpu: GPU, query: Query, fixed: bool | None = None) -> Answer:
        """Return the answer for a problem of an op, cached until a database changes.

        `fixed` states whether the user fixed the layout. If it is None, the answer is in the problem's layout,
        and other layouts are not compared.
        """
        if query.conditions != self.context.conditions:
            return self.for_conditions(query.conditions).answer_op(problem, gpu, query, fixed)
        fixed = fixed if len(problem.definition.layouts) > 1 else None
        self._forget_if_changed()
        if (cached := self._answers.use(key := (problem, gpu.name, query, fixed))) is not None:
            return cached
        if fixed is None:
            return self._answers.add(key, self._in_some_dtype(problem, gpu, query))
        answered = problem if fixed else self.as_answered([problem], gpu, op_points(gpu, query))[0]
        answer = self._in_some_dtype(answered, gpu, query)
        if answered != problem:
            answer = replace(answer, layout_chosen=True)
        elif fixed and (gains := tuple(gain_elsewhere(self.context, answer, query))):
            answer = replace(answer, remarks=(*answer.remarks, lambda: gains))
        return self._answers.add(key, answer)

    def as_answered(
        self, problems: Sequence[Problem], gpu: GPU, points: tuple[OperatingPoint, ...] = (DEFAULT_POINT,)
    ) -> list[Problem]:
        """Return each problem in the layout that its answer has if the user does not fix the layout.

        `problems` are in the default layout of their op. `points` contains the operating points of the answers, which
        may reuse the estimates.
        """
        self._forget_if_changed()
        for start in range(0, len(problems), _AHEAD):
            some = [each for each in problems[start : start + _AHEAD] if (each, gpu.name) not in self._layouts]
            searches, alone = list[tuple[Problem, Asking, Fastest | None]](), True
            for problem in some:
                others = layouts_that_matter(problem, gpu)
                searches.append((problem, in_best_layout(self.context, problem, gpu, others), None))
                alone = alone and not others
            # Layouts are compared at the default point. Without other layouts, estimate at the answers' points.
            compared_at = points if alone or points[0].is_default(gpu) else (DEFAULT_POINT,)
            while searches:
                wanted = list[tuple[Problem, Asking, Problem]]()
                for problem, search, fastest in searches:
                    try:
                        wanted.append((problem, search, search.send(fastest)))
                    except StopIteration as stop:
                        self._layouts[problem, gpu.name] = stop.value
                if len(wanted) > 1:
                    self.prepare([other for _, _, other in wanted], gpu, compared_at)
                searches = [
                    (problem, search, self.fastest(other, gpu, compared_at)) for problem, search, other in wanted
                ]
        answered = [self._layouts[each, gpu.name] for each in problems]
        self._layouts.shrink()
        return answered

    def fastest(self, problem: Problem, gpu: GPU, points: tuple[OperatingPoint, ...]) -> Fastest | None:
        """Return the fastest kernel for a problem at the first operating point, or None if no kernel can run it."""
        try:
            candidates = self._cached_candidates(problem, gpu, points)
        except KernrecError:
            return None
        number, latency_s = candidates.ranked.ranking.fastest_kernel(candidates.part)
        return Fastest(candidates.ranked.kernels[number].costs.table.kernel, latency_s)

    def answer_calls(self, request: Request) -> list[Answer]:
        """Return one answer for each analyzed call of a user's function, such as one for each captured launch.

        Raises:
            UsageError: as in `answer`.
            KernrecError: no call was analyzed for the GPU, or as in `answer`.
        """
        gpu = find_gpu(request.gpu)
        calls = [(kernel, request.problem_of(kernel)) for kernel in self.context.calls(request.kernel or "")]
        analyzed = [(k, problem) for k, problem in calls if self.context.find_profiles(k, problem, gpu)]
        if not analyzed:
            return [self.answer(request)]  # This raises an error, because no call was analyzed.
        return [self.answer_kernel(kernel, problem, gpu, request.query) for kernel, problem in analyzed]

    def answer_many(
        self, problems: Sequence[Problem], gpu: GPU, query: Query, fixed: bool = False
    ) -> "Iterator[tuple[Problem, CandidateSet | Answer | KernrecError]]":
        """Yield each distinct problem with its candidates, estimated in batches.

        If a batch cannot estimate a problem, yield the problem with its answer or with the error. The problems have the
        same op, data type and layout. `fixed` states whether the user fixed the layout.
        """
        if query.conditions != self.context.conditions:
            yield from self.for_conditions(query.conditions).answer_many(problems, gpu, query, fixed)
            return
        distinct, points = list(dict.fromkeys(problems)), op_points(gpu, query)
        for first in range(0, len(distinct), _AHEAD):
            some = distinct[first : first + _AHEAD]
            free = not fixed and len(some[0].definition.layouts) > 1
            answered = self.as_answered(some, gpu, points) if free else some
            wanted = () if query.source else dict.fromkeys(answered)
            sets = {each.problem: each for each in self.candidate_sets(list(wanted), gpu, points) if len(each)}
            predict_baselines(self.context, [each for each in answered if each not in sets], gpu)
            for original, problem in zip(some, answered, strict=True):
                try:
                    yield original, sets.get(problem) or self.answer_op(problem, gpu, query)
                except KernrecError as error:
                    error.__traceback__ = error.__context__ = None  # A traceback's frames would keep databases open.
                    yield original, error

    def _in_some_dtype(self, problem: Problem, gpu: GPU, query: Query) -> Answer:
        """Return the answer for a problem, if necessary in another data type.

        The data type is replaced if no kernel runs the problem and the GPU cannot compute in the problem's data type.
        """
        try:
            return self._new_answer(problem, gpu, query)
        except NoKernelError:
            for other, note in instead_of(problem, gpu):
                with suppress(NoKernelError):
                    answer = self._new_answer(other, gpu, query)
                    return replace(answer, remarks=(partial(tuple, [note]), *answer.remarks))
            raise

    def _new_answer(self, problem: Problem, gpu: GPU, query: Query) -> Answer:
        if query.source != "published":
            try:
                candidates = self._of_source(problem, gpu, query)
            except NoKernelError as reason:
                return answer_by_baselines(self.context, problem, gpu, query, reason)
            if query.source not in ("transferred", "learned"):
                return answer(candidates, query, self.context)
            if (candidates.latency_source == SOURCES.index(Source(query.source))).any():
                return answer(candidates, query, self.context)
        alone = NoKernelError(f"only {query.source} estimates are wanted")
        return answer_by_baselines(self.context, problem, gpu, query, alone)

    def _of_source(self, problem: Problem, gpu: GPU, query: Query) -> CandidateSet:
        """Return the candidates of a problem. If the query's source is `predicted`, use only the analytical model."""
        points = op_points(gpu, query)
        if query.source != "predicted":
            return self._cached_candidates(problem, gpu, points)
        candidates = candidate_set(self.context.tables(problem, gpu), problem, points, Evidence())
        if not len(candidates):
            raise no_kernel_runs(candidates)
        return candidates

    def answer_kernel(self, kernel: Kernel, problem: Problem, gpu: GPU, query: Query) -> Answer:
        """Return the answer about one kernel at the requested power limit. Without a limit, sweep over limits."""
        if query.conditions != self.context.conditions:
            return self.for_conditions(query.conditions).answer_kernel(kernel, problem, gpu, query)
        candidates = self.kernel_candidates(kernel, problem, gpu, query)
        return answer(candidates, query, self.context, of_one_kernel=True)

    def kernel_candidates(self, kernel: Kernel, problem: Problem, gpu: GPU, query: Query) -> CandidateSet:
        """Return all configs of one kernel at the operating points of a query. The set may be empty."""
        if query.conditions != self.context.conditions:
            return self.for_conditions(query.conditions).kernel_candidates(kernel, problem, gpu, query)
        table = self.context.kernel_table(kernel, problem, gpu)
        evidence = self.context.evidence(problem, gpu, [kernel])
        points = kernel_points(gpu, query, evidence, kernel)
        return candidate_set([table], problem, points, evidence, self.context.models, whole_space=True)

    def candidates(self, problem: Problem, gpu: GPU, points: tuple[OperatingPoint, ...]) -> CandidateSet:
        """Return the candidates of an op's problem at the given operating points, from a cache if possible.

        Raises:
            KernrecError: no config of any kernel can run the problem.
        """
        self._forget_if_changed()
        return self._cached_candidates(problem, gpu, points)

    def _cached_candidates(self, problem: Problem, gpu: GPU, points: tuple[OperatingPoint, ...]) -> CandidateSet:
        if (cached := self._sets.use(key := (problem, gpu.name, points))) is not None:
            return cached
        return self._sets.add(key, self._candidates(problem, gpu, points))

    def prepare(self, problems: Sequence[Problem], gpu: GPU, points: tuple[OperatingPoint, ...]) -> None:
        """Estimate many problems in one batch, so that later calls of `candidates` are fast."""
        self._forget_if_changed()
        wanted = list(dict.fromkeys(problems))[:_MOST_SETS]
        # Make room for two candidate sets per problem, because a comparison of layouts prepares two layouts.
        self._sets.most = max(self._sets.most, min(2 * len(wanted), _MOST_SETS))
        there = [key for each in wanted if (key := (each, gpu.name, points)) in self._sets]
        for key in there:
            self._sets.move_to_end(key)
        distinct = wanted if not there else [each for each in wanted if (each, gpu.name, points) not in self._sets]
        for candidates in self.candidate_sets(distinct, gpu, points):
            if len(candidates):
                self._sets[candidates.problem, gpu.name, points] = candidates
        self._sets.shrink()

    def candidates_of_each(
        self, problems: Sequence[Problem], gpu: GPU, points: tuple[OperatingPoint, ...]
    ) -> Iterator[CandidateSet]:
        """Yield the candidates of each problem, in order, estimated in batches where possible.

        Raises:
            KernrecError: no config of any kernel can run one of the problems.
        """
        for first in range(0, len(problems), _AHEAD):
            some = problems[first : first + _AHEAD]
            sets = {each.problem: each for each in self.candidate_sets(list(dict.fromkeys(some)), gpu, points)}
            for problem in some:
                together = sets.get(problem)
                yield together if together else self.candidates(problem, gpu, points)

    def _candidates(self, problem: Problem, gpu: GPU, points: tuple[OperatingPoint, ...]) -> CandidateSet:
        """Return the candidates of an op's problem. A sweep also includes power limits that were measured."""
        tables, evidence = self.context.tables_and_evidence(problem, gpu)
        if len(points) > 1 and (measured := measured_limits(gpu, evidence, [table.kernel for table in tables])):
            points = tuple(
                dict.fromkeys([*points, *(OperatingPoint(limit) for limit in measured if limit != gpu.tdp_w)])
            )
        candidates = candidate_set(tables, problem, points, evidence, self.context.models)
        if not len(candidates):
            raise no_kernel_runs(candidates)
        return candidates

    def candidate_sets(
        self, problems: Sequence[Problem], gpu: GPU, points: tuple[OperatingPoint, ...]
    ) -> Iterator[CandidateSet]:
        """Yield candidate sets, estimated in batches. Problems with database rows are skipped."""
        alike: dict[Kind, list[Problem]] = {}
        for problem in problems:
            if (prepared := self._sets.get((problem, gpu.name, points))) is not None:
                yield prepared
            else:
                alike.setdefault(kind_of(problem), []).append(problem)
        nothing, context = Evidence(), self.context
        for some in alike.values():
            with suppress(KernrecError):
                tables = context.tables(some[0], gpu)
                kernels = [table.kernel for table in tables]
                if all(table.of_any_problem(some[0]) for table in tables):
                    new = [
                        each
                        for each in some
                        if fits(each, gpu) and (context.stack.empty or context.evidence(each, gpu, kernels) == nothing)
                    ]
                    yield from candidate_sets(Space(tables), new, points, context.models)

    def regrets(self, answer: Answer) -> "tuple[Regret, ...]":
        """Return the expected loss from running the top recommendation instead of the best config.

        There are two losses (latency, energy) for a Pareto front, and none without recommendations.
        """
        from kernrec.recommender.contenders import answer_regrets

        if answer.query.conditions != self.context.conditions:
            return self.for_conditions(answer.query.conditions).regrets(answer)
        if not answer.recommendations:
            return ()
        problem, gpu, about = answer.problem, answer.gpu, answer.about_kernel
        tables, evidence = self.context.tables_and_evidence(problem, gpu, about.kernel if about else None)
        candidates = None
        if evidence == Evidence() and not about:
            candidates = self._cached_at(problem, gpu, answer.point)
        if candidates is None:
            whole_space = bool(evidence.measured or about)
            models = self.context.models
            candidates = candidate_set(tables, problem, [answer.point], Evidence(), models, whole_space)
        return answer_regrets(candidates, evidence, answer.objective)

    def _cached_at(self, problem: Problem, gpu: GPU, point: OperatingPoint) -> CandidateSet | None:
        for (of_problem, name, points), candidates in self._sets.items():
            if (of_problem, name, points[0]) == (problem, gpu.name, point):
                return candidates.at(0)
        return None

    def _forget_if_changed(self) -> None:
        if (version := self.context.stack.version()) != self._version:
            self._version = version
            for cache in (self._answers, self._layouts, self._sets):
                cache.clear()
