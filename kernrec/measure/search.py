"""`kernrec search` as a library call: the config of least latency, energy or energy-delay product of one problem.

A strategy chooses, round by round, whose latency is measured and whose energy: the guide
(`kernrec.model.search.energy_guide`) or the genetic search (`kernrec.model.search.genetic_search`). The rounds are
measured by a campaign, as `collect` does, so that they are checked, durable at once and in closed blocks; what the
database has of the problem on this device already is known from the start.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.collect import CollectRequest, DeviceWork, devices_of
from kernrec.measure.measuring_device import new_session
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
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


def search(
    request: CollectRequest,
    objective: Objective,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    strategy: Strategy = Strategy.GUIDE,
) -> SearchResult:
    """Search the space of one problem.

    Args:
        request: names one problem, the device, the budget and the database; its effort does not count.
        objective: what is minimized; `pareto` is the front.
        report: called with each measurement and note.
        stopping: called often; once it returns true, the search ends.
        strategy: how the configs to measure are chosen.

    Raises:
        UsageError: before anything is measured: no such device, several problems, or another collector is running.
        KernrecError: before anything is measured.
    """
    if request.gpu == "all":
        raise UsageError("--gpu all: a search uses one GPU; name it")
    whole = replace(request, effort=MeasuringEffort(None, 0))
    with Journal(journal_path(request.database)) as journal, TemporaryDirectory(prefix="kernrec-") as scratch:
        stored = ingest(journal, request.database)
        (work,) = devices_of(whole, Path(scratch))
        if len(work.problems) != 1:
            examples = ", ".join(planned.problem.key for planned in work.problems[:3])
            raise UsageError(f"a search is of one problem, give --op and --shape; there are {examples}")
        (planned,) = work.problems
        assert isinstance(planned.search, ExpectedImprovement)
        steps = _strategy(strategy, planned.search, WEIGHTS[objective], request.seed)
        return _Search(whole, steps, work, (report, stopping)).run(journal, stored)


def _strategy(
    strategy: Strategy, search: ExpectedImprovement, weights: tuple[float, float] | None, seed: int
) -> ObjectiveSearch:
    if strategy is Strategy.GENETIC:
        return GeneticSearch(search.space, weights, seed)
    return EnergyGuide(search, weights, seed)


class _Search:
    """One search; its campaign takes the rounds from `_rounds`."""

    def __init__(
        self,
        request: CollectRequest,
        steps: ObjectiveSearch,
        work: DeviceWork,
        caller: tuple[Callable[[Progress], None], Callable[[], bool]],
    ) -> None:
        self._request = request
        self._work = work
        self._report, self._stopping = caller
        (self._planned,) = work.problems
        self._steps = steps
        self._place = {task.key: place for place, task in enumerate(self._planned.tasks)}

    def run(self, journal: Journal, stored: int) -> SearchResult:
        """Measure; returns what is known then."""
        self._campaign = self._make_campaign(journal)
        error, stopped = None, False
        try:
            self._campaign.run()
        except Stopped:
            stopped = True
        except KernrecError as failure:
            error = str(failure)
        with suppress(KernrecError):  # the journal keeps the rows, and they are stored later
            stored += ingest(journal, self._request.database)
        steps = self._steps
        best = steps.best()
        return SearchResult(
            problem=self._planned.problem.key,
            space=len(self._planned.tasks),
            latencies=sum(latency_s is not None for latency_s in steps.latency_s.values()),
            energies=len(steps.energy_j),
            best=None if best is None else self._searched(best),
            front=self._front(),
            stored=stored + self._stored,
            error=error,
            stopped=stopped,
        )

    def _make_campaign(self, journal: Journal) -> Campaign:
        request, work = self._request, self._work
        self._stored = 0

        def store() -> None:
            with suppress(UsageError):
                self._stored += ingest(journal, request.database)

        device = work.device
        settings = device.settings(new_session(), request.effort, request.budget, request.seed)
        hooks = CampaignHooks(lambda problem: self._earlier(), self._stopping, self._take, store)
        client = WorkerClient(device.opening, self._stopping)
        return Campaign(client, self._rounds(), journal, settings, hooks, device.compile_queue())

    def _earlier(self) -> list[Measurement]:
        return self._work.device.earlier(self._request.database, self._planned.problem)

    def _rounds(self) -> Iterator[PlannedProblem]:
        """What to measure, round by round: latencies, and then the energies that matter."""
        steps, traits = self._steps, self._campaign.session.traits
        if steps.with_energy and not traits.measures_energy:
            raise KernrecError("energy is not measured on this device; --objective latency needs none")
        for measurement in self._earlier():
            if self._campaign.at_present_settings(measurement):
                self._learn(measurement)
        if energy := steps.energy_round():  # of earlier measurements
            yield self._round(energy, EnergyRule.ALL)
        while not self._stopping():
            if configs := steps.latency_round():
                yield self._round(configs, EnergyRule.NONE)
            if energy := steps.energy_round():
                yield self._round(energy, EnergyRule.ALL)
            if not configs and not energy:
                return

    def _round(self, configs: list[int], energy: EnergyRule) -> PlannedProblem:
        tasks = tuple(self._planned.tasks[config] for config in configs)
        return replace(self._planned, tasks=tasks, most=None, search=None, energy=energy)

    def _take(self, progress: Progress) -> None:
        self._report(progress)
        if progress.measurement is not None:
            self._learn(progress.measurement)

    def _learn(self, measurement: Measurement) -> None:
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

    def _searched(self, config: int) -> SearchedConfig:
        task, latency_s = self._planned.tasks[config], self._steps.latency_s[config]
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
