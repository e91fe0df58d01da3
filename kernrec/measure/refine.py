"""`kernrec refine` as a library call: measure only what is uncertain and matters, until a budget or a bound.

    predictions and rows of the database -> joint posterior -> the visit of greatest gain per second
        -> campaign: compiled, checked, measured, journal -> posterior ...

Beliefs are about one objective at one power limit and clock. The measurements themselves are
made by a campaign, whose problems are chosen one at a time; so its blocks, its journal and its failures are those of
`collect`. Several processes can share one database: each claims a problem while it measures it, and takes the rows of
the others into account.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.budget import check_budget
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.claims import Claims
from kernrec.measure.campaign.ingest import check_takes_rows, ingest
from kernrec.measure.campaign.journal import Journal, abandoned_journals, shared_journal
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.knowledge import Knowledge
from kernrec.measure.measuring_device import MeasuringDevice, new_session
from kernrec.measure.refine_planner import RefinePlanner, RefineResult
from kernrec.measure.refine_subject import RefineRequest, open_subject
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.model.search.refinement import Visit
from kernrec.recommender.request import Objective


@dataclass(frozen=True)
class ProposedVisit:
    """A problem that is worth measuring, and why."""

    name: str
    count: float
    regret: float
    """Expected regret of the present choice."""
    configs: tuple[str, ...]
    """What would be measured, in order."""
    gain: float
    """By how much the weighted mean regret is expected to fall."""
    seconds: float
    """It is expected to take."""


@dataclass(frozen=True)
class Outlook:
    """What refining would do."""

    regret: float
    """Weighted mean expected regret of the present choices."""
    visits: tuple[ProposedVisit, ...]
    """The most useful first; each problem at most once."""


def outlook(request: RefineRequest) -> Outlook:
    """What `refine` would measure first, and why; nothing is measured. Raises as `refine`."""
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        _, subject = open_subject(request, Path(scratch))
        knowledge = Knowledge(subject, request)
    visits = RefinePlanner(request, knowledge).refinement.visits()
    return Outlook(knowledge.posterior.mean_regret(), tuple(_proposed(visit, knowledge) for visit in visits))


def _proposed(visit: Visit, knowledge: Knowledge) -> ProposedVisit:
    wanted = knowledge.wanted(visit.problem)
    return ProposedVisit(
        wanted.name,
        wanted.count,
        knowledge.posterior.regret(visit.problem),
        tuple(knowledge.config_text(visit.problem, contender) for contender in visit.contenders),
        visit.gain,
        visit.seconds,
    )


def refine(
    request: RefineRequest,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> RefineResult:
    """Measure what lowers the expected regret most.

    Args:
        request: what to refine.
        report: called with each measurement and note.
        stopping: called often; once it returns true, refining ends.

    Returns:
        What was measured; an error after measuring has begun is part of it.

    Raises:
        UsageError: before anything is measured: no such device, a problem that nothing can run, a budget shorter than
            one measurement.
        KernrecError: before anything is measured.
    """
    check_budget(request.budget, request.objective is not Objective.LATENCY)
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        device, subject = open_subject(request, Path(scratch))
        take_abandoned(request.database, report)
        with shared_journal(request.database) as journal, Claims(request.database) as claims:
            planner = RefinePlanner(request, Knowledge(subject, request), claims.claim)
            return _Run(request, planner, journal, (report, stopping)).run(device)


def take_abandoned(database: Path, report: Callable[[Progress], None]) -> None:
    """Bring what processes left behind into a database. Raises `UsageError` where it takes no rows."""
    check_takes_rows(database)
    for journal in abandoned_journals(database):
        ingest(journal, database, lambda text: report(Progress("", "", "", 0, 0, note=text)))


class _Run:
    """One run of refining on one device; the campaign takes its problems from `_visits`."""

    def __init__(
        self,
        request: RefineRequest,
        planner: RefinePlanner,
        journal: Journal,
        caller: tuple[Callable[[Progress], None], Callable[[], bool]],
    ) -> None:
        self._request = request
        self._planner = planner
        self._journal = journal
        self._report, self._stopping = caller
        self._stored = 0
        self._visit: Visit | None = None

    def run(self, device: MeasuringDevice) -> RefineResult:
        """Measure; returns what is known then."""
        error, stopped = None, False
        self._campaign = self._make_campaign(device)
        try:
            self._campaign.run()
        except Stopped:
            stopped = True
        except KernrecError as failure:
            error = str(failure)
        with suppress(KernrecError):
            self._store()
        return self._planner.result(self._stored, error, stopped)

    def _make_campaign(self, device: MeasuringDevice) -> Campaign:
        request = self._request
        settings = device.settings(new_session(), MeasuringEffort(None, 0), request.budget, request.seed)
        hooks = CampaignHooks(
            lambda problem: device.earlier(request.database, problem), self._stopping, self._take, self._store
        )
        client = WorkerClient(device.opening, self._stopping)
        return Campaign(client, self._visits(), self._journal, settings, hooks, device.compile_queue())

    def _store(self) -> None:
        with suppress(UsageError):  # in use, for example: the journal keeps the rows, and they are stored later
            version = self._planner.knowledge.version()
            self._stored += ingest(self._journal, self._request.database)
            self._planner.knowledge.wrote(version)

    def _visits(self) -> Iterator[PlannedProblem]:
        """The problems to measure, chosen one at a time."""
        session, request = self._campaign.session, self._request
        if request.objective is not Objective.LATENCY and not session.traits.measures_energy:
            raise KernrecError(f"energy is not measured on this device; --objective {request.objective} needs it")
        while not self._stopping() and (chosen := self._planner.next(stopping=self._stopping)) is not None:
            self._visit, planned = chosen
            begun_s = session.clock()
            yield planned
            self._planner.account(self._visit, session.clock() - begun_s)

    def _take(self, progress: Progress) -> None:
        """Pass a step on, and learn from its measurement."""
        self._report(progress)
        if progress.measurement is not None and self._visit is not None:
            self._planner.learn(self._visit.problem, progress.measurement)
