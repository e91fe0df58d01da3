"""Which problem to measure next, and which of its configs: the most regret less per second.

A visit measures some contenders of one problem, one after the other. Going to another problem costs time (its inputs
and its reference have to be made), so a visit may be worth more measurements than one.

    next()      the visit of greatest expected gain per second
    take()      its results
    forecast()  the expected gain of so many more seconds

A measurement of one problem changes the beliefs about all others a little. Their gains are computed again when they
come near the top, and a few in turn, so that a decision takes milliseconds however many problems there are.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernrec.model.search.joint_posterior import JointPosterior, Measured
from kernrec.model.search.relearning import LEAST

_NEAR_TOP, _IN_TURN = 6, 2
"""Problems whose gains are computed again before a decision: those of greatest rate, and those computed longest ago."""
_LONGEST = 4
"""Most measurements of a visit."""
_RELEARNED_EVERY = 1.5
"""The model is trained again when there are so many times as many measurements."""
_RESCALED_AT, _RESCALED_EVERY = (20, 50, 100, 200), 300
"""Measurements after which the common scale of the errors is estimated again."""


@dataclass
class Costs:
    """Seconds that measuring takes, learned from the visits made."""

    visit_s: float
    """To make the inputs and the reference of a problem."""
    each_s: float
    """To measure one config."""


@dataclass(frozen=True)
class Visit:
    """Measurements of one problem that are worth making."""

    problem: int
    contenders: tuple[int, ...]
    gain: float
    """By how much they are expected to lower the weighted mean regret."""
    seconds: float
    """The time that they are expected to take."""


class _Outlook(NamedTuple):
    """The expected gains of measuring a problem."""

    sequence: list[tuple[int, float]]
    """(contender, gain), in the order to measure them."""
    as_of: int
    """The measurements that were taken into account before."""


class Refinement:
    """Decides, visit after visit, what to measure."""

    def __init__(self, posterior: JointPosterior, costs: Costs, noise: float) -> None:
        """Begin with beliefs and costs so far; noise: standard deviation of the logarithm of a measurement."""
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
        """The number of measurements of greatest gain per second; None where nothing is left to measure."""
        best: Visit | None = None
        gain, seconds = 0.0, self.costs.visit_s
        sequence = self._outlook[problem].sequence
        for count, (_, more) in enumerate(sequence, start=1):
            gain, seconds = gain + more, seconds + self.costs.each_s
            if best is None or gain / seconds > best.gain / best.seconds:
                best = Visit(problem, tuple(which for which, _ in sequence[:count]), gain, seconds)
        return best

    def next(self, without: Collection[int] = ()) -> Visit | None:
        """The visit of greatest gain per second, `without` some problems; None where everything is measured."""
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
        """Whether the bound on the weighted mean regret is below `until`.

        If only problems that may have been overlooked are in its way, they are visited next.
        """
        self.posterior.rescale()
        bound = self.posterior.regret_bound()
        self._settling = bound > until >= bound - self.posterior.overlooked()
        return bound <= until

    def take(self, problem: int, measured: Measured) -> None:
        """Take a measurement into account."""
        self.posterior.watch(problem, measured)
        self._taken += 1
        if self._taken in _RESCALED_AT or self._taken % _RESCALED_EVERY == 0:
            self.posterior.rescale()
        self._measured += 1
        for other in range(len(self._outlook)) if self._relearn() else (problem,):
            self.look(other)

    def _relearn(self) -> bool:
        """Train the model again if there are enough new measurements; whether predictions have changed."""
        if self._measured < self._relearned_at:
            return False
        self._relearned_at = max(LEAST, math.ceil(_RELEARNED_EVERY * self._measured))
        return self.posterior.relearn()

    def visits(self) -> list[Visit]:
        """The best visit of each problem, that of the greatest gain per second first."""
        visits = [self._best_visit(problem) for problem in range(len(self._outlook))]
        return sorted(filter(None, visits), key=lambda visit: -visit.gain / visit.seconds)

    def forecast(self, seconds: float) -> float:
        """By how much the weighted mean regret is expected to fall in so many seconds.

        At most the next few measurements of each problem count, so it is too low for a long time.
        """
        gain = 0.0
        for visit in self.visits():
            gain += visit.gain * min(1.0, max(0.0, seconds) / visit.seconds)
            seconds -= visit.seconds
        return min(self.posterior.record.factor * gain, self.posterior.mean_regret())
