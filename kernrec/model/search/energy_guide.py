"""Search for the lowest energy: expected improvement of the cost, with energy measured only if it may matter.

An energy measurement takes much longer than a latency measurement, but power varies little and smoothly. So latency is
measured for every config that the guide selects, and a model of power, learned during the search, gives its energy an
interval. Energy is measured only if the lower end of that interval is below the best cost so far. Otherwise, the guide
uses the expected value.

Power depends mostly on speed (the same work in less time), and a little on the config. So a Gaussian process over log
power uses the measured latency besides the config's point. A process fitted to few values often misjudges its own
uncertainty. Each measured value is therefore predicted from all others (leave-one-out, in closed form: Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2006, section 5.4.2), and intervals are wide enough to contain
`LEVEL` of these errors (conformal prediction; Vovk et al., "Algorithmic learning in a random world", 2005).
"""

import math
from collections.abc import Sequence

import numpy as np

from kernrec.model.search.expected_improvement import ExpectedImprovement, ObjectiveSearch
from kernrec.model.search.gaussian_process import GaussianProcess, Points
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

FIRST_ENERGY = 10
"""Number of energy measurements, of the fastest configs, before there is a model of power."""
ENERGY_ROUND, _ROUND_SHARE = 2, 0.1
"""Maximum number of energy measurements of a later round: a number, or a fraction of the measurements so far. The model
improves after each round.
"""
_RISK_FACTOR = 1.5
"""Half-widths of an interval by which a config may be better than expected. One is too little: the model often
misjudges the config of lowest energy most (hotspot and expdist, `tools/evidence search`).
"""


LEVEL = 0.9
"""Confidence of the intervals of power."""
_PRIOR_WEIGHT = 10.0
"""Weight, in measurements, of the prior assumption that errors are Gaussian with the process's deviation."""
_LATENCY_WEIGHT = 2.0
"""Weight of the coordinate for latency. Two random configs differ as much in latency as in all other coordinates."""


class PowerModel:
    """Model of the log power of configs, given their points and the logarithms of their latencies (N,)."""

    def __init__(self, points: Points, log_s: Array, log_w: Array) -> None:
        """Learn from two or more measurements.

        Args:
            log_w: Log power of the configs, (N,).
        """
        self._middle, self._spread = float(log_s.mean()), max(float(log_s.std()), 1e-3)
        self._process = GaussianProcess(self._placed(points, log_s), log_w)
        error, deviation = self._process.leave_one_out()
        self.deviations = _conformal(np.abs(error) / deviation)
        """Half-width of an interval in standard deviations."""

    def predict(self, points: Points, log_s: Array) -> tuple[Array, Array]:
        """Return expected log power and the half-width of the interval of a measurement, arrays (C,)."""
        mean, variance = self._process.predict(self._placed(points, log_s))
        return mean, self.deviations * np.sqrt(variance + self._process.noise)

    def _placed(self, points: Points, log_s: Array) -> Points:
        return points.with_coordinate(_LATENCY_WEIGHT * (log_s - self._middle) / self._spread)


def _conformal(scores: Array) -> float:
    """Return the `LEVEL` quantile of the scores, mixed with the scores of a Gaussian prior."""
    count = len(scores) + _PRIOR_WEIGHT
    order = np.sort(scores)
    # Mix the half-normal prior and the scores: compute the fraction of the mixture below each score.
    prior = np.array([math.erf(score / math.sqrt(2.0)) for score in order])
    share = (_PRIOR_WEIGHT * prior + np.arange(1, len(order) + 1)) / (count + 1.0)
    above = np.flatnonzero(share >= LEVEL)
    return max(float(order[above[0]]), 1.0) if len(above) else max(float(order[-1]), DEVIATIONS)


class EnergyGuide(ObjectiveSearch):
    """Search of one space by expected improvement of the objective."""

    def __init__(self, search: ExpectedImprovement, weights: tuple[float, float] | None, seed: int = 0) -> None:
        """Begin a search.

        Args:
            search: Search of the space.
            weights: Weights as for `ObjectiveSearch`; each round of a front draws new weights.
        """
        super().__init__(search.space, weights)
        self._search = search
        self._draw = np.random.default_rng(seed)
        self._model: PowerModel | None = None
        self._learned = 0  # This is the number of energies in the model.

    def latency_round(self) -> list[int]:
        """Return the configs whose latency to measure next; empty if the whole space is measured."""
        if self.front:
            share = float(self._draw.random())
            self.weights = share, 1.0 - share
        costs = np.full(len(self.latency_s), math.nan)
        ran = np.array([latency_s is not None for latency_s in self.latency_s.values()], dtype=bool)
        costs[ran] = np.exp(self._expected(self.ran())[0])
        order = self._search.order(np.array(list(self.latency_s), dtype=np.int64), costs)
        chosen: list[int] = order[: self._search.batch(len(costs))].tolist()
        self.latency_s |= dict.fromkeys(chosen)
        return chosen

    def energy_round(self) -> list[int]:
        """Return the measured configs whose energy must be measured, lowest expected cost first."""
        left = [config for config in self.ran() if config not in self._asked]
        if not self.with_energy or not left:
            return []
        if len(self.energy_j) < 2 and len(self._asked) >= FIRST_ENERGY:  # Energy cannot be measured here.
            return []
        if len(self.energy_j) < 2:
            chosen = sorted(left, key=self.log_latency)[:FIRST_ENERGY]
        else:
            mean, half = self._expected(left)
            reach = np.flatnonzero(mean - _RISK_FACTOR * half < self._best_before(left))
            size = max(ENERGY_ROUND, int(_ROUND_SHARE * len(self.energy_j)))
            chosen = [left[place] for place in reach[np.argsort(mean[reach], kind="stable")][:size]]
        self._asked |= set(chosen)
        return chosen

    def _best_before(self, configs: Sequence[int]) -> Array:
        """Return the log cost that each config must beat, (C,): the best cost, or that of faster configs on a front."""
        rivals = list(self.energy_j)
        costs = np.array([self.log_cost(rival) for rival in rivals])
        if not self.front:
            return np.full(len(configs), costs.min())
        of_latency, of_energy = self.weights
        if not of_energy:
            return np.full(len(configs), math.inf)
        seconds = np.array([self.log_latency(rival) for rival in rivals])
        energies = costs - of_latency * seconds
        latency = np.array([self.log_latency(config) for config in configs])
        no_slower = seconds <= latency[:, None]
        return np.asarray(np.where(no_slower, energies, math.inf).min(axis=1) + of_latency * latency)

    def _expected(self, configs: Sequence[int]) -> tuple[Array, Array]:
        """Return log costs (C,) of configs with measured latency, and half-widths of their intervals (C,)."""
        of_latency, of_energy = self.weights
        latency = np.array([self.log_latency(config) for config in configs])
        mean, half = (of_latency + of_energy) * latency, np.zeros(len(configs))
        model = self._power()
        if not self.with_energy or model is None or not len(configs):
            return mean, half
        watts, half_w = model.predict(self.space.points[list(configs)], latency)
        mean, half = mean + of_energy * watts, of_energy * half_w
        for place, config in enumerate(configs):
            if config in self.energy_j:
                mean[place], half[place] = self.log_cost(config), 0.0
        return mean, half

    def _power(self) -> PowerModel | None:
        """Return the model of power; None before there are two energies."""
        if len(self.energy_j) >= 2 and len(self.energy_j) > self._learned:
            rows = list(self.energy_j)
            seconds = np.array([self.log_latency(config) for config in rows])
            joules = np.log(list(self.energy_j.values()))
            self._model = PowerModel(self.space.points[rows], seconds, joules - seconds)
            self._learned = len(rows)
        return self._model
