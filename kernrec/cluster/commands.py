"""Run one campaign on all GPUs of a cluster: the library call behind `collect --cluster`.

Each GPU model has its own chooser. All GPUs of a model share a budget of configs; each GPU has its own budget of
seconds.
"""

from dataclasses import replace

from kernrec.cluster.card import Limits, limits_of
from kernrec.cluster.driver import Cluster, Driver
from kernrec.cluster.shared_problems import SharedProblems
from kernrec.errors import UsageError
from kernrec.measure.campaign.chooser import Chooser
from kernrec.measure.campaign.ingest import present_measurements
from kernrec.measure.collect import chooser_on, concluded, open_journal
from kernrec.measure.device.replay import chosen_gpus
from kernrec.measure.problems import planned_on
from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping, Strategy


def collect_on(
    cluster: Cluster,
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> CollectResult:
    """Measure the requested problems on a cluster, then close it. Arguments and errors are those of `collect`."""
    kinds: dict[str, Chooser] = {}

    def chooser(gpu: str, limits: Limits) -> Chooser:
        if request.strategy is Strategy.ALL:
            kinds[gpu] = SharedProblems(planned_on(gpu, request), request.budget.configs)
        else:
            kinds[gpu] = chooser_on(gpu, request)
        for problem in kinds[gpu].recalled if request.resume else ():
            earlier = present_measurements(request.database, problem, gpu)
            ended = (each for each in earlier if not each.origin.block_open)  # measurements of open blocks are repeated
            kinds[gpu].begin(each for each in ended if limits_of(each.device) == limits)
        return kinds[gpu]

    try:
        if request.strategy is Strategy.PLAN:
            raise UsageError("give --op, and --shape or --workload: --strategy plan cannot be used with a cluster")
        request.check(many_gpus=True)
        if request.recording is not None and request.strategy.searches:  # The GPUs are unknown until they have joined.
            for gpu in chosen_gpus(request.recording, request.gpu):
                chooser_on(gpu, request)
        with open_journal(request, report) as (journal, leftover):
            result = Driver(cluster, request, chooser, journal, report, stopping).run()
            results = [each for kind in kinds.values() if isinstance(kind, SharedProblems) for each in kind.results]
            result = replace(result, results=tuple(results), leftover=leftover)
            ended = concluded(result, journal, request.database)
        outcomes = ((gpu, kind.outcome()) for gpu, kind in kinds.items())
        return replace(ended, outcomes=tuple((gpu, outcome) for gpu, outcome in outcomes if outcome is not None))
    finally:
        cluster.close()
