"""`kernrec refine --cluster` as a library call: what is uncertain and matters, measured on all cards of a cluster.

Each kind of GPU has a planner, as a single machine has: a card that has nothing to do gets the visit of greatest gain
per second among the problems that no other card of its kind visits; what it measures counts for the next decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kernrec.cluster.campaign_plan import CampaignPlan, CampaignVisit
from kernrec.cluster.driver import Cluster, Driver
from kernrec.cluster.messages import CardIdentity
from kernrec.measure.campaign.budget import check_budget
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.collect import CollectRequest, open_journal
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.knowledge import Knowledge
from kernrec.measure.refine import take_abandoned
from kernrec.measure.refine_planner import RefinePlanner, RefineResult
from kernrec.measure.refine_subject import RefineRequest, check_refinable, subject_on
from kernrec.model.search.refinement import Visit
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement


@dataclass(frozen=True)
class ClusterRefineResult:
    """What was measured on each kind of GPU, and what is known now."""

    results: tuple[tuple[str, RefineResult], ...]
    """With the name of the kind."""
    stopped: bool
    """Whether it was told to stop."""
    error: str | None
    """What ended it early, in one line."""


def refine_on(
    cluster: Cluster,
    request: RefineRequest,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> ClusterRefineResult:
    """Refine on a cluster, which is closed at the end. Arguments and errors as `refine`.

    A budget of configs is for all cards of a kind together, one of seconds for each card.
    """
    try:
        check_refinable(request)
        check_budget(request.budget, request.objective is not Objective.LATENCY)
        take_abandoned(request.database, report)
        where = CollectRequest(
            problems=None,
            database=request.database,
            device=DeviceKind.CUDA if request.recording is None else DeviceKind.REPLAY,
            gpu=request.gpu,
            recording=request.recording,
            effort=MeasuringEffort(None, 0),
            budget=request.budget,
            seed=request.seed,
        )
        visits = _Visits(request)
        needs_energy = request.objective is not Objective.LATENCY
        plan = CampaignPlan(lambda gpu: (), request.database, False, visits=visits, needs_energy=needs_energy)
        with open_journal(where, report) as (journal, leftover):
            collected = Driver(cluster, where, plan, journal, (report, stopping)).run(leftover)
        results = visits.results(collected.stored > 0, collected.stopped)
        return ClusterRefineResult(results, collected.stopped, collected.error)
    finally:
        cluster.close()


@dataclass
class _Kind:
    """The visits of a kind of GPU."""

    planner: RefinePlanner
    pending: dict[str, Visit] = field(default_factory=dict)
    """By the key of their problem, those that are under way."""
    rows: int = 0


class _Visits:
    """`Visits` of the coordinator: a planner for each kind of GPU."""

    recalls = False  # every visit measures other configs

    def __init__(self, request: RefineRequest) -> None:
        self._request = request
        self._kinds: dict[str, _Kind] = {}

    def next(self, gpu: str, card: str, cards: Mapping[str, CardIdentity]) -> CampaignVisit | None:
        """As of `Visits`."""
        if gpu not in self._kinds:
            knowledge = Knowledge(subject_on(gpu, self._request), self._request)
            self._kinds[gpu] = _Kind(RefinePlanner(self._request, knowledge))
        kind = self._kinds[gpu]
        chosen = kind.planner.next({visit.problem for visit in kind.pending.values()})
        if chosen is None:
            return None
        visit, planned = chosen
        kind.pending[planned.problem.key] = visit
        return CampaignVisit(planned)

    def learn(self, gpu: str, measurement: Measurement) -> None:
        """As of `Visits`."""
        kind = self._kinds[gpu]
        kind.rows += 1
        if (visit := kind.pending.get(measurement.identity.problem.key)) is not None:
            kind.planner.learn(visit.problem, measurement)

    def done(self, gpu: str, visit: str, seconds: float) -> None:
        """As of `Visits`."""
        kind = self._kinds[gpu]
        kind.planner.account(kind.pending.pop(visit), seconds)

    def results(self, stored: bool, stopped: bool) -> tuple[tuple[str, RefineResult], ...]:
        """What is known on each kind; stored: whether the rows are in the database."""
        return tuple(
            (gpu, kind.planner.result(kind.rows if stored else 0, None, stopped)) for gpu, kind in self._kinds.items()
        )
