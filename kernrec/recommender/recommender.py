"""From an op, a shape and a GPU to the configs worth running.

    problem -> candidates of every kernel that implements it -> estimates -> what the query allows -> choices

A `Recommender` keeps what does not depend on the problem (spaces, profiles, demands) and its latest answers, so a
second question costs little; programs should keep one.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import kernels_for
from kernrec.model.power import PowerModel, Settled
from kernrec.model.prior import interval
from kernrec.op import Problem, find_op, parse_shape
from kernrec.recommender.answer import Choice, Comparison, Cost, Recommendation
from kernrec.recommender.candidates import Candidates, Prediction
from kernrec.recommender.pareto import pareto_front, spread
from kernrec.store import Stack

OBJECTIVES = ("pareto", "latency", "energy", "edp")
"""Latency/energy front, least latency, least energy, least energy-delay product."""

_KEPT_ANSWERS = 1024


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
    """Answers queries from the shipped database, and from those given, which are asked first."""

    def __init__(self, databases: Sequence[Path | str] | None = None) -> None:
        self._stack = Stack(databases)
        self._candidates: dict[tuple[str, str, str, str], list[Candidates]] = {}
        self._power: dict[str, PowerModel] = {}
        self._answers: OrderedDict[tuple[Problem, str, Query], Recommendation] = OrderedDict()

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
        """The choices for a problem on a GPU; the latest answers are kept."""
        key = (problem, gpu.name, query)
        known = self._answers.get(key)
        if known is not None:
            self._answers.move_to_end(key)
            return known
        answer = self._answer(problem, gpu, query)
        self._answers[key] = answer
        if len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _answer(self, problem: Problem, gpu: GPU, query: Query) -> Recommendation:
        groups = [_Group(c, problem, query) for c in self.candidates_for(problem, gpu)]
        groups = [group for group in groups if group.runnable]
        if not groups:
            raise KernrecError(f"no config of any kernel can run {problem.key} on {gpu.name}")
        costs = _Costs(groups)
        fastest = int(costs.latency_s.argmin())
        heuristic = groups[0].heuristic
        picked = _select(costs, query, fastest)
        choices = tuple(costs.choice(int(p), problem, gpu, fastest, heuristic) for p in picked)
        return Recommendation(
            problem,
            gpu,
            query.objective,
            gpu.tdp_w if query.power_limit_w is None else query.power_limit_w,
            choices,
            sum(group.runnable for group in groups),
            _notes(groups, choices),
        )

    def candidates_for(self, problem: Problem, gpu: GPU) -> list[Candidates]:
        """The candidates of every kernel that implements the problem on a GPU; made once."""
        key = (problem.op, gpu.name, problem.dtype, problem.layout)
        if key not in self._candidates:
            able = kernels_for(problem.op, problem.dtype, problem.layout)
            kernels = [kernel for kernel in able if kernel.least_sm(problem.dtype) <= gpu.sm]
            if not kernels:
                raise UsageError(
                    f"no kernel implements {problem.op} for {problem.dtype}, {problem.layout} on {gpu.arch}"
                    " (`kernrec kernels` lists them)"
                )
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
                )
                for kernel in kernels
            ]
        return self._candidates[key]


class _Group:
    """The candidates of one kernel that can run the problem, with their costs under the query's power limit."""

    def __init__(self, candidates: Candidates, problem: Problem, query: Query) -> None:
        self.candidates = candidates
        self.at = candidates.space.at(problem)
        runnable = candidates.rows(self.at)
        self.runnable = len(runnable)
        self.rows = runnable
        if self.runnable:
            # What the occupancy heuristic picks is estimated even where it is not worth a place of its own.
            heuristic = candidates.occupancy_choice(self.at, runnable)
            self.rows = candidates.shortlist(self.at, runnable)
            self.heuristic = int(np.searchsorted(self.rows, heuristic))
            if self.heuristic == len(self.rows) or self.rows[self.heuristic] != heuristic:
                self.rows = np.insert(self.rows, self.heuristic, heuristic)
            self.prediction: Prediction = candidates.predict(problem, self.at, self.rows)
            self.settled: Settled = candidates.settle(self.prediction, query.power_limit_w, query.clock_hz)


class _Costs:
    """The costs of all groups one after the other: position -> (group, row)."""

    def __init__(self, groups: list[_Group]) -> None:
        self.groups = groups
        self.starts = np.cumsum([0, *(len(g.rows) for g in groups)]).tolist()
        join = (lambda parts: parts[0]) if len(groups) == 1 else np.concatenate
        self.latency_s = join([g.settled.latency_s for g in groups])
        self.energy_j = join([g.settled.energy_j for g in groups])
        self.power_w = join([g.settled.power_w for g in groups])

    def choice(self, position: int, problem: Problem, gpu: GPU, fastest: int, heuristic: int) -> Choice:
        index = int(np.searchsorted(self.starts, position, side="right")) - 1
        group, at = self.groups[index], position - self.starts[index]
        row = int(group.rows[at])
        latency, energy = float(self.latency_s[position]), float(self.energy_j[position])
        (t_low, t_high), (e_low, e_high) = interval(latency), interval(energy)
        return Choice(
            kernel=group.candidates.kernel,
            config=group.candidates.space.config(row),
            problem=problem,
            gpu=gpu,
            latency_s=Cost(latency, t_low, t_high),
            energy_j=Cost(energy, e_low, e_high),
            power_w=float(self.power_w[position]),
            clock_hz=float(group.settled.clock_hz[at]),
            source="prior",
            limit=group.prediction.limit(at),
            occupancy=group.candidates.occupancy(group.at, row),
            versus_fastest=self._against(latency, energy, fastest),
            versus_occupancy=self._against(latency, energy, heuristic),
        )

    def _against(self, latency: float, energy: float, other: int) -> Comparison:
        return Comparison(1.0 - energy / float(self.energy_j[other]), latency / float(self.latency_s[other]) - 1.0)


def _select(costs: _Costs, query: Query, fastest: int) -> np.ndarray:
    """Positions of the choices, in order."""
    latency, energy, power = costs.latency_s, costs.energy_j, costs.power_w
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


def _notes(groups: list[_Group], choices: tuple[Choice, ...]) -> tuple[str, ...]:
    notes = []
    if any(choice.source == "prior" for choice in choices):
        notes.append(
            "source prior: predicted from static analysis, measured on no GPU; the interval is the model's spread"
        )
    for group in groups:
        if group.candidates.unprofiled:
            notes.append(
                f"{group.candidates.kernel.name}: {group.candidates.unprofiled} codes have no profile"
                f" for {group.candidates.gpu.arch} and were left out"
            )
    return tuple(notes)
