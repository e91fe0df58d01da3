"""Power of the configs of one space, learned from the few whose energy was measured; with intervals.

Power is smooth: it follows above all how fast a config is (the same work in less time), and a little what it is. So a
Gaussian process over log power sees the measured latency beside the config's point. A process that was fitted to few
values is often too sure of itself, or not sure enough. Each measured value is therefore predicted from all others
(leave-one-out, in closed form: Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 5.4.2),
and intervals are as wide as it takes for `LEVEL` of these errors to lie inside (conformal prediction; Vovk et al.,
"Algorithmic learning in a random world", 2005).
"""

import math

import numpy as np

from kernrec.model.search.gaussian_process import GaussianProcess, Points

Array = np.ndarray

LEVEL = 0.9
"""Confidence of intervals."""
_DEVIATIONS = 1.6448536269514722
"""Half-width of a 90 % interval over the standard deviation, where errors are Gaussian."""
_BELIEF = 10.0
"""The belief that errors are Gaussian with the process's own deviation, in measurements."""
_LATENCY_WEIGHT = 2.0
"""Of the coordinate for latency; two random configs are about as far apart by it as by all others."""


class PowerModel:
    """Log power of configs given their points and the logarithms of their latencies (N,)."""

    def __init__(self, points: Points, log_s: Array, log_w: Array) -> None:
        """Learn from two or more measurements; log_w: their log power, (N,)."""
        self._middle, self._spread = float(log_s.mean()), max(float(log_s.std()), 1e-3)
        self._process = GaussianProcess(self._placed(points, log_s), log_w)
        error, deviation = self._process.leave_one_out()
        self.deviations = _conformal(np.abs(error) / deviation)
        """Half-width of an interval over the standard deviation."""

    def predict(self, points: Points, log_s: Array) -> tuple[Array, Array]:
        """(expected log power, half-width of its interval, which a measurement lies in); arrays (C,)."""
        mean, variance = self._process.predict(self._placed(points, log_s))
        return mean, self.deviations * np.sqrt(variance + self._process.noise)

    def _placed(self, points: Points, log_s: Array) -> Points:
        return points.with_coordinate(_LATENCY_WEIGHT * (log_s - self._middle) / self._spread)


def _conformal(scores: Array) -> float:
    """The score that `LEVEL` of all scores lie below, Gaussian ones mixed in as a belief."""
    count = len(scores) + _BELIEF
    order = np.sort(scores)
    # Share of the mixture below each score: the believed half-normal, and the scores themselves.
    believed = np.array([math.erf(score / math.sqrt(2.0)) for score in order])
    share = (_BELIEF * believed + np.arange(1, len(order) + 1)) / (count + 1.0)
    above = np.flatnonzero(share >= LEVEL)
    return max(float(order[above[0]]), 1.0) if len(above) else max(float(order[-1]), _DEVIATIONS)
