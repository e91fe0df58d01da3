"""From an op, a shape and a GPU to the configs worth running.

    problem -> candidates of every kernel that implements it -> estimates -> what the query allows -> choices

A `Recommender` keeps what does not depend on the problem (spaces, profiles, demands), the estimates of the problems it
was asked about last, and its latest answers, so a second question costs little; programs should keep one.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import able_kernels
from kernrec.model.prior.power import PowerModel
from kernrec.op import Problem, find_op, parse_shape
from kernrec.recommender.candidate_set import COUNTED, Group, Pool
from kernrec.recommender.estimate.candidates import Candidates
from kernrec.recommender.estimate.measured_rows import applies
from kernrec.recommender.estimate.model_store import Trained
from kernrec.recommender.infeasible import why_not
from kernrec.recommender.notes import notes
from kernrec.recommender.pareto import pareto_front, spread
from kernrec.recommender.result import Recommendation
from kernrec.store import MeasuredAnswer, Stack

OBJECTIVES = tuple(COUNTED)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_KEPT_ANSWERS, _KEPT_POOLS = 1024, 16


@dataclass(frozen=True)
class Query:
    """What is wanted of a recommendation; None leaves a bound out.

    max_slowdown: fraction above the fastest config's latency. max_power_w: mean power of a choice. power_limit_w: the
    GPU's power limit (its TDP by default). clock_hz: a locked core clock (boost by default).
    """

    objective: str = "pareto"
    max_slowdown: float | None = None
    max_power_w: float | None = None
    power_limit_w: float | None = None
    clock_hz: float | None = None
    top: int = 5

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise unknown("objective", self.objective, OBJECTIVES)
        if self.top < 1:
            raise UsageError(f"top is {self.top}; at least 1 is accepted")
        if self.max_slowdown is not None and not self.max_slowdown >= 0:
            raise UsageError(f"max slowdown is {self.max_slowdown:g}; a fraction of at least 0 is accepted")
        if self.max_power_w is not None and not self.max_power_w > 0:
            raise UsageError(f"max power is {self.max_power_w:g} W; a positive power is accepted")


class Recommender:
    """Answers queries from the shipped database, and from those given, which are asked first.

    calibrated: whether the prior takes the coefficients that measurements gave it, where there are some. trained: what
    was learned from measurements; None: what lies beside the databases. keep_open: the databases stay open, as in
    `Stack`.
    """

    def __init__(
        self,
        databases: Sequence[Path | str] | None = None,
        calibrated: bool = True,
        trained: Trained | None = None,
        keep_open: bool = False,
    ) -> None:
        self._stack = Stack(databases, keep_open)
        self._candidates: dict[tuple[str, str, str, str], list[Candidates]] = {}
        self._power: dict[str, PowerModel] = {}
        self._answers: OrderedDict[tuple[Problem, str, Query], Recommendation] = OrderedDict()
        self._pools: OrderedDict[tuple[Problem, str, _Limits], _Estimated] = OrderedDict()
        self._version = self._stack.version()
        self._trained = trained or Trained.beside(databases, self._stack, calibrated)

    def recommend(
        self,
        op: str,
        gpu: str,
        shape: str | dict[str, int],
        dtype: str | None = None,
        layout: str | None = None,
        query: Query | None = None,
    ) -> Recommendation:
        """The choices for one problem, best first (a front: fastest first).

        shape: dimensions, as text (`m=1,n=2,k=3`) or by name. Raises `UsageError` for what is unknown or impossible.
        """
        dims = parse_shape(shape) if isinstance(shape, str) else shape
        return self.answer(find_op(op).problem(dtype, layout, **dims), find_gpu(gpu), query or Query())

    def recommend_workload(
        self,
        op: str,
        gpu: str,
        workload: str | None = None,
        dtype: str | None = None,
        layout: str | None = None,
        query: Query | None = None,
    ) -> tuple[str, list[tuple[str, int, Recommendation]]]:
        """(title, [(layer, count, recommendation)]) for the layers of a workload set that are of this op.

        workload: a set's name; None: the op's default.
        """
        from kernrec.op.workload import default_workload
        from kernrec.op.workload import workload as find_workload

        definition, card = find_op(op), find_gpu(gpu)
        chosen = find_workload(workload) if workload else default_workload(definition.name)
        layers = chosen.layers_of(definition.name, dtype, layout)
        if not layers:
            raise UsageError(
                f"workload {chosen.name} has no {definition.name} layer; give another --workload or a shape"
            )
        answers = [(layer.name, layer.count, self.answer(layer.problem, card, query or Query())) for layer in layers]
        return chosen.title, answers

    def answer(self, problem: Problem, gpu: GPU, query: Query) -> Recommendation:
        """The choices for a problem on a GPU; the latest answers are kept while no database changes."""
        if (version := self._stack.version()) != self._version:
            self._version = version
            self._answers.clear()
            self._pools.clear()
        key = (problem, gpu.name, query)
        return _kept(self._answers, key, _KEPT_ANSWERS, lambda: self._answer(problem, gpu, query))

    def _answer(self, problem: Problem, gpu: GPU, query: Query) -> Recommendation:
        limits = query.power_limit_w, query.clock_hz
        key = (problem, gpu.name, limits)
        estimated = _kept(self._pools, key, _KEPT_POOLS, lambda: self._estimated(problem, gpu, limits))
        pool = estimated.pool
        choices = pool.choices(_select(pool, query), problem, gpu, query.objective)
        return Recommendation(
            problem,
            gpu,
            query.objective,
            gpu.tdp_w if query.power_limit_w is None else query.power_limit_w,
            choices,
            sum(group.runnable for group in pool.groups),
            self._trained.warnings()
            + notes(estimated.groups, choices, float(pool.costs.latency_s[pool.fastest]), estimated.foreign),
            self._trained.calibration(gpu),
            tuple(group.learned for group in pool.groups if group.learned),
        )

    def _estimated(self, problem: Problem, gpu: GPU, limits: "_Limits") -> "_Estimated":
        """What the candidates of a problem cost, whatever a query wants of them."""
        candidates = self.candidates_for(problem, gpu)
        evidence = self._stack.evidence(gpu.name, problem.op, [c.kernel.name for c in candidates], problem.key)
        model = self._trained.model(problem.op, gpu)
        all_groups = [Group(c, problem, *limits, evidence, model) for c in candidates]
        groups = [group for group in all_groups if group.runnable]
        if not groups:
            failed = sum(len(group.known.failed) for group in all_groups)
            because = f" ({failed} failed when they were measured)" if failed else ""
            if not failed:
                because = why_not([c.kernel for c in candidates], problem, gpu)
            raise KernrecError(f"no config of any kernel can run {problem.key} on {gpu.name}{because}")
        foreign = [row for row in evidence.foreign if applies(row, gpu, *limits)]
        return _Estimated(Pool(groups), all_groups, foreign)

    def candidates_for(self, problem: Problem, gpu: GPU) -> list[Candidates]:
        """The candidates of every kernel that implements the problem on a GPU; made once."""
        key = (problem.op, gpu.name, problem.dtype, problem.layout)
        if key not in self._candidates:
            kernels = able_kernels(problem.op, problem.dtype, problem.layout, gpu.sm)
            if gpu.name not in self._power:
                self._power[gpu.name] = PowerModel.for_gpu(gpu)
            self._candidates[key] = [
                Candidates(
                    kernel,
                    gpu,
                    self._power[gpu.name],
                    problem.dtype,
                    problem.layout,
                    self._stack.profiles(kernel.name, kernel.hash, gpu.sm),
                    calibration=self._trained.calibration(gpu),
                )
                for kernel in kernels
            ]
        return self._candidates[key]


_Limits = tuple[float | None, float | None]
"""Power limit and clock of a query."""


@dataclass(frozen=True)
class _Estimated:
    """The candidates of a problem with their costs. groups: also those of which none can run. foreign: answers of other
    kernels."""

    pool: Pool
    groups: list[Group]
    foreign: list[MeasuredAnswer]


def _kept(kept: OrderedDict[_Key, _Value], key: _Key, most: int, make: Callable[[], _Value]) -> _Value:
    """What is kept under a key, made where there is none; the `most` that were asked for last are kept."""
    if (known := kept.get(key)) is not None:
        kept.move_to_end(key)
        return known
    made = kept[key] = make()
    if len(kept) > most:
        kept.popitem(last=False)
    return made


def _select(pool: Pool, query: Query) -> np.ndarray:
    """Positions of the choices, in order."""
    latency, energy, power = pool.costs.latency_s, pool.costs.energy_j, pool.costs.power_w
    fastest = pool.fastest
    allowed: np.ndarray | None = None
    if query.max_power_w is not None:
        allowed = np.flatnonzero(power <= query.max_power_w)
        if not len(allowed):
            raise UsageError(
                f"no config stays below {query.max_power_w:g} W; the least is {power.min():.4g} W"
                " (a lower power limit or clock lowers it)"
            )
        fastest = int(allowed[latency[allowed].argmin()])
    if query.max_slowdown is not None:
        within = latency <= latency[fastest] * (1.0 + query.max_slowdown)
        allowed = np.flatnonzero(within) if allowed is None else allowed[within[allowed]]
    if allowed is not None:
        latency, energy = latency[allowed], energy[allowed]
    if query.objective == "pareto":
        picked = spread(pareto_front(latency, energy), latency, energy, query.top)
    else:
        value = {"latency": latency, "energy": energy, "edp": latency * energy}[query.objective]
        count = min(query.top, len(value))
        picked = np.argpartition(value, count - 1)[:count]
        picked = picked[np.argsort(value[picked], kind="stable")]
    return picked if allowed is None else allowed[picked]
