"""Run one campaign on all GPUs of a cluster: the library call behind `collect --cluster`.

Each GPU model has its own chooser. All GPUs of a model share a budget of configs; each GPU has its own budget of
seconds.

The GPU that begins a problem is the problem's home, and works on it in time slices. If there are more GPUs than
problems, other GPUs help to screen: each gets its own configs and the number to measure, and its guide learns from the
measurements of all GPUs. Only the home measures coarse energy and finals, which compare configs, because GPUs of one
model differ by more than good configs do.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernrec.cluster.card import Limits, limits_of
from kernrec.cluster.driver import Cluster, Driver
from kernrec.errors import UsageError
from kernrec.measure.campaign.ingest import present_measurements
from kernrec.measure.campaign.plan import Chooser, EnergyRule, PlannedProblem, Search, Visit
from kernrec.measure.campaign.results import ProblemResult
from kernrec.measure.collect import chooser_on, concluded, open_journal
from kernrec.measure.device.replay import chosen_gpus
from kernrec.measure.problems import planned_on
from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping, Strategy
from kernrec.op import Problem
from kernrec.store import canonical_json
from kernrec.store.measurement import Measurement

_SLICE_S = 20.0
"""Seconds of a time slice, after which a GPU returns its measurements and continues."""
_WORTH_HELPING = 10
"""Minimum number of configs for which a helping GPU prepares a problem's inputs."""


@dataclass
class _Problem:
    planned: PlannedProblem
    most: int
    result: ProblemResult
    places: dict[tuple[str, str, str], int]
    """Positions of the problem's tasks, by task key."""
    rows: list[Measurement] = field(default_factory=list)
    measured: set[int] = field(default_factory=set)
    """Positions of the configs with a measurement."""
    under_way: dict[int, tuple[set[int], int]] = field(default_factory=dict)
    """For each visit in progress, its configs and the number to measure."""
    home: str | None = None
    screened: bool = False
    """Whether the time for screening is over."""
    done: bool = False

    @property
    def left(self) -> int:
        """Return the number of configs to screen that no visit is measuring."""
        given_out = sum(count for _, count in self.under_way.values())
        return 0 if self.screened else max(0, self.most - len(self.measured) - given_out)

    @property
    def cards(self) -> int:
        """Return the number of GPUs that work on the problem."""
        return len(self.under_way)

    @property
    def open(self) -> bool:
        """Return whether there is work for another GPU."""
        return not self.done and (self.left > 0 or not self.under_way)


class _Own:
    """A `Search` restricted to one GPU's configs."""

    def __init__(self, search: Search | None, own: set[int]) -> None:
        self._search = search
        self._own = np.array(sorted(own), dtype=np.int64)

    def order(self, tried: np.ndarray, latency_s: np.ndarray) -> np.ndarray:
        if self._search is None:
            return np.setdiff1d(self._own, tried)
        order = self._search.order(tried, latency_s)
        return order[np.isin(order, self._own)]

    def batch(self, measured: int) -> int:
        return len(self._own) if self._search is None else self._search.batch(measured)


class SharedProblems(Chooser):
    """Chooser for problems that are all planned from the start."""

    def __init__(self, problems: Sequence[PlannedProblem], configs: int | None) -> None:
        """Create a chooser; `configs` is the maximum to screen, over all problems."""
        self._problems: dict[str, _Problem] = {}
        part = None if configs is None else math.ceil(configs / max(1, len(problems)))
        for planned in problems:
            most = min(count for count in (planned.most, part, len(planned.tasks)) if count is not None)
            result = ProblemResult(planned.name, planned.problem.key, most)
            places = {task.key: i for i, task in enumerate(planned.tasks)}
            self._problems[planned.problem.key] = _Problem(planned, most, result, places)

    @property
    def results(self) -> tuple[ProblemResult, ...]:
        """Return the results so far, by problem."""
        return tuple(problem.result for problem in self._problems.values())

    @property
    def recalled(self) -> Sequence[Problem]:
        return [problem.planned.problem for problem in self._problems.values()]

    def begin(self, earlier: Iterable[Measurement]) -> None:
        for measurement in earlier:
            if (problem := self._problems.get(measurement.identity.problem.key)) is not None:
                problem.result.add_earlier(measurement)
                _add(problem, measurement)

    def next(self, card: str = "", cards: Collection[str] = ("",)) -> Visit | None:
        open_problems = [problem for problem in self._problems.values() if problem.open]
        chosen = _recommendation(card, cards, open_problems)
        if chosen is None:
            return None
        busy = sum(problem.cards for problem in self._problems.values())
        others = sum(not problem.cards for problem in open_problems if problem is not chosen)
        idle = max(0, len(cards) - busy - 1 - others)  # Number of GPUs that could help.
        parts = max(1, min(1 + idle, chosen.left // _WORTH_HELPING))
        whole = parts == 1 and not chosen.cards
        if whole or chosen.home not in cards:
            chosen.home = card
        unfinished = sum(not problem.done for problem in self._problems.values())
        share = min(1.0, len(cards) / unfinished)
        planned = replace(chosen.planned, most=chosen.most, share=share, slice_s=_SLICE_S)
        own, count = set(range(len(planned.tasks))), chosen.left
        if not whole:
            taken = set[int]().union(*(own for own, _ in chosen.under_way.values()))
            own = set(sorted(own - taken - chosen.measured)[::parts])
            count = min(len(own), math.ceil(chosen.left / parts))
            planned = replace(
                planned,
                search=_Own(planned.search, own),
                most=len(chosen.measured) + count,
                energy=EnergyRule.NONE,
                finals=False,
            )
        chosen.under_way[id(planned)] = own, count
        return Visit(planned, tuple(chosen.rows))

    def learn(self, measurement: Measurement) -> None:
        if (problem := self._problems.get(measurement.identity.problem.key)) is not None:
            problem.result.add_new(measurement)
            _add(problem, measurement)

    def done(self, visit: Visit, seconds: float, over: bool = True) -> None:
        problem = self._problems[visit.planned.problem.key]
        own, count = problem.under_way.pop(id(visit.planned))
        if not over:
            return
        if visit.planned.finals:  # The visit covered the whole problem.
            problem.done = True
            problem.rows.clear()
        elif len(problem.measured & own) < count:
            problem.screened = True  # The time ended before the configs did.


def _recommendation(card: str, cards: Collection[str], problems: Sequence[_Problem]) -> _Problem | None:
    for problem in problems:
        if problem.home == card:
            return problem
    for problem in problems:
        if problem.home not in cards and not problem.cards:
            return problem
    shared = [problem for problem in problems if problem.left >= _WORTH_HELPING]
    return max(shared, key=lambda problem: problem.left, default=None)


def _add(problem: _Problem, measurement: Measurement) -> None:
    identity = measurement.identity
    place = problem.places.get((identity.kernel, identity.kernel_hash, canonical_json(dict(identity.config))))
    if place is not None and not problem.done:
        problem.measured.add(place)
        problem.rows.append(measurement)


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
