"""`kernrec search --cluster` as a library call: one problem searched on all cards of a cluster.

Each kind of GPU has a search of its own, as a single machine has. The latencies of a round are measured on all cards of
the kind. Its energies are measured on one card, the same for all rounds, because two cards of a kind differ in power by
more than good configs do; meanwhile the others begin the next round. On one card the rounds are those of one machine.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from kernrec.cluster.campaign_plan import CampaignPlan, CampaignVisit
from kernrec.cluster.collect import planned_on
from kernrec.cluster.driver import Cluster, Driver
from kernrec.cluster.messages import CardIdentity, limits_of
from kernrec.measure.campaign.budget import check_budget
from kernrec.measure.campaign.ingest import present_measurements
from kernrec.measure.campaign.plan import EnergyRule
from kernrec.measure.campaign.results import MeasuringEffort, Progress
from kernrec.measure.collect import CollectRequest, open_journal, recorded_work_on, replayed_gpus
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.search_rounds import SearchResult, SearchRounds, Strategy
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement

_LEAST_TOGETHER = 2
"""Configs that a card measures at least before it runs the reference kernels, where the round has as many."""


@dataclass(frozen=True)
class ClusterSearchResult:
    """What was measured on each kind of GPU, and what is known now."""

    results: tuple[tuple[str, SearchResult], ...]
    """With the name of the kind."""
    stopped: bool
    """Whether it was told to stop."""
    error: str | None
    """What ended it early, in one line."""


def search_on(
    cluster: Cluster,
    request: CollectRequest,
    objective: Objective,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
    strategy: Strategy = Strategy.GUIDE,
) -> ClusterSearchResult:
    """Search on a cluster, which is closed at the end. Arguments and errors as `search`.

    A budget of configs is for all cards of a kind together, one of seconds for each card.
    """
    try:
        whole = replace(request, effort=MeasuringEffort(None, 0))
        needs_energy = objective is not Objective.LATENCY
        check_budget(request.budget, needs_energy)
        if request.device == DeviceKind.REPLAY:  # of a card it is not known before one comes
            for gpu in replayed_gpus(whole):
                SearchRounds(recorded_work_on(gpu, whole).problems, objective, strategy, request.seed)
        visits = _Visits(whole, objective, strategy)
        plan = CampaignPlan(lambda gpu: (), request.database, visits=visits, needs_energy=needs_energy)
        with open_journal(whole, report) as (journal, leftover):
            collected = Driver(cluster, whole, plan, journal, (report, stopping)).run(leftover)
        return ClusterSearchResult(visits.results(collected.stored > 0), collected.stopped, collected.error)
    finally:
        cluster.close()


class _KindSearch:
    """The search of one kind of GPU: what of its rounds is under way, and what is to be given out."""

    def __init__(self, rounds: SearchRounds, budget: int | None) -> None:
        """Begin; budget: configs whose latency is measured at most."""
        self.rounds = rounds
        self.rows = 0
        self._left = math.inf if budget is None else budget
        self._round, self._size = 0, 0  # number of the present round, and its configs
        self._latencies: list[int] = []  # of the present round, to be given out
        self._energies: list[int] = []  # to be given out
        self._pending: dict[str, int | None] = {}  # by visit under way, the round whose latencies it measures
        self._round_over = True  # one is, and its energies were not asked for
        self._energy_card: str | None = None
        self._visits = 0

    def next(self, card: str, cards: Collection[str]) -> CampaignVisit | None:
        """As of `Visits`."""
        if self._left <= 0 and not self._latencies and not self._energies:
            return None  # as on one machine, without the energies of the last round
        self._ask_energies()
        if self._energies and (self._energy_card == card or self._energy_card not in cards):
            self._energy_card = card
            configs, self._energies = self._energies, []
            return self._visit(configs, EnergyRule.ALL)
        if not self._latencies and not self._begin_round():
            return None if self._pending or not self._ask_energies() else self.next(card, cards)
        count = max(_LEAST_TOGETHER, math.ceil(self._size / len(cards)))
        configs, self._latencies = self._latencies[:count], self._latencies[count:]
        return self._visit(configs, EnergyRule.NONE)

    def done(self, visit: str) -> None:
        """A visit is over."""
        number = self._pending.pop(visit)
        given_out = number != self._round or not self._latencies
        if number is not None and given_out and number not in self._pending.values():
            self._round_over = True

    def _ask_energies(self) -> bool:
        """Whether there are energies to give out, once those of a round that is over were asked for."""
        if self._round_over:
            self._round_over = False
            self._energies += self.rounds.energies()
        return bool(self._energies)

    def _begin_round(self) -> bool:
        """Whether there is one more round of latencies, while others may be under way."""
        if self._pending and not self.rounds.ordered:
            return False
        self._latencies = self.rounds.latencies()
        if self._left < len(self._latencies):
            self._latencies = self._latencies[: int(self._left)]
        self._round, self._size = self._round + 1, len(self._latencies)
        self._left -= self._size
        self._round_over = self._round_over or (not self._size and not self._pending)
        return self._size > 0

    def _visit(self, configs: list[int], energy: EnergyRule) -> CampaignVisit:
        self._visits += 1
        visit = CampaignVisit(self.rounds.plan(configs, energy), f" part {self._visits}")
        self._pending[visit.key] = self._round if energy is EnergyRule.NONE else None
        return visit


class _Visits:
    """`Visits` of the coordinator: a search for each kind of GPU."""

    recalls = True

    def __init__(self, request: CollectRequest, objective: Objective, strategy: Strategy) -> None:
        self._request = request
        self._objective = objective
        self._strategy = strategy
        self._kinds: dict[str, _KindSearch] = {}

    def next(self, gpu: str, card: str, cards: Mapping[str, CardIdentity]) -> CampaignVisit | None:
        """As of `Visits`."""
        if gpu not in self._kinds:
            request = self._request
            rounds = SearchRounds(planned_on(gpu, request), self._objective, self._strategy, request.seed)
            for measurement in present_measurements(request.database, rounds.planned.problem, gpu):
                if limits_of(measurement.device) == cards[card].limits:
                    rounds.learn(measurement)
            self._kinds[gpu] = _KindSearch(rounds, request.budget.configs)
        return self._kinds[gpu].next(card, cards)

    def learn(self, gpu: str, measurement: Measurement) -> None:
        """As of `Visits`."""
        kind = self._kinds[gpu]
        kind.rows += 1
        kind.rounds.learn(measurement)

    def done(self, gpu: str, visit: str, seconds: float) -> None:
        """As of `Visits`."""
        self._kinds[gpu].done(visit)

    def results(self, stored: bool) -> tuple[tuple[str, SearchResult], ...]:
        """What is known on each kind; stored: whether the rows are in the database."""
        return tuple(
            (gpu, kind.rounds.result(kind.rows if stored else 0, None, False)) for gpu, kind in self._kinds.items()
        )
