"""The recommender: one engine for every command that chooses configs, explains them or orders them.

    request -> problem, GPU, static tables -> candidate set -> selection -> choices

A `Recommender` keeps what does not depend on the problem, the candidate sets of the problems that it was asked about
last, and its latest answers, so a second request costs little; programs should keep one.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.model.prior.power import RANDOM
from kernrec.op import Problem, find_op
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.choices import build_choice, build_choices, foreign_rows
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.infeasible import refusing_constraint, why_not
from kernrec.recommender.kernel_candidates import RunnableConfigs
from kernrec.recommender.notes import notes, of_inputs, of_kernel, sampled_blocks
from kernrec.recommender.request import Query, Request
from kernrec.recommender.result import KernelAnswer, Recommendation
from kernrec.recommender.saving import saving_of
from kernrec.recommender.select import select
from kernrec.recommender.sweep import kernel_points, measured_limits, op_points
from kernrec.store import Evidence

if TYPE_CHECKING:
    from kernrec.recommender.contenders import Regret

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_KEPT_ANSWERS, _KEPT_SETS = 1024, 16


class Recommender:
    """Answers requests from the shipped database, and from those given, which are asked first.

    The arguments are those of `Context`.
    """

    def __init__(
        self,
        databases: Sequence[Path | str] | None = None,
        calibrated: bool = True,
        models: ModelStore | None = None,
        keep_open: bool = False,
    ) -> None:
        self.context = Context(databases, calibrated, models, keep_open)
        self._answers: OrderedDict[tuple[Problem, str, Query], Recommendation] = OrderedDict()
        self._sets: OrderedDict[tuple[Problem, str, tuple[OperatingPoint, ...]], CandidateSet] = OrderedDict()
        self._version = self.context.stack.version()
        self._others: dict[str, Recommender] = {}

    def for_inputs(self, inputs: str) -> "Recommender":
        """The recommender of the same databases for other inputs (`kernrec.model.prior.power.INPUTS`)."""
        if inputs == self.context.inputs:
            return self
        if inputs not in self._others:
            other = self._others[inputs] = copy(self)
            other.context = self.context.for_inputs(inputs)
            other._answers, other._sets = OrderedDict(), OrderedDict()
            other._others = {self.context.inputs: self}
        return self._others[inputs]

    def recommend(
        self,
        op: str,
        gpu: str,
        shape: str | Mapping[str, int],
        dtype: str | None = None,
        layout: str | None = None,
        query: Query | None = None,
    ) -> Recommendation:
        """The choices for one problem of an op, best first; as `answer` for a `Request`."""
        return self.answer(Request(gpu, op, None, shape, dtype, layout, query or Query()))

    def answer(self, request: Request) -> Recommendation:
        """The choices for a request, best first (a front: fastest first).

        Raises:
            UsageError: a name is unknown, or a value impossible.
            KernrecError: nothing can run the problem, or there are no profiles to predict from.
        """
        gpu = find_gpu(request.gpu)
        if request.kernel is None:
            problem = find_op(request.op or "").problem(request.dtype, request.layout, **request.dims)
            return self.answer_problem(problem, gpu, request.query)
        kernel = self.context.kernel(request.kernel)
        return self.answer_kernel(kernel, problem_of(kernel, request), gpu, request.query)

    def answer_calls(self, request: Request) -> list[Recommendation]:
        """The answers of `answer` for every call of a user's function that was analyzed for the GPU."""
        gpu = find_gpu(request.gpu)
        calls = [(kernel, problem_of(kernel, request)) for kernel in self.context.calls(request.kernel or "")]
        analyzed = [(k, problem) for k, problem in calls if self.context.find_profiles(k, problem, gpu)]
        if not analyzed:
            return [self.answer(request)]  # which says why there is none
        return [self.answer_kernel(kernel, problem, gpu, request.query) for kernel, problem in analyzed]

    def answer_kernel(self, kernel: Kernel, problem: Problem, gpu: GPU, query: Query) -> Recommendation:
        """The choices of one kernel: at the power limit asked for, else over a range of them.

        Costs are compared with those at the default power limit.
        """
        if query.inputs != self.context.inputs:
            return self.for_inputs(query.inputs).answer_kernel(kernel, problem, gpu, query)
        candidates = self.kernel_candidates(kernel, problem, gpu, query)
        return kernel_recommendation(candidates, query, self.context.models.warnings())

    def kernel_candidates(self, kernel: Kernel, problem: Problem, gpu: GPU, query: Query) -> CandidateSet:
        """All configs of one kernel at the operating points of a query; the set may be empty."""
        table = self.context.kernel_table(kernel, problem, gpu)
        evidence = self.context.evidence(problem, gpu, [kernel])
        points = kernel_points(gpu, query, evidence, kernel)
        return candidate_set([table], problem, points, evidence, self.context.models, whole_space=True)

    def regrets(self, answer: Recommendation) -> "tuple[Regret, ...]":
        """How much each objective of an answer is expected to lose by its present choice; of a front, both ends."""
        from kernrec.recommender.contenders import answer_regrets

        if answer.inputs != self.context.inputs:
            return self.for_inputs(answer.inputs).regrets(answer)
        problem, gpu, about = answer.problem, answer.gpu, answer.about_kernel
        tables = (
            (self.context.kernel_table(about.kernel, problem, gpu),) if about else self.context.tables(problem, gpu)
        )
        evidence = self.context.evidence(problem, gpu, [table.kernel for table in tables])
        candidates = None
        if evidence == Evidence() and not about:
            candidates = self._kept_at(problem, gpu, answer.point)
        if candidates is None:
            whole_space = bool(evidence.measured or about)
            candidates = candidate_set(tables, problem, [answer.point], Evidence(), self.context.models, whole_space)
        return answer_regrets(candidates, evidence, answer.objective)

    def answer_problem(self, problem: Problem, gpu: GPU, query: Query) -> Recommendation:
        """The choices for a problem of an op on a GPU; the latest answers are kept while no database changes."""
        if query.inputs != self.context.inputs:
            return self.for_inputs(query.inputs).answer_problem(problem, gpu, query)
        self._forget_if_changed()
        return _kept(self._answers, (problem, gpu.name, query), _KEPT_ANSWERS, lambda: self._new(problem, gpu, query))

    def candidates(self, problem: Problem, gpu: GPU, points: tuple[OperatingPoint, ...]) -> CandidateSet:
        """The candidates of a problem of an op at these operating points; the latest are kept, as answers are.

        Raises:
            KernrecError: nothing can run the problem.
        """
        self._forget_if_changed()
        return _kept(
            self._sets, (problem, gpu.name, points), _KEPT_SETS, lambda: self._candidates(problem, gpu, points)
        )

    def _kept_at(self, problem: Problem, gpu: GPU, point: OperatingPoint) -> CandidateSet | None:
        """A kept candidate set whose first operating point is this one, at that point alone."""
        for (known, name, points), candidates in self._sets.items():
            if (known, name, points[0]) == (problem, gpu.name, point):
                return candidates.at(0)
        return None

    def _forget_if_changed(self) -> None:
        if (version := self.context.stack.version()) != self._version:
            self._version = version
            self._answers.clear()
            self._sets.clear()

    def _new(self, problem: Problem, gpu: GPU, query: Query) -> Recommendation:
        candidates = self.candidates(problem, gpu, op_points(gpu, query))
        # Libraries were recorded with random inputs. The model's warnings are among the notes.
        vendor_model = self.context.models.vendor_model(problem.op) if query.inputs == RANDOM else None
        picked = select(candidates, query)
        choices = build_choices(candidates, picked, query.objective)
        return Recommendation(
            problem=problem,
            gpu=gpu,
            objective=query.objective,
            point=query.point,
            choices=choices,
            candidates=candidates.runnable,
            notes=(*self.context.models.warnings(), *of_inputs(query.inputs), *notes(candidates, choices)),
            inputs=query.inputs,
            calibration=self.context.models.calibration(gpu),
            models=tuple(kernel.scope for kernel in candidates.kernels if kernel.scope),
            saving=saving_of(candidates, picked[0], query),
            foreign=foreign_rows(candidates, query),
            vendor_model=vendor_model,
        )

    def _candidates(self, problem: Problem, gpu: GPU, points: tuple[OperatingPoint, ...]) -> CandidateSet:
        """The candidates of a problem with their costs, whatever a query wants of them.

        A sweep is also over the power limits that the kernels were measured at.
        """
        tables = self.context.tables(problem, gpu)
        kernels = [table.kernel for table in tables]
        evidence = self.context.evidence(problem, gpu, kernels)
        if len(points) > 1 and (measured := measured_limits(gpu, evidence, kernels)):
            points = tuple(
                dict.fromkeys([*points, *(OperatingPoint(limit) for limit in measured if limit != gpu.tdp_w)])
            )
        candidates = candidate_set(tables, problem, points, evidence, self.context.models)
        if not candidates.kernels:
            raise no_kernel_runs(candidates)
        return candidates


def problem_of(kernel: Kernel, request: Request) -> Problem:
    """The problem that a request about a kernel names."""
    dtype, layout = request.dtype or kernel.dtypes[0], request.layout or kernel.layouts[0]
    return kernel.definition.problem(dtype, layout, **request.dims)


def kernel_recommendation(candidates: CandidateSet, query: Query, warnings: tuple[str, ...] = ()) -> Recommendation:
    """The answer about one kernel from its candidates.

    Args:
        candidates: a set of one kernel at the points of `kernel_points`; it may be empty.
        query: objective, and the power limit that choices have to have.
        warnings: what is wrong with models, for the notes.

    Raises:
        KernrecError: no config can run the problem.
    """
    (considered,) = candidates.considered
    if not candidates.kernels:
        raise none_runs(considered)
    # The default limit is what choices are compared at; where a limit is asked for it need not be among them.
    first = 0 if query.power_limit_w is None else candidates.points.index(OperatingPoint(query.power_limit_w))
    picked = select(candidates, query, first)
    choices = build_choices(candidates, picked, query.objective)
    kernel = candidates.kernels[0]
    return Recommendation(
        problem=candidates.problem,
        gpu=candidates.gpu,
        objective=query.objective,
        point=candidates.points[0],
        choices=choices,
        candidates=candidates.runnable,
        notes=(*warnings, *of_inputs(query.inputs), *notes(candidates, choices), *of_kernel(considered, choices[0])),
        inputs=query.inputs,
        calibration=kernel.table.calibration,
        models=(kernel.scope,) if kernel.scope else (),
        saving=saving_of(candidates, picked[0], query),
        about_kernel=KernelAnswer(
            kernel=kernel.table.kernel,
            heuristic=build_choice(candidates, 0, kernel.heuristic),
            sampled_blocks=sampled_blocks(considered),
        ),
    )


def no_kernel_runs(candidates: CandidateSet) -> KernrecError:
    """Why no config of any kernel of an op can run a problem."""
    problem, gpu = candidates.problem, candidates.gpu
    failed = sum(len(considered.measured[0].failed) for considered in candidates.considered)
    kernels = [considered.table.kernel for considered in candidates.considered]
    reason = f" ({failed} failed when they were measured)" if failed else why_not(kernels, problem, gpu)
    return KernrecError(f"no config of any kernel can run {problem.key} on {gpu.name}{reason}")


def none_runs(considered: RunnableConfigs) -> KernrecError:
    """Why no config of a kernel can run a problem."""
    table, problem = considered.table, considered.on_problem.problem
    kernel, gpu = table.kernel, table.gpu
    if failed := len(considered.measured[0].failed):
        reason = f"{failed} failed when they were measured"
    elif not len(considered.on_problem.rows):
        reason = f"it needs {refusing_constraint(kernel, problem, gpu) or 'another shape'!r}"
    else:
        reason = (
            f"of {len(considered.on_problem.rows)} configs that keep its constraints none is profiled, fits an SM and"
            " (in the library) does not spill"
        )
    return KernrecError(f"no config of {kernel.name} can run {problem.key} on {gpu.name}: {reason}")


def _kept(cache: OrderedDict[_Key, _Value], key: _Key, most: int, make: Callable[[], _Value]) -> _Value:
    """The value cached under a key, made where there is none; the `most` that were used last are kept."""
    if (known := cache.get(key)) is not None:
        cache.move_to_end(key)
        return known
    made = cache[key] = make()
    if len(cache) > most:
        cache.popitem(last=False)
    return made
