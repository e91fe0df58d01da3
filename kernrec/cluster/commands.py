"""`collect`, `refine` and `search` with `--cluster` as library calls: each on all cards of a cluster.

Each kind of GPU has a chooser of its own, the one of a single machine for `refine` and `search`. A budget of configs is
for all cards of a kind together, one of seconds for each card.
"""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from kernrec.cluster.card import Limits, limits_of
from kernrec.cluster.driver import Cluster, Driver
from kernrec.cluster.shared_problems import SharedProblems
from kernrec.measure.campaign.ingest import present_measurements
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import check_budget
from kernrec.measure.collect import (
    CollectRequest,
    CollectResult,
    Report,
    Stopping,
    concluded,
    open_journal,
    planned_on,
    recorded_work_on,
    replayed_gpus,
)
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.knowledge import Knowledge
from kernrec.measure.refine import take_abandoned
from kernrec.measure.refine_planner import RefinePlanner, RefineResult
from kernrec.measure.refine_subject import RefineRequest, check_refinable, subject_on
from kernrec.measure.search import check_search
from kernrec.measure.search_rounds import SearchResult, SearchRounds, Strategy
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement

Result = TypeVar("Result")


@dataclass(frozen=True)
class ResultsByKind(Generic[Result]):
    """The result for each kind of GPU."""

    results: tuple[tuple[str, Result], ...]
    """With the name of the kind."""
    stopped: bool
    """Whether it was told to stop."""
    error: str | None
    """The reason for an early end, in one line."""


def collect_on(
    cluster: Cluster,
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> CollectResult:
    """Measure what is requested on a cluster, which is closed at the end. Arguments and errors as `collect`."""
    kinds: dict[str, SharedProblems] = {}

    def chooser(gpu: str, limits: Limits) -> SharedProblems:
        problems = planned_on(gpu, request)
        kinds[gpu] = SharedProblems(problems, request.budget.configs)
        for planned in problems if request.resume else ():
            kinds[gpu].begin(_present(request, planned, gpu, limits))
        return kinds[gpu]

    try:
        with open_journal(request, report) as (journal, leftover):
            effort = replace(request.effort, configs=None)
            driver = Driver(cluster, replace(request, effort=effort), chooser, journal, report, stopping)
            results = driver.run()
            by_problem = tuple(result for kind in kinds.values() for result in kind.results)
            return concluded(replace(results, results=by_problem, leftover=leftover), journal, request.database)
    finally:
        cluster.close()


def refine_on(
    cluster: Cluster,
    request: RefineRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> ResultsByKind[RefineResult]:
    """Refine on a cluster, which is closed at the end. Arguments and errors as `refine`."""
    kinds: dict[str, RefinePlanner] = {}

    def chooser(gpu: str, limits: Limits) -> RefinePlanner:
        kinds[gpu] = RefinePlanner(request, Knowledge(subject_on(gpu, request), request), stopping=stopping)
        return kinds[gpu]

    try:
        check_refinable(request)
        needs_energy = request.objective is not Objective.LATENCY
        check_budget(request.budget, needs_energy)
        take_abandoned(request.database, report)
        with open_journal(request.campaign, report) as (journal, _):
            driver = Driver(cluster, request.campaign, chooser, journal, report, stopping, needs_energy)
            ended = concluded(driver.run(), journal, request.database)
        results = tuple(
            (gpu, kind.result(kind.rows if ended.stored else 0, None, ended.stopped)) for gpu, kind in kinds.items()
        )
        return ResultsByKind(results, ended.stopped, ended.error)
    finally:
        cluster.close()


def search_on(
    cluster: Cluster,
    request: CollectRequest,
    objective: Objective,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
    strategy: Strategy = Strategy.GUIDE,
) -> ResultsByKind[SearchResult]:
    """Search on a cluster, which is closed at the end. Arguments and errors as `search`."""
    kinds: dict[str, SearchRounds] = {}

    def chooser(gpu: str, limits: Limits) -> SearchRounds:
        rounds = kinds[gpu] = SearchRounds(planned_on(gpu, request), objective, strategy, request)
        rounds.begin(_present(request, rounds.planned, gpu, limits))
        return rounds

    try:
        request = check_search(request, objective)
        if request.device == DeviceKind.REPLAY:  # of a card it is not known before one comes
            for gpu in replayed_gpus(request):
                SearchRounds(recorded_work_on(gpu, request).problems, objective, strategy, request)
        with open_journal(request, report) as (journal, _):
            needs_energy = objective is not Objective.LATENCY
            driver = Driver(cluster, request, chooser, journal, report, stopping, needs_energy)
            ended = concluded(driver.run(), journal, request.database)
        results = tuple(
            (gpu, kind.result(kind.rows if ended.stored else 0, None, False)) for gpu, kind in kinds.items()
        )
        return ResultsByKind(results, ended.stopped, ended.error)
    finally:
        cluster.close()


def _present(request: CollectRequest, planned: PlannedProblem, gpu: str, limits: Limits) -> list[Measurement]:
    """The measurements of a problem that the database has of cards of a kind that were set as they are now."""
    earlier = present_measurements(request.database, planned.problem, gpu)
    return [measurement for measurement in earlier if limits_of(measurement.device) == limits]
