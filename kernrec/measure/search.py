"""`kernrec search` as a library call: the config of least latency, energy or energy-delay product of one problem.

A strategy chooses, round by round, whose latency is measured and whose energy: the guide
(`kernrec.model.search.energy_guide`) or the genetic search (`kernrec.model.search.genetic_search`). The rounds are
measured by a campaign, as `collect` does, so that they are checked, durable at once and in closed blocks; what the
database has of the problem on this device already is known from the start.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.budget import check_budget
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.collect import CollectRequest, devices_of
from kernrec.measure.measuring_device import MeasuringDevice, new_session
from kernrec.measure.search_rounds import SearchResult, SearchRounds, Strategy
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement


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
        UsageError: before anything is measured: no such device, several problems, a budget
            shorter than one measurement, or another collector is running.
        KernrecError: before anything is measured.
    """
    if request.gpu == "all":
        raise UsageError("--gpu all: a search uses one GPU; name it")
    check_budget(request.budget, objective is not Objective.LATENCY)
    whole = replace(request, effort=MeasuringEffort(None, 0))
    with Journal(journal_path(request.database)) as journal, TemporaryDirectory(prefix="kernrec-") as scratch:
        stored = ingest(journal, request.database)
        (work,) = devices_of(whole, Path(scratch))
        rounds = SearchRounds(work.problems, objective, strategy, request.seed)
        return _Search(whole, rounds, work.device, (report, stopping)).run(journal, stored)


class _Search:
    """One search; its campaign takes the rounds from `_plans`."""

    def __init__(
        self,
        request: CollectRequest,
        rounds: SearchRounds,
        device: MeasuringDevice,
        caller: tuple[Callable[[Progress], None], Callable[[], bool]],
    ) -> None:
        self._request = request
        self._rounds = rounds
        self._device = device
        self._report, self._stopping = caller

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
        return self._rounds.result(stored + self._stored, error, stopped)

    def _make_campaign(self, journal: Journal) -> Campaign:
        request, device = self._request, self._device
        self._stored = 0

        def store() -> None:
            with suppress(UsageError):
                self._stored += ingest(journal, request.database)

        settings = device.settings(new_session(), request.effort, request.budget, request.seed)
        hooks = CampaignHooks(lambda problem: self._earlier(), self._stopping, self._take, store)
        client = WorkerClient(device.opening, self._stopping)
        return Campaign(client, self._plans(), journal, settings, hooks, device.compile_queue())

    def _earlier(self) -> list[Measurement]:
        return self._device.earlier(self._request.database, self._rounds.planned.problem)

    def _plans(self) -> Iterator[PlannedProblem]:
        """What to measure, round by round: latencies, and then the energies that matter."""
        rounds, traits = self._rounds, self._campaign.session.traits
        if rounds.with_energy and not traits.measures_energy:
            raise KernrecError("energy is not measured on this device; --objective latency needs none")
        for measurement in self._earlier():
            if self._campaign.at_present_settings(measurement):
                rounds.learn(measurement)
        if energy := rounds.energies():  # of earlier measurements
            yield rounds.plan(energy, EnergyRule.ALL)
        while not self._stopping():
            if configs := rounds.latencies():
                yield rounds.plan(configs, EnergyRule.NONE)
            if energy := rounds.energies():
                yield rounds.plan(energy, EnergyRule.ALL)
            if not configs and not energy:
                return

    def _take(self, progress: Progress) -> None:
        self._report(progress)
        if progress.measurement is not None:
            self._rounds.learn(progress.measurement)
