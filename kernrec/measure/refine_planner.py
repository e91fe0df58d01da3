"""Choose the visits of `--strategy refine`: measure uncertain configs that matter, up to a budget or regret bound.

    predictions and rows of the database -> joint posterior -> visit with the greatest gain per second -> posterior ...

The posterior covers one objective at one power limit and clock. GPUs of a cluster may make several visits at once.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from kernrec.measure.campaign.plan import Chooser, EnergyRule, PlannedProblem
from kernrec.measure.campaign.plan import Visit as PlannedVisit
from kernrec.measure.protocol import measure_config
from kernrec.measure.refine_subject import ChangedAnswer, Knowledge
from kernrec.measure.request import CollectRequest
from kernrec.model.search.refinement import Costs, Refinement, Visit
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement

FORECAST_S = 600.0
"""Further seconds for which a result forecasts the reduction of the regret."""
_VISIT_S, _LATENCY_S = 1.0, 0.6
"""Initial estimates of the seconds to prepare a problem and to measure a latency; measurements update both."""
_NOISE = {Objective.LATENCY: 0.01, Objective.ENERGY: 0.02, Objective.EDP: 0.025}
"""Standard deviation of a measurement's logarithm, by objective: the drift that the protocol tolerates."""
_CHECKED_EVERY = 16
"""Number of visits between two comparisons of regret and bound."""


@dataclass(frozen=True)
class Refined:
    """Result of a refinement: its measurements and the remaining regret."""

    measured: int
    """Number of measured configs."""
    problems: int
    """Number of measured problems."""
    changed: tuple[ChangedAnswer, ...]
    regret: tuple[float, float]
    """Weighted mean expected regret before and after."""
    forecast: float
    """Expected reduction of the regret in another `FORECAST_S` seconds."""
    ended: str
    """Text of the reason for the end."""
    deciding_s: float
    """Seconds spent on decisions."""


class RefinePlanner(Chooser):
    """Chooser of the visits of one GPU model."""

    def __init__(self, request: CollectRequest, knowledge: Knowledge) -> None:
        each_s = _LATENCY_S
        if request.objective is not Objective.LATENCY:
            each_s += measure_config.SETTLE_S + 1.0
        self._request = request
        self.knowledge = knowledge
        self.refinement = Refinement(knowledge.posterior, Costs(_VISIT_S, each_s), _NOISE[request.objective])
        posterior = knowledge.posterior
        self._before = [posterior.choice(problem) for problem in range(len(posterior))], posterior.mean_regret()
        self._pending: dict[str, Visit] = {}  # Visits in progress, by problem key.
        self._seen: set[tuple[int, int]] = set()  # Measured (problem, contender) pairs of all visits.
        self._left = request.budget.configs
        self._visits = 0
        self._ended = "the budget is spent"
        self._deciding_s = 0.0

    @property
    def needs_energy(self) -> bool:
        return self._request.needs_energy

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedVisit | None:
        start_s = time.perf_counter()
        visit = self._decide({visit.problem for visit in self._pending.values()})
        self._deciding_s += time.perf_counter() - start_s
        if visit is None:
            return None
        self._visits += 1
        if self._left is not None:
            visit = replace(visit, contenders=visit.contenders[: self._left])
            self._left -= len(visit.contenders)
        wanted = self.knowledge.subject.wanted[visit.problem]
        self._pending[wanted.problem.key] = visit
        tasks = tuple(self.knowledge.subject.task(visit.problem, contender) for contender in visit.contenders)
        energy = EnergyRule.ALL if self.needs_energy else EnergyRule.NONE
        return PlannedVisit(PlannedProblem(wanted.name, wanted.problem, tasks, energy=energy, finals=False))

    def _decide(self, pending: Collection[int]) -> Visit | None:
        if self._left == 0:
            return None
        until = self._request.until
        if until is not None and self._visits % _CHECKED_EVERY == 0 and self.refinement.below(until):
            self._ended = f"the regret is below {100 * until:.3g} %"
            return None
        visit = self.refinement.next(without=set(pending))
        if visit is None and not pending:
            self._ended = "every contender is measured"
        return visit

    def learn(self, measurement: Measurement) -> None:
        visit = self._pending.get(measurement.identity.problem.key)
        if visit is not None and (measured := self.knowledge.measured(visit.problem, measurement)) is not None:
            self._seen.add((visit.problem, measured.contender))
            self.refinement.take(visit.problem, measured)

    def done(self, visit: PlannedVisit, seconds: float, over: bool = True) -> None:
        self._account(self._pending.pop(visit.planned.problem.key), seconds)

    def _account(self, visit: Visit, seconds: float) -> None:
        for contender in visit.contenders if self._fruitless(visit) else ():
            self.knowledge.posterior.exclude(visit.problem, contender)
        measured = sum((visit.problem, contender) in self._seen for contender in visit.contenders)
        costs = self.refinement.costs
        expected_s = costs.visit_s + measured * costs.each_s
        if measured and seconds > 0.0:
            factor = math.sqrt(seconds / expected_s)  # Use the geometric mean of the expected and the actual value.
            costs.visit_s, costs.each_s = factor * costs.visit_s, factor * costs.each_s
        self.refinement.look(visit.problem)

    def _fruitless(self, visit: Visit) -> bool:
        measured = {row.contender for row in self.knowledge.posterior.measured(visit.problem)}
        return measured.isdisjoint(visit.contenders)

    def outcome(self) -> Refined:
        posterior = self.knowledge.posterior
        posterior.rescale()
        choices, regret = self._before
        return Refined(
            measured=len(self._seen),
            problems=len({problem for problem, _ in self._seen}),
            changed=tuple(self.knowledge.changed(choices)),
            regret=(regret, posterior.mean_regret()),
            forecast=self.refinement.forecast(FORECAST_S),
            ended=self._ended,
            deciding_s=self._deciding_s,
        )
