"""Run one measuring campaign on all GPUs of a cluster.

All GPUs of a model share one limit on the number of configs, and each GPU has its own time limit. If every config is
measured (`Strategy.ALL`), one GPU measures all configs for a shape, because two GPUs of the same model can differ more
in speed than two good configs. With other strategies, the GPUs of a model share the configs for a shape.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kernrec.cluster.driver import Driver
from kernrec.errors import UsageError
from kernrec.measure.campaign.ingest import earlier_measurements
from kernrec.measure.campaign.plan import Chooser, PlannedProblem
from kernrec.measure.campaign.results import ProblemResult
from kernrec.measure.collect import chooser_of, concluded, open_journal
from kernrec.measure.device.replay import chosen_gpus
from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping, Strategy
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.op import Problem
from kernrec.store.measurement import Limits, Measurement

if TYPE_CHECKING:
    from kernrec.cluster.ray_cluster import RayCluster


class SharedProblems(Chooser):
    """Chooser that divides a fixed list of planned problems among the GPUs of one model."""

    def __init__(self, problems: Sequence[PlannedProblem], configs: int | None) -> None:
        """Create a chooser. `configs` limits the total number of configs of all problems, unless it is None."""
        problems = list({planned.problem.key: planned for planned in problems}.values())
        part = None if configs is None else math.ceil(configs / max(1, len(problems)))
        self._waiting: list[PlannedProblem] = []
        self._unfinished = len(problems)
        self._earlier: dict[str, list[Measurement]] = {}
        self._results: dict[str, ProblemResult] = {}
        for planned in problems:
            most = min(count for count in (planned.most, part, len(planned.tasks)) if count is not None)
            self._waiting.append(replace(planned, most=most))
            self._earlier[planned.problem.key] = []
            self._results[planned.problem.key] = ProblemResult(planned.name, planned.problem.key, most)

    @property
    def results(self) -> tuple[ProblemResult, ...]:
        return tuple(self._results.values())

    @property
    def recalled(self) -> Sequence[Problem]:
        return [planned.problem for planned in self._waiting]

    def begin(self, earlier: Iterable[Measurement]) -> None:
        for measurement in earlier:
            if (key := measurement.problem.key) in self._results:
                self._results[key].add_earlier(measurement)
                self._earlier[key].append(measurement)

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedProblem | None:
        if not self._waiting:
            return None
        planned = self._waiting.pop(0)
        share = min(1.0, len(gpus) / self._unfinished)
        return replace(planned, share=share, earlier=tuple(self._earlier.pop(planned.problem.key)))

    def learn(self, measurement: Measurement) -> None:
        if (result := self._results.get(measurement.problem.key)) is not None:
            result.add_new(measurement)

    def done(self, visit: PlannedProblem, seconds: float) -> None:
        self._unfinished -= 1


def collect_on(
    cluster: "RayCluster",
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> CollectResult:
    """Measure the requested problems on a cluster. For arguments and result, see `kernrec.measure.collect.collect`."""
    kinds: dict[str, Chooser] = {}

    def chooser(gpu: str, limits: Limits) -> Chooser:
        on_gpu = RequestOnGpu(request, gpu)
        if request.strategy is Strategy.ALL:
            kinds[gpu] = SharedProblems(on_gpu.planned(), request.budget.configs)
        else:
            kinds[gpu] = chooser_of(on_gpu)
        for problem in kinds[gpu].recalled:
            earlier = earlier_measurements(request.database, problem, gpu)
            ended = (each for each in earlier if not each.block_open)  # Repeat unfinished blocks.
            kinds[gpu].begin(each for each in ended if each.limits == limits)
        return kinds[gpu]

    try:
        if request.strategy is Strategy.PLAN:
            raise UsageError("give --op, and --shape or --workload: --strategy plan cannot be used with a cluster")
        request.check(many_gpus=True)
        # Any recorded GPU may join later, so check the request for all of them now.
        if request.recording is not None and request.strategy.searches:
            for gpu in chosen_gpus(request.recording, request.gpu):
                chooser_of(RequestOnGpu(request, gpu))
        with open_journal(request.database, report) as (journal, leftover):
            result = Driver(cluster, request, chooser, journal, report, stopping).run()
            results = [each for kind in kinds.values() if isinstance(kind, SharedProblems) for each in kind.results]
            result = replace(result, results=tuple(results), leftover=leftover)
            ended = concluded(result, journal)
        outcomes = ((gpu, kind.outcome()) for gpu, kind in kinds.items())
        return replace(ended, outcomes=tuple((gpu, outcome) for gpu, outcome in outcomes if outcome is not None))
    finally:
        cluster.close()
