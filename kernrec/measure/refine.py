"""`kernrec refine` as a library call: measure only what is uncertain and matters, until a budget or a bound.

    predictions and rows of the database -> joint posterior -> the visit of greatest gain per second
        -> campaign: compiled, checked, measured, journal -> posterior ...

Beliefs are about one objective at one power limit and clock. The measurements themselves are
made by a campaign, whose problems are chosen one at a time; so its blocks, its journal and its failures are those of
`collect`. Several processes can share one database: each claims a problem while it measures it, and takes the rows of
the others into account.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError
from kernrec.measure.campaign.claims import Claims
from kernrec.measure.campaign.ingest import check_takes_rows, ingest
from kernrec.measure.campaign.journal import abandoned_journals, shared_journal
from kernrec.measure.campaign.results import Progress, check_budget
from kernrec.measure.collect import DeviceWork, Report, Stopping, measure_here
from kernrec.measure.knowledge import Knowledge
from kernrec.measure.refine_planner import RefinePlanner, RefineResult
from kernrec.measure.refine_subject import RefineRequest, open_subject
from kernrec.recommender.request import Objective


@dataclass(frozen=True)
class ProposedVisit:
    """A problem that is worth measuring, and why."""

    name: str
    count: float
    regret: float
    """Expected regret of the present choice."""
    configs: tuple[str, ...]
    """Configs that would be measured, in order."""
    gain: float
    """By how much the weighted mean regret is expected to fall."""
    seconds: float
    """It is expected to take."""


@dataclass(frozen=True)
class Outlook:
    """The first visits of `refine`."""

    regret: float
    """Weighted mean expected regret of the present choices."""
    visits: tuple[ProposedVisit, ...]
    """The most useful first; each problem at most once."""


def outlook(request: RefineRequest) -> Outlook:
    """The problems that `refine` would measure first, and why; nothing is measured. Raises as `refine`."""
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        _, subject = open_subject(request, Path(scratch))
        knowledge = Knowledge(subject, request)
    visits = [
        ProposedVisit(
            knowledge.wanted(visit.problem).name,
            knowledge.wanted(visit.problem).count,
            knowledge.posterior.regret(visit.problem),
            tuple(knowledge.config_text(visit.problem, contender) for contender in visit.contenders),
            visit.gain,
            visit.seconds,
        )
        for visit in RefinePlanner(request, knowledge).refinement.visits()
    ]
    return Outlook(knowledge.posterior.mean_regret(), tuple(visits))


def refine(
    request: RefineRequest, report: Report = lambda progress: None, stopping: Stopping = lambda: False
) -> RefineResult:
    """Measure what lowers the expected regret most.

    Args:
        request: problems, device, objective and database.
        report: called with each measurement and note.
        stopping: called often; once it returns true, refining ends.

    Returns:
        The result; an error after measuring has begun is part of it.

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
            knowledge = Knowledge(subject, request)
            planner = RefinePlanner(request, knowledge, claims.claim, stopping)

            def store(add: Callable[[], int]) -> int:
                version = knowledge.version()
                stored = add()
                knowledge.wrote(version)
                return stored

            work = [DeviceWork(device, [])]
            measured = measure_here(work, request.campaign, journal, report, stopping, lambda _: planner, store)
            stored = measured.stored
            with suppress(KernrecError):  # the journal keeps the rows, and they are stored later
                stored += store(lambda: ingest(journal, request.database))
            return planner.result(stored, measured.error, measured.stopped)


def take_abandoned(database: Path, report: Report) -> None:
    """Bring what processes left behind into a database. Raises `UsageError` where it takes no rows."""
    check_takes_rows(database)
    for journal in abandoned_journals(database):
        ingest(journal, database, lambda text: report(Progress("", "", "", 0, 0, note=text)))
