"""`kernrec collect --cluster` as a library call: a campaign on all cards of a cluster."""

from collections.abc import Callable

from kernrec.cluster.campaign_plan import CampaignPlan
from kernrec.cluster.driver import Cluster, Driver
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import Progress
from kernrec.measure.collect import (
    CollectRequest,
    CollectResult,
    open_journal,
    plan_for_card,
    planning_context,
    recorded_work_on,
)
from kernrec.measure.device.interface import DeviceKind


def collect_on(
    cluster: Cluster,
    request: CollectRequest,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> CollectResult:
    """Measure what is requested on a cluster, which is closed at the end. Arguments and errors as `collect`."""
    try:
        with open_journal(request, report) as (journal, leftover):
            plan = CampaignPlan(
                lambda gpu: planned_on(gpu, request), request.database, request.resume, request.budget.configs
            )
            return Driver(cluster, request, plan, journal, (report, stopping)).run(leftover)
    finally:
        cluster.close()


def planned_on(gpu: str, request: CollectRequest) -> list[PlannedProblem]:
    """The problems of a request on a kind of GPU, as `collect` plans them. Raises as `collect`."""
    if request.device == DeviceKind.REPLAY:
        return recorded_work_on(gpu, request).problems
    return plan_for_card(request, find_gpu(gpu), planning_context(request))
