"""Decide which problem and configs to measure next, by the expected reduction of regret (loss) per second.

A visit measures some contenders of one problem in sequence. Switching to another problem takes time (for its inputs and
its reference), so a visit may be worth several measurements.

    next()      the visit with the greatest expected gain per second
    take()      records its results
    forecast()  the expected gain of more seconds

A measurement of one problem slightly changes the posterior of all other problems. Gains are computed again near
the top, and for a few other problems in turn, so that decisions stay fast with many problems.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernrec.model.search.joint_posterior import JointPosterior, Measured
from kernrec.model.search.relearning import LEAST

Array = np.ndarray

_NEAR_TOP, _IN_TURN = 6, 2
"""Number of problems whose gains are recomputed before a decision: the highest gain rates, and the oldest gains."""
_LONGEST = 4
"""Maximum number of measurements of a visit."""
_RELEARNED_EVERY = 1.5
"""Growth factor of the number of measurements after which the model is trained again."""
_RESCALED_AT, _RESCALED_EVERY = (20, 50, 100, 200), 300
"""Numbers of measurements after which the common scale of the errors is estimated again."""


@dataclass
class Costs:
    """Durations of measurements in seconds, learned from the visits so far."""

    visit_s: float
    """Seconds to create the inputs and the reference of a problem."""
    each_s: float
    """Seconds to measure one config."""


@dataclass(frozen=True)
class Visit:
    """Sequence of worthwhile measurements of one problem."""

    problem: int
    contenders: tuple[int, ...]
    gain: float
    """Expected reduction of the weighted mean regret."""
    seconds: float
    """Expected duration in seconds."""


class _Outlook(NamedTuple):
    """Expected gains of measuring a problem."""

    sequence: list[tuple[int, float]]
    """Contender and gain, in the order of measurement."""
    as_of: int
    """Number of measurements that were considered."""


class Refinement:
    """Decide, visit after visit, what to measure."""

    def __init__(self, posterior: JointPosterior, costs: Costs, noise: float) -> None:
        """Begin with the current posterior and costs.

        Args:
            noise: Standard deviation of the logarithm of a measurement.
        """
        self.posterior = posterior
        self.costs = costs
        self._noise = noise
        self._total = sum(posterior.contenders(problem).weight for problem in range(len(posterior)))
        self._taken = 0
        self._measured = sum(len(posterior.measured(problem)) for problem in range(len(posterior)))
        self._settling = False
        self._relearned_at = LEAST
        self._relearn()
        self._outlook = [self._look(problem) for problem in range(len(posterior))]

    def look(self, problem: int) -> None:
        """Compute the gains of a problem again."""
        self._outlook[problem] = self._look(problem)

    def _look(self, problem: int) -> _Outlook:
        sequence = self.posterior.sequence(problem, _LONGEST, self._noise)
        return _Outlook([(which, gain / self._total) for which, gain in sequence], self._taken)

    def _best_visit(self, problem: int) -> Visit | None:
        """Return the visit of a problem with the greatest gain per second; None if nothing is left to measure."""
        best: Visit | None = None
        gain, seconds = 0.0, self.costs.visit_s
        sequence = self._outlook[problem].sequence
        for count, (_, more) in enumerate(sequence, start=1):
            gain, seconds = gain + more, seconds + self.costs.each_s
            if best is None or gain / seconds > best.gain / best.seconds:
                best = Visit(problem, tuple(which for which, _ in sequence[:count]), gain, seconds)
        return best

    def next(self, without: Collection[int] = ()) -> Visit | None:
        """Return the visit with the greatest gain per second, except problems in `without`; None if all is measured."""
        rates = self._rates(without)
        oldest = np.argsort([outlook.as_of for outlook in self._outlook], kind="stable")[:_IN_TURN]
        for problem in {*np.argsort(-rates)[:_NEAR_TOP].tolist(), *oldest.tolist()}:
            if self._outlook[problem].as_of < self._taken:
                self.look(problem)
        rates = self._rates(without)
        best = int(rates.argmax())
        return None if rates[best] < 0.0 else self._best_visit(best)

    def _rates(self, without: Collection[int]) -> np.ndarray:
        visits = [None if problem in without else self._best_visit(problem) for problem in range(len(self._outlook))]
        rates = np.array([-1.0 if visit is None else visit.gain / visit.seconds for visit in visits])
        if self._settling:
            unsettled = np.array([self.posterior.unsettled(problem) for problem in range(len(rates))])
            if (rates[unsettled] >= 0.0).any():
                rates[~unsettled] = -1.0
        return rates

    def below(self, until: float) -> bool:
        """Return whether the bound on the weighted mean regret is below `until`.

        If only possibly misjudged problems keep the bound above `until`, visit these problems next.
        """
        self.posterior.rescale()
        bound = self.posterior.regret_bound()
        self._settling = bound > until >= bound - self.posterior.overlooked()
        return bound <= until

    def take(self, problem: int, measured: Measured) -> None:
        """Record a measurement."""
        self.posterior.watch(problem, measured)
        self._taken += 1
        if self._taken in _RESCALED_AT or self._taken % _RESCALED_EVERY == 0:
            self.posterior.rescale()
        self._measured += 1
        for other in range(len(self._outlook)) if self._relearn() else (problem,):
            self.look(other)

    def _relearn(self) -> bool:
        """Train the model again if there are enough new measurements, and return whether predictions changed."""
        if self._measured < self._relearned_at:
            return False
        self._relearned_at = max(LEAST, math.ceil(_RELEARNED_EVERY * self._measured))
        return self.posterior.relearn()

    def visits(self) -> list[Visit]:
        """Return the best visit of each problem, greatest gain per second first."""
        visits = [self._best_visit(problem) for problem in range(len(self._outlook))]
        return sorted(filter(None, visits), key=lambda visit: -visit.gain / visit.seconds)

    def forecast(self, seconds: float) -> float:
        """Return the expected reduction of the weighted mean regret in `seconds` seconds.

        Only the next few measurements of each problem count, so the forecast is too low for long times.
        """
        gain = 0.0
        for visit in self.visits():
            gain += visit.gain * min(1.0, max(0.0, seconds) / visit.seconds)
            seconds -= visit.seconds
        return min(self.posterior.record.factor * gain, self.posterior.mean_regret())
