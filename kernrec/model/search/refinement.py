"""Decide which configs of which problems to measure next, so that the expected regret falls fastest.

The regret of a problem is the fraction by which the recommended config costs more than the best config. A visit is a
sequence of measurements of one problem's contenders (configs that may be the best).
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kernrec.model.search.joint_posterior import JointPosterior, Measured
from kernrec.model.search.relearning import LEAST

_NEAR_TOP, _IN_TURN = 6, 2
"""Numbers of gains to update before each decision: the greatest gains, and the oldest gains."""
_LONGEST = 4
"""Maximum number of measurements of a problem before another problem may be chosen."""
_RELEARNED_EVERY = 1.5
"""Factor by which the number of measurements grows before corrections are learned again."""
_RESCALED_AT, _RESCALED_EVERY = (20, 50, 100, 200), 300
"""Numbers of new measurements at which the common scale of errors is estimated again: the listed numbers, then every
multiple of the last number."""


@dataclass
class Costs:
    """Expected durations in seconds. The caller may update them."""

    visit_s: float
    """Seconds to create the inputs and the reference result of a problem."""
    each_s: float
    """Seconds to measure one config."""


@dataclass(frozen=True)
class Visit:
    """Sequence of measurements of one problem."""

    problem: int
    contenders: tuple[int, ...]
    """Indices of the contenders to measure, in this order."""
    gain: float
    """Expected reduction of the weighted mean regret."""
    seconds: float


class Refinement:
    """Decide what to measure next, given all earlier measurements."""

    def __init__(self, posterior: JointPosterior, costs: Costs, noise: float) -> None:
        """Begin with a posterior and expected durations. `noise` is the standard deviation of a measured log cost."""
        self.posterior = posterior
        self.costs = costs
        self._noise = noise
        self._total = sum(posterior.contenders(problem).weight for problem in range(len(posterior)))
        self._taken = 0
        self._measured = sum(len(posterior.measured(problem)) for problem in range(len(posterior)))
        self._settling = False
        self._relearned_at = LEAST
        self._relearn()
        # (contender, expected gain) of the next measurements, in a list for each problem.
        self._sequences: list[list[tuple[int, float]]] = [[] for _ in range(len(posterior))]
        self._as_of = [0] * len(posterior)  # Value of `_taken` when each list was computed.
        for problem in range(len(posterior)):
            self.look(problem)

    def look(self, problem: int) -> None:
        """Compute the expected gains of a problem's next measurements again."""
        sequence = self.posterior.sequence(problem, _LONGEST, self._noise)
        self._sequences[problem] = [(which, gain / self._total) for which, gain in sequence]
        self._as_of[problem] = self._taken

    def _best_visit(self, problem: int) -> Visit | None:
        best: Visit | None = None
        gain, seconds = 0.0, self.costs.visit_s
        sequence = self._sequences[problem]
        for count, (_, more) in enumerate(sequence, start=1):
            gain, seconds = gain + more, seconds + self.costs.each_s
            if best is None or gain / seconds > best.gain / best.seconds:
                best = Visit(problem, tuple(which for which, _ in sequence[:count]), gain, seconds)
        return best

    def next(self, without: Collection[int] = ()) -> Visit | None:
        """Return the next measurements, but none of the problems in `without`. Return None if nothing is left."""
        rates = self._rates(without)
        oldest = np.argsort(self._as_of, kind="stable")[:_IN_TURN]
        for problem in {*np.argsort(-rates)[:_NEAR_TOP].tolist(), *oldest.tolist()}:
            if self._as_of[problem] < self._taken:
                self.look(problem)
        rates = self._rates(without)
        best = int(rates.argmax())
        return None if rates[best] < 0.0 else self._best_visit(best)

    def _rates(self, without: Collection[int]) -> np.ndarray:
        visits = [None if problem in without else self._best_visit(problem) for problem in range(len(self._sequences))]
        rates = np.array([-1.0 if visit is None else visit.gain / visit.seconds for visit in visits])
        if self._settling:
            unsettled = np.array([self.posterior.unsettled(problem) for problem in range(len(rates))])
            if (rates[unsettled] >= 0.0).any():
                rates[~unsettled] = -1.0
        return rates

    def below(self, until: float) -> bool:
        """Return whether the mean regret is at most `until`, with high probability."""
        self.posterior.rescale()
        bound = self.posterior.regret_bound()
        # Measure problems with fewer than two measurements next if the bound is low enough without them.
        self._settling = bound > until >= bound - self.posterior.overlooked()
        return bound <= until

    def take(self, problem: int, measured: Measured) -> None:
        """Add a measurement of a problem, and update the posterior and the expected gains."""
        self.posterior.watch(problem, measured)
        self._taken += 1
        if self._taken in _RESCALED_AT or self._taken % _RESCALED_EVERY == 0:
            self.posterior.rescale()
        self._measured += 1
        for other in range(len(self._sequences)) if self._relearn() else (problem,):
            self.look(other)

    def _relearn(self) -> bool:
        if self._measured < self._relearned_at:
            return False
        self._relearned_at = max(LEAST, math.ceil(_RELEARNED_EVERY * self._measured))
        return self.posterior.relearn()

    def visits(self) -> list[Visit]:
        """Plan the next measurements of each problem. Sort the problems by gain per second, greatest first."""
        visits = [self._best_visit(problem) for problem in range(len(self._sequences))]
        return sorted(filter(None, visits), key=lambda visit: -visit.gain / visit.seconds)

    def forecast(self, seconds: float) -> float:
        """Return by how much the weighted mean regret is expected to fall within `seconds` of measuring. The forecast
        is too low for long times, because only a few measurements of each problem are planned."""
        gain = 0.0
        for visit in self.visits():
            gain += visit.gain * min(1.0, max(0.0, seconds) / visit.seconds)
            seconds -= visit.seconds
        return min(self.posterior.record.factor * gain, self.posterior.mean_regret())
