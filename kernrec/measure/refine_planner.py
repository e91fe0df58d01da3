"""Choose the measurements of `--strategy refine`: first the configs that should reduce the regret most per second.

    predictions and earlier measurements -> joint posterior of all costs -> configs to measure -> posterior ...

Regret is the expected extra cost of the recommended configs over the best configs, for one objective. The refinement
ends when the regret is low enough or the budget is used up.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from kernrec.kernel import config_text
from kernrec.measure.campaign.plan import Chooser, EnergyRule, PlannedProblem
from kernrec.measure.protocol import measure_config
from kernrec.measure.refine_subject import RefineSubject, subject_of
from kernrec.measure.request_on_gpu import RequestOnGpu
from kernrec.model.search.joint_posterior import JointPosterior, Measured
from kernrec.model.search.refinement import Costs, Refinement, Visit
from kernrec.recommender.contenders import key_of, measured_of, noise_between, side_by_side
from kernrec.recommender.context import GpuContext
from kernrec.recommender.estimate.measured_rows import applies
from kernrec.recommender.request import Objective
from kernrec.store.measurement import Measurement, Outcome

FORECAST_S = 600.0
"""Seconds of further measuring to which `Refined.forecast` refers."""
_PREPARE_S, _LATENCY_S = 1.0, 0.6
"""Initial estimates in seconds, which `RefinePlanner.done` corrects."""
_NOISE = {Objective.LATENCY: 0.01, Objective.ENERGY: 0.02, Objective.EDP: 0.025}
"""Relative standard deviation of a measured cost, equal to the drift that the protocol tolerates."""
_CHECKED_EVERY = 16
"""Number of decisions between two checks of the regret."""


@dataclass(frozen=True)
class ChangedAnswer:
    """A problem for which the refinement has changed the best config."""

    name: str
    before: str
    after: str
    faster: float
    """Expected decrease of the problem's cost, as a fraction."""


@dataclass(frozen=True)
class Refined:
    measured: int
    """Number of measured configs."""
    problems: int
    """Number of problems with measured configs."""
    changed: tuple[ChangedAnswer, ...]
    regret: tuple[float, float]
    """Expected regret before and after the refinement, as a weighted mean over problems."""
    forecast: float
    """Expected decrease of the regret in another `FORECAST_S` seconds of measuring."""
    ended: str
    """Reason for the end of the refinement."""
    deciding_s: float
    """Seconds that choosing the measurements took."""


class RefinePlanner(Chooser):
    """Choose what to measure on one GPU model with `--strategy refine`."""

    def __init__(self, on_gpu: RequestOnGpu, subject: RefineSubject | None = None) -> None:
        """Prepare the refinement of `subject`, or of the requested problems if `subject` is None.

        Raise `UsageError` if no config can run a problem.
        """
        request = on_gpu.request
        each_s = _LATENCY_S
        if request.objective is not Objective.LATENCY:
            each_s += measure_config.SETTLE_S + 1.0
        self._request = request
        self.subject = subject or subject_of(on_gpu)
        self.posterior = posterior = JointPosterior(side_by_side(self.subject.contenders), request.seed)
        """Joint posterior of the costs of all contenders (configs that may be the best)."""
        for problem in range(len(self.subject.wanted)):
            self._take_rows(problem, on_gpu.databases.on(on_gpu.gpu))
        posterior.rescale()
        self.refinement = Refinement(posterior, Costs(_PREPARE_S, each_s), _NOISE[request.objective])
        self._before = [posterior.choice(problem) for problem in range(len(posterior))], posterior.mean_regret()
        self._pending: dict[str, Visit] = {}  # measurements in progress, keyed by the problem's key
        self._seen: set[tuple[int, int]] = set()  # measured pairs (problem, config)
        self._left = request.budget.configs
        self._visits = 0
        self._ended = "the budget is spent"
        self._deciding_s = 0.0

    def _take_rows(self, problem: int, context: GpuContext) -> None:
        """Learn from the stored rows of a problem, except rows of other versions of a kernel."""
        contenders, hashes = self.subject.contenders[problem], self.subject.hashes[problem]
        evidence = context.evidence(self.subject.wanted[problem].problem, list(hashes))
        rows = [row for row in evidence.measured if row.kernel_hash == hashes.get(row.kernel)]
        rows = [row for row in rows if applies(row, context.gpu, self._request.point)]
        for row in measured_of(contenders, rows, self._request.objective):
            self.posterior.add(problem, row)
        for failed in evidence.failed:
            place = contenders.place(key_of(failed.kernel, failed.config))
            if place is not None and failed.kernel_hash == hashes.get(failed.kernel):
                self.posterior.exclude(problem, place)

    @property
    def needs_energy(self) -> bool:
        return self._request.needs_energy

    def next(self, gpu: str = "", gpus: Collection[str] = ("",)) -> PlannedProblem | None:
        start_s = time.perf_counter()
        visit = self._decide({visit.problem for visit in self._pending.values()})
        self._deciding_s += time.perf_counter() - start_s
        if visit is None:
            return None
        self._visits += 1
        if self._left is not None:
            visit = replace(visit, contenders=visit.contenders[: self._left])
            self._left -= len(visit.contenders)
        wanted = self.subject.wanted[visit.problem]
        self._pending[wanted.problem.key] = visit
        tasks = tuple(self.subject.task(visit.problem, contender) for contender in visit.contenders)
        energy = EnergyRule.ALL if self.needs_energy else EnergyRule.NONE
        return PlannedProblem(wanted.name, wanted.problem, tasks, energy=energy, finals=False)

    def _decide(self, pending: Collection[int]) -> Visit | None:
        if self._left == 0:
            return None
        until = self._request.until
        if until is not None and self._visits % _CHECKED_EVERY == 0 and self.refinement.below(until):
            self._ended = f"the regret is below {100 * until:.3g} %"
            return None
        visit = self.refinement.next(without=set(pending))
        if visit is None and not pending:
            self._ended = "all configs that might be the best have been measured"
        return visit

    def learn(self, measurement: Measurement) -> None:
        visit = self._pending.get(measurement.problem.key)
        if visit is not None and (measured := self._measured(visit.problem, measurement)) is not None:
            self._seen.add((visit.problem, measured.contender))
            self.refinement.take(visit.problem, measured)

    def done(self, visit: PlannedProblem, seconds: float) -> None:
        decided = self._pending.pop(visit.problem.key)
        problem, contenders = decided.problem, decided.contenders
        if {row.contender for row in self.posterior.measured(problem)}.isdisjoint(contenders):
            for contender in contenders:
                self.posterior.exclude(problem, contender)
        measured = sum((problem, contender) in self._seen for contender in contenders)
        costs = self.refinement.costs
        expected_s = costs.visit_s + measured * costs.each_s
        if measured and seconds > 0.0:
            # Correct the estimates by only half the error (on a log scale), because one duration may be unusual.
            factor = math.sqrt(seconds / expected_s)
            costs.visit_s, costs.each_s = factor * costs.visit_s, factor * costs.each_s
        self.refinement.look(problem)

    def outcome(self) -> Refined:
        posterior = self.posterior
        posterior.rescale()
        choices, regret = self._before
        return Refined(
            measured=len(self._seen),
            problems=len({problem for problem, _ in self._seen}),
            changed=tuple(self._changed(choices)),
            regret=(regret, posterior.mean_regret()),
            forecast=self.refinement.forecast(FORECAST_S),
            ended=self._ended,
            deciding_s=self._deciding_s,
        )

    def _measured(self, problem: int, measurement: Measurement) -> Measured | None:
        """Return a new measurement's cost for the posterior, or None. Exclude a failed config from the posterior."""
        place = self.subject.contenders[problem].place(key_of(measurement.kernel, measurement.config))
        if place is None:
            return None
        if measurement.outcome != Outcome.OK:
            if measurement.outcome != Outcome.QUARANTINED:
                self.posterior.exclude(problem, place)
            return None
        latency_s, energy_j = measurement.latency_s, measurement.energy_j
        if self._request.objective is Objective.LATENCY:
            if any(row.contender == place for row in self.posterior.measured(problem)):
                return None
            low, high = measurement.latency_low_s, measurement.latency_high_s
            cost = latency_s
        else:
            low, high = measurement.energy_low_j, measurement.energy_high_j
            cost = energy_j and latency_s and self._request.objective.value_of(latency_s, energy_j)
        return Measured(place, math.log(cost), noise_between(low, high)) if cost else None

    def _changed(self, before: Sequence[int]) -> Iterator[ChangedAnswer]:
        """Yield the problems whose best config has changed. `before` has the earlier best config of each problem."""
        for problem, old in enumerate(before):
            new = self.posterior.choice(problem)
            if new != old:
                mean, _ = self.posterior.expectation(problem)
                better = 1.0 - math.exp(min(0.0, float(mean[new] - mean[old])))
                texts = self._config_text(problem, old), self._config_text(problem, new)
                yield ChangedAnswer(self.subject.wanted[problem].name, *texts, better)

    def _config_text(self, problem: int, contender: int) -> str:
        kernel, config = self.subject.contenders[problem].keys[contender]
        return f"{kernel} {config_text(dict(config))}"
