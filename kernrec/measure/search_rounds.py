"""The rounds of a search of one problem, and what came of them; a card, or many, measure them."""

from dataclasses import dataclass, replace
from enum import StrEnum

from kernrec.errors import UsageError
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem
from kernrec.model.search.energy_guide import EnergyGuide
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.genetic_search import GeneticSearch
from kernrec.model.search.objective_search import ObjectiveSearch
from kernrec.recommender.pareto import pareto_front
from kernrec.recommender.request import Objective
from kernrec.store import canonical_json
from kernrec.store.measurement import Measurement, Outcome

WEIGHTS = {
    Objective.LATENCY: (1.0, 0.0),
    Objective.ENERGY: (0.0, 1.0),
    Objective.EDP: (1.0, 1.0),
    Objective.PARETO: None,
}
"""Powers of latency and energy in what is minimized; None: the front."""


_ORDERED = 2
"""Configs that ran from which on models of costs choose."""


class Strategy(StrEnum):
    """How the configs to measure are chosen."""

    GUIDE = "guide"
    """Expected improvement; energy where its interval reaches below the best."""
    GENETIC = "genetic"
    """Genetic search; as much energy as its model's signal-to-noise ratio asks for."""


@dataclass(frozen=True)
class SearchedConfig:
    """A config with its measured costs."""

    kernel: str
    config: dict[str, int]
    latency_s: float
    energy_j: float | None


@dataclass(frozen=True)
class SearchResult:
    """What a search has measured, earlier measurements included."""

    problem: str
    """Its key."""
    space: int
    """Configs that can run."""
    latencies: int
    """Configs with a measured latency."""
    energies: int
    """Configs with a measured energy."""
    best: SearchedConfig | None
    """Of least cost; None where nothing ran."""
    front: tuple[SearchedConfig, ...]
    """The measured front of latency and energy, fastest first; empty where energy does not count."""
    stored: int
    """Rows that are new in the database."""
    error: str | None = None
    """What ended it early, in one line."""
    stopped: bool = False
    """Whether it was told to stop."""


class SearchRounds:
    """What is measured for one problem on one kind of GPU, and what is known of it."""

    def __init__(self, problems: list[PlannedProblem], objective: Objective, strategy: Strategy, seed: int) -> None:
        """Begin.

        Args:
            problems: the only one.
            objective: what is minimized; `pareto` is the front.
            strategy: how configs are chosen.
            seed: of what is drawn at random.

        Raises:
            UsageError: there are several problems.
        """
        if len(problems) != 1:
            examples = ", ".join(planned.problem.key for planned in problems[:3])
            raise UsageError(f"a search is of one problem, give --op and --shape; there are {examples}")
        (self.planned,) = problems
        self._steps = _strategy(strategy, self.planned, WEIGHTS[objective], seed)
        self._place = {task.key: place for place, task in enumerate(self.planned.tasks)}

    @property
    def with_energy(self) -> bool:
        """Whether energy counts."""
        return self._steps.with_energy

    @property
    def ordered(self) -> bool:
        """Whether enough is known for a round to be better than the configs of the first one."""
        return len(self._steps.ran()) >= _ORDERED

    def latencies(self) -> list[int]:
        """The configs whose latency is measured next, by their positions among the tasks; empty where all is known."""
        return self._steps.latency_round()

    def energies(self) -> list[int]:
        """The configs measured so far whose energy is measured next; each only once."""
        return self._steps.energy_round()

    def plan(self, configs: list[int], energy: EnergyRule) -> PlannedProblem:
        """The problem with some configs alone, all of which are measured."""
        tasks = tuple(self.planned.tasks[config] for config in configs)
        return replace(self.planned, tasks=tasks, most=None, search=None, energy=energy, finals=False)

    def learn(self, measurement: Measurement) -> None:
        """Take a measurement into account."""
        identity = measurement.identity
        place = self._place.get((identity.kernel, identity.kernel_hash, canonical_json(dict(identity.config))))
        if place is None:
            return
        if measurement.outcome != Outcome.OK:
            self._steps.latency_s.setdefault(place, None)
            return
        if self._steps.latency_s.get(place) is None:
            self._steps.tell_latency(place, measurement.latency_s)
        if measurement.energy_j:
            self._steps.tell_energy(place, measurement.energy_j)

    def result(self, stored: int, error: str | None, stopped: bool) -> SearchResult:
        """What is known now.

        Args:
            stored: rows that are new in the database.
            error: what ended the search early.
            stopped: whether it was told to stop.
        """
        steps = self._steps
        best = steps.best()
        return SearchResult(
            problem=self.planned.problem.key,
            space=len(self.planned.tasks),
            latencies=sum(latency_s is not None for latency_s in steps.latency_s.values()),
            energies=len(steps.energy_j),
            best=None if best is None else self._searched(best),
            front=self._front(),
            stored=stored,
            error=error,
            stopped=stopped,
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


def _strategy(
    strategy: Strategy, planned: PlannedProblem, weights: tuple[float, float] | None, seed: int
) -> ObjectiveSearch:
    assert isinstance(planned.search, ExpectedImprovement)
    if strategy is Strategy.GENETIC:
        return GeneticSearch(planned.search.space, weights, seed)
    return EnergyGuide(planned.search, weights, seed)
