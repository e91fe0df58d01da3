"""`kernrec refine` as a library call: measure only what is uncertain and matters, until a budget or a bound.

    predictions and rows of the database -> joint posterior -> the visit of greatest gain per second
        -> campaign: compiled, checked, measured, journal -> posterior ...

Beliefs are about one objective at one power limit and clock. The measurements themselves are
made by a campaign, whose problems are chosen one at a time; so its blocks, its journal and its failures are those of
`collect`. Several processes can share one database: each claims a problem while it measures it, and takes the rows of
the others into account.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.claims import Claims
from kernrec.measure.campaign.ingest import check_takes_rows, ingest
from kernrec.measure.campaign.journal import Journal, abandoned_journals, shared_journal
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.knowledge import ChangedAnswer, Knowledge
from kernrec.measure.measuring_device import new_session
from kernrec.measure.protocol import measure_config
from kernrec.measure.refine_subject import RefineRequest, RefineSubject, open_subject
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.model.search.refinement import Costs, Refinement, Visit
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement

FORECAST_S = 600.0
"""Time of which a result says what it would buy."""
_VISIT_S, _LATENCY_S = 1.0, 0.6
"""First guesses of what it takes to prepare a problem and to measure one latency; measured as it goes."""
_NOISE = {Objective.LATENCY: 0.01, Objective.ENERGY: 0.02, Objective.EDP: 0.025}
"""Standard deviation of the logarithm of a measurement: what the protocol lets a card drift."""
_CHECKED_EVERY = 16
"""Visits after which the regret is compared with the bound again."""
_WAIT_S = 0.2
"""Until another process is asked again for the problem that it measures."""


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


@dataclass(frozen=True)
class RefineResult:
    """What was measured, and what is known now."""

    measured: int
    """Configs measured."""
    problems: int
    """Problems they are of."""
    stored: int
    """Rows that are new in the database."""
    changed: tuple[ChangedAnswer, ...]
    regret: tuple[float, float]
    """Weighted mean expected regret before and after."""
    forecast: float
    """By how much it is expected to fall in another `FORECAST_S` seconds."""
    ended: str
    """Why it ended, in words."""
    deciding_s: float
    """Time spent on decisions."""
    error: str | None = None
    """What ended it early, in one line."""
    stopped: bool = False
    """Whether it was told to stop."""


def outlook(request: RefineRequest) -> Outlook:
    """What `refine` would measure first, and why; nothing is measured. Raises as `refine`."""
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        knowledge = Knowledge(open_subject(request, Path(scratch)), request)
    refinement = _refinement(request, knowledge)
    visits = refinement.visits()
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
    _check_budget(request)
    with TemporaryDirectory(prefix="kernrec-") as scratch:
        subject = open_subject(request, Path(scratch))
        check_takes_rows(request.database)
        for journal in abandoned_journals(request.database):
            ingest(journal, request.database, lambda text: report(Progress("", "", "", 0, 0, note=text)))
        with shared_journal(request.database) as journal, Claims(request.database) as claims:
            knowledge = Knowledge(subject, request)
            return _Run(request, knowledge, claims, report, stopping).run(subject, journal)


def _check_budget(request: RefineRequest) -> None:
    least_s = measure_config.LATENCY_CAP_S
    if request.objective is not Objective.LATENCY:
        least_s += measure_config.SETTLE_S + min(coarse for coarse, _ in measure_config.WINDOWS_S.values())
    seconds = request.budget.seconds
    if seconds is not None and seconds < least_s:
        raise UsageError(
            f"a budget of {seconds:.3g} s is shorter than one measurement, which takes up to {least_s:.3g} s;"
            " give more, or a number such as 20configs"
        )


def _refinement(request: RefineRequest, knowledge: Knowledge) -> Refinement:
    each_s = _LATENCY_S
    if request.objective is not Objective.LATENCY:
        each_s += measure_config.SETTLE_S + 1.0
    return Refinement(knowledge.posterior, Costs(_VISIT_S, each_s), _NOISE[request.objective])


class _Run:
    """One run of refining; the campaign takes its problems from `_visits`."""

    def __init__(
        self,
        request: RefineRequest,
        knowledge: Knowledge,
        claims: Claims,
        report: Callable[[Progress], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._request = request
        self._knowledge = knowledge
        self._claims = claims
        self._report = report
        self._stopping = stopping
        self._refinement = _refinement(request, knowledge)
        self._result = RefineResult(0, 0, 0, (), (0.0, 0.0), 0.0, "the budget is spent", 0.0)
        self._visit: Visit | None = None
        self._seen: list[tuple[int, int]] = []  # (problem, contender) measured, of all visits

    def run(self, subject: RefineSubject, journal: Journal) -> RefineResult:
        """Measure; returns what is known then."""
        posterior = self._knowledge.posterior
        before = [posterior.choice(problem) for problem in range(len(posterior))]
        first = posterior.mean_regret()
        error, stopped = None, False
        self._campaign = self._make_campaign(subject, journal)
        try:
            self._campaign.run()
        except Stopped:
            stopped = True
        except KernrecError as failure:
            error = str(failure)
        with suppress(KernrecError):
            self._store(journal)
        posterior.rescale()
        return replace(
            self._result,
            measured=len(self._seen),
            problems=len({problem for problem, _ in self._seen}),
            changed=tuple(self._knowledge.changed(before)),
            regret=(first, posterior.mean_regret()),
            forecast=self._refinement.forecast(FORECAST_S),
            error=error,
            stopped=stopped,
        )

    def _make_campaign(self, subject: RefineSubject, journal: Journal) -> Campaign:
        request = self._request
        device = subject.device
        settings = device.settings(new_session(), MeasuringEffort(None, 0), request.budget, request.seed)
        hooks = CampaignHooks(
            lambda problem: device.earlier(request.database, problem),
            self._stopping,
            self._take,
            lambda: self._store(journal),
        )
        client = WorkerClient(device.opening, self._stopping)
        return Campaign(client, self._visits(), journal, settings, hooks, device.compile_queue())

    def _store(self, journal: Journal) -> None:
        with suppress(UsageError):  # in use, for example: the journal keeps the rows, and they are stored later
            version = self._knowledge.version()
            self._result = replace(self._result, stored=self._result.stored + ingest(journal, self._request.database))
            self._knowledge.wrote(version)

    def _visits(self) -> Iterator[PlannedProblem]:
        """The problems to measure, chosen one at a time."""
        session, request = self._campaign.session, self._request
        if request.objective is not Objective.LATENCY and not session.traits.measures_energy:
            raise KernrecError(f"energy is not measured on this device; --objective {request.objective} needs it")
        energy = EnergyRule.NONE if request.objective is Objective.LATENCY else EnergyRule.ALL
        number = 0
        while not self._stopping():
            start_s = time.perf_counter()
            self._visit = visit = self._decide(number)
            self._result = replace(self._result, deciding_s=self._result.deciding_s + time.perf_counter() - start_s)
            if visit is None:
                return
            number += 1
            begun_s, before = session.clock(), len(self._seen)
            wanted = self._knowledge.wanted(visit.problem)
            tasks = tuple(self._knowledge.task(visit.problem, contender) for contender in visit.contenders)
            yield PlannedProblem(wanted.name, wanted.problem, tasks, energy=energy)
            self._account(visit, session.clock() - begun_s, len(self._seen) - before)

    def _decide(self, number: int) -> Visit | None:
        """The next visit, its problem claimed; None where refining ends."""
        until = self._request.until
        if until is not None and number % _CHECKED_EVERY == 0:
            self._knowledge.posterior.rescale()
            if self._knowledge.posterior.regret_bound() <= until:
                self._result = replace(self._result, ended=f"the regret is below {100 * until:.3g} %")
                return None
        taken: set[int] = set()
        while not self._stopping():
            visit = self._refinement.next(without=taken)
            if visit is None and taken:  # other processes measure all that is left
                time.sleep(_WAIT_S)
                taken.clear()
            elif visit is None:
                self._result = replace(self._result, ended="every contender is measured")
                return None
            elif not self._claims.claim(self._knowledge.wanted(visit.problem).problem.key):
                taken.add(visit.problem)
            elif not self._knowledge.take_rows(visit.problem, self._refinement.take):
                return visit
        return None

    def _account(self, visit: Visit, seconds: float, measured: int) -> None:
        """What a visit took, and contenders that could not be measured."""
        if missing := self._missing(visit):
            self._knowledge.take_rows(visit.problem, self._refinement.take)  # another process may have been faster
            missing = self._missing(visit)
        for contender in missing:
            self._knowledge.posterior.exclude(visit.problem, contender)
        costs = self._refinement.costs
        expected_s = costs.visit_s + measured * costs.each_s
        if measured and seconds > 0.0:
            factor = math.sqrt(seconds / expected_s)  # half way, in logarithms
            costs.visit_s, costs.each_s = factor * costs.visit_s, factor * costs.each_s
        self._refinement.look(visit.problem)

    def _missing(self, visit: Visit) -> set[int]:
        """The contenders of a visit of which nothing is known."""
        return set(visit.contenders) - {row.contender for row in self._knowledge.posterior.measured(visit.problem)}

    def _take(self, progress: Progress) -> None:
        """Pass a step on, and learn from its measurement."""
        self._report(progress)
        if progress.measurement is not None and self._visit is not None:
            self._learn(self._visit.problem, progress.measurement)

    def _learn(self, problem: int, measurement: Measurement) -> None:
        measured = self._knowledge.measured(problem, measurement)
        if measured is None:
            return
        if (problem, measured.contender) not in self._seen:
            self._seen.append((problem, measured.contender))
        self._refinement.take(problem, measured)
