"""Search one problem for the lowest latency, energy or energy-delay product.

In each round, the search first chooses configs for latency measurements, and then configs for energy measurements. All
GPUs of a model share the latency measurements. Only one GPU measures energies, because power differs more between GPUs
than between good configs. Meanwhile, the other GPUs begin the next round.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from kernrec.errors import UsageError
from kernrec.measure.campaign.plan import Chooser, EnergyRule, PlannedProblem
from kernrec.measure.request import CollectRequest, Strategy
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.model.search.energy_guide import EnergyGuide
from kernrec.model.search.expected_improvement import ObjectiveSearch
from kernrec.model.search.genetic_search import GeneticSearch
from kernrec.op import Problem
from kernrec.recommender.request import Objective
from kernrec.recommender.select import pareto_front
from kernrec.store.measurement import Measurement, Outcome

WEIGHTS = {
    Objective.LATENCY: (1.0, 0.0),
    Objective.ENERGY: (0.0, 1.0),
    Objective.EDP: (1.0, 1.0),
    Objective.PARETO: None,
}
"""Exponents of latency and energy in the product to minimize, keyed by objective. None for the Pareto front."""
_ORDERED = 2
"""Number of configs that must have run before cost models can choose the next configs."""
_LEAST_TOGETHER = 2
"""Minimum number of configs to measure together, because the reference kernels run each time, too."""


@dataclass(frozen=True)
class SearchedConfig:
    kernel: str
    config: dict[str, int]
    latency_s: float
    energy_j: float | None


@dataclass(frozen=True)
class Searched:
    """Result of a search, including measurements of earlier campaigns."""

    problem: str
    """Key of the problem."""
    space: int
    """Number of configs that can run the problem."""
    latencies: int
    """Number of configs with a measured latency."""
    energies: int
    """Number of configs with a measured energy."""
    best: SearchedConfig | None
    """Measured config with the lowest cost, or None if no config ran."""
    front: tuple[SearchedConfig, ...]
    """Pareto front of the measured latencies and energies, fastest config first. Empty if the objective is latency."""


class SearchRounds(Chooser):
    """Chooses the configs to measure in a search on one problem and one GPU model."""

    def __init__(self, on_gpu: RequestOnGpu) -> None:
        """Prepare a search. Raise `UsageError` if there is more than one problem, or no config can run it."""
        request, problems = on_gpu.request, on_gpu.planned()
        if len(problems) != 1:
            op, dims = problems[0].problem.op, ",".join(f"{name}={value}" for name, value in problems[0].problem.dims)
            raise UsageError(
                f"--strategy {request.strategy} searches one problem, not {len(problems)}; select one, such as"
                f" --op {op} --shape {dims}"
            )
        (self.planned,) = problems
        self._steps = _strategy(request, self.planned)
        self._place = {task.key: place for place, task in enumerate(self.planned.tasks)}
        self._rows: list[list[Measurement]] = [[] for _ in self.planned.tasks]
        self._left = math.inf if request.budget.configs is None else request.budget.configs
        self._round, self._size = 0, 0  # number and size (in configs) of the current round
        self._latencies: list[int] = []  # configs of the current round that no GPU measures yet
        self._energies: list[int] = []  # configs for energy measurements that no GPU measures yet
        # Round of each unfinished `visit`, or None for energy measurements, keyed by `id(visit.tasks)`.
        self._pending: dict[int, int | None] = {}
        self._round_over = True  # whether a round has ended that still needs energy measurements
        self._energy_gpu: str | None = None

    @property
    def needs_energy(self) -> bool:
        return self._steps.with_energy

    @property
    def recalled(self) -> Sequence[Problem]:
        return (self.planned.problem,)

    def begin(self, earlier: Iterable[Measurement]) -> None:
        for measurement in earlier:
            self.learn(measurement)

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedProblem | None:
        if self._left <= 0 and not self._latencies and not self._energies:
            return None  # No later round would use the energies of the last round, so do not measure them.
        self._ask_energies()
        if self._energies and (self._energy_gpu == gpu or self._energy_gpu not in gpus):
            self._energy_gpu = gpu
            configs, self._energies = self._energies, []
            return self._visit(configs, EnergyRule.ALL)
        if not self._latencies and not self._begin_round():
            return None if self._pending or not self._ask_energies() else self.next(gpu, gpus)
        count = max(_LEAST_TOGETHER, math.ceil(self._size / len(gpus)))
        configs, self._latencies = self._latencies[:count], self._latencies[count:]
        return self._visit(configs, EnergyRule.NONE)

    def done(self, visit: PlannedProblem, seconds: float) -> None:
        number = self._pending.pop(id(visit.tasks))
        given_out = number != self._round or not self._latencies
        if number is not None and given_out and number not in self._pending.values():
            self._round_over = True

    def _ask_energies(self) -> bool:
        if self._round_over:
            self._round_over = False
            self._energies += self._steps.energy_round()
        return bool(self._energies)

    def _begin_round(self) -> bool:
        """Begin another round of latency measurements. Return False if there are no configs to measure."""
        if self._pending and len(self._steps.ran()) < _ORDERED:
            return False  # Wait for the results that cost models need.
        self._latencies = self._steps.latency_round()
        if self._left < len(self._latencies):
            self._latencies = self._latencies[: int(self._left)]
        self._round, self._size = self._round + 1, len(self._latencies)
        self._left -= self._size
        self._round_over = self._round_over or (not self._size and not self._pending)
        return self._size > 0

    def _visit(self, configs: list[int], energy: EnergyRule) -> PlannedProblem:
        tasks = tuple(self.planned.tasks[config] for config in configs)
        self._pending[id(tasks)] = self._round if energy is EnergyRule.NONE else None
        earlier = tuple(row for config in configs for row in self._rows[config])
        return replace(self.planned, tasks=tasks, most=None, search=None, energy=energy, finals=False, earlier=earlier)

    def learn(self, measurement: Measurement) -> None:
        place = self._place.get(measurement.config_key)
        if place is None:
            return
        self._rows[place].append(measurement)
        if measurement.outcome != Outcome.OK:
            self._steps.latency_s.setdefault(place, None)
            return
        if self._steps.latency_s.get(place) is None:
            self._steps.tell_latency(place, measurement.latency_s)
        if measurement.energy_j:
            self._steps.tell_energy(place, measurement.energy_j)

    def outcome(self) -> Searched:
        steps = self._steps
        best = steps.best()
        return Searched(
            problem=self.planned.problem.key,
            space=len(self.planned.tasks),
            latencies=sum(latency_s is not None for latency_s in steps.latency_s.values()),
            energies=len(steps.energy_j),
            best=None if best is None else self._searched(best),
            front=self._front(),
        )

    def _searched(self, config: int) -> SearchedConfig:
        task, latency_s = self.planned.tasks[config], self._steps.latency_s[config]
        assert latency_s is not None
        return SearchedConfig(task.kernel_name, task.config, latency_s, self._steps.energy_j.get(config))

    def _front(self) -> tuple[SearchedConfig, ...]:
        import numpy as np

        both = [i for i in self._steps.energy_j if self._steps.latency_s.get(i)]
        if not both or not self._steps.with_energy:
            return ()
        latency_s = np.array([self._steps.latency_s[i] for i in both], dtype=float)
        front = pareto_front(latency_s, np.array([self._steps.energy_j[i] for i in both]))
        return tuple(self._searched(both[place]) for place in front.tolist())


def _strategy(request: CollectRequest, planned: PlannedProblem) -> ObjectiveSearch:
    assert planned.search is not None
    weights = WEIGHTS[request.objective]
    if request.strategy is Strategy.GENETIC:
        return GeneticSearch(planned.search.space, weights, request.seed)
    return EnergyGuide(planned.search, weights, request.seed)
