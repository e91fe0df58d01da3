"""Run one measuring campaign on all GPUs of a cluster: the library call behind `kernrec collect --cluster`.

Each GPU model has its own `Chooser`. All GPUs of a model share one limit on the number of configs. The time limit
applies to each GPU separately. With `Strategy.ALL`, one GPU makes all measurements of a problem, because two GPUs of
one model differ by more than good configs do. The other strategies divide one problem among all GPUs of the model.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kernrec.cluster.driver import Cluster, Driver
from kernrec.cluster.gpu_actor import Limits, limits_of
from kernrec.errors import UsageError
from kernrec.measure.campaign.ingest import present_measurements
from kernrec.measure.campaign.plan import Chooser, PlannedProblem, Visit
from kernrec.measure.campaign.results import ProblemResult
from kernrec.measure.collect import chooser_on, concluded, open_journal
from kernrec.measure.device.replay import chosen_gpus
from kernrec.measure.problems import planned_on
from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping, Strategy
from kernrec.op import Problem
from kernrec.store import canonical_json
from kernrec.store.measurement import Measurement

_SLICE_S = 20.0
"""Seconds after which a GPU interrupts a problem and reports its measurements. Its next visit continues the problem."""


@dataclass
class _Problem:
    planned: PlannedProblem
    most: int
    result: ProblemResult
    tasks: set[tuple[str, str, str]]
    """Keys (`Task.key`) of the configs that are measured for this problem."""
    rows: list[Measurement] = field(default_factory=list)
    home: str | None = None
    """Name of the GPU that measures the problem; None if no GPU has begun it."""
    busy: bool = False
    """Whether a GPU is measuring the problem right now."""
    done: bool = False


class SharedProblems(Chooser):
    """Chooser that divides a fixed list of planned problems among the GPUs of one model."""

    def __init__(self, problems: Sequence[PlannedProblem], configs: int | None) -> None:
        """Create a chooser that screens at most `configs` configs (None for no limit) of all problems together."""
        self._problems: dict[str, _Problem] = {}
        part = None if configs is None else math.ceil(configs / max(1, len(problems)))
        for planned in problems:
            most = min(count for count in (planned.most, part, len(planned.tasks)) if count is not None)
            result = ProblemResult(planned.name, planned.problem.key, most)
            tasks = {task.key for task in planned.tasks}
            self._problems[planned.problem.key] = _Problem(planned, most, result, tasks)

    @property
    def results(self) -> tuple[ProblemResult, ...]:
        """Return the results so far, one entry per problem."""
        return tuple(problem.result for problem in self._problems.values())

    @property
    def recalled(self) -> Sequence[Problem]:
        return [problem.planned.problem for problem in self._problems.values()]

    def begin(self, earlier: Iterable[Measurement]) -> None:
        for measurement in earlier:
            if (problem := self._problems.get(measurement.identity.problem.key)) is not None:
                problem.result.add_earlier(measurement)
                _add(problem, measurement)

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> Visit | None:
        unfinished = [problem for problem in self._problems.values() if not problem.done]
        idle = [problem for problem in unfinished if not problem.busy]
        own = (problem for problem in idle if problem.home == gpu)
        chosen = next(own, None) or next((problem for problem in idle if problem.home not in gpus), None)
        if chosen is None:
            return None
        chosen.home, chosen.busy = gpu, True
        share = min(1.0, len(gpus) / len(unfinished))
        planned = replace(chosen.planned, most=chosen.most, share=share, slice_s=_SLICE_S)
        return Visit(planned, tuple(chosen.rows))

    def learn(self, measurement: Measurement) -> None:
        if (problem := self._problems.get(measurement.identity.problem.key)) is not None:
            problem.result.add_new(measurement)
            _add(problem, measurement)

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        problem = self._problems[visit.planned.problem.key]
        problem.busy = False
        if over:
            problem.done = True
            problem.rows.clear()


def _add(problem: _Problem, measurement: Measurement) -> None:
    identity = measurement.identity
    key = identity.kernel, identity.kernel_hash, canonical_json(dict(identity.config))
    if key in problem.tasks and not problem.done:
        problem.rows.append(measurement)


def collect_on(
    cluster: Cluster,
    request: CollectRequest,
    report: Report = lambda progress: None,
    stopping: Stopping = lambda: False,
) -> CollectResult:
    """Measure the requested problems on a cluster, and then end its actors. See `kernrec.measure.collect.collect`."""
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
        # Check the recordings now, because the cluster's GPUs are unknown until they have joined.
        if request.recording is not None and request.strategy.searches:
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
