"""Search for the config of lowest cost with few energy measurements.

Energy takes much longer to measure than latency. So a Gaussian process predicts the power from the config and its
measured latency. The predicted intervals are widened until they contain the fraction `LEVEL` of the leave-one-out
errors (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section 5.4.2, and Vovk et al.,
"Algorithmic learning in a random world", 2005).
"""

import math
from collections.abc import Sequence

import numpy as np

from kernrec.model.search.expected_improvement import ExpectedImprovement, ObjectiveSearch
from kernrec.model.search.gaussian_process import GaussianProcess, Points
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

FIRST_ENERGY = 10
"""Number of energy measurements in the first round."""
ENERGY_ROUND, _ROUND_SHARE = 2, 0.1
"""Maximum number of energy measurements in a later round, and the same limit as a fraction of all measured energies.
The larger limit applies."""
_RISK_FACTOR = 1.5
"""Maximum distance of a config's expected cost from the best cost, in half-widths of the cost's interval. Worse configs
are not measured. With 1, the search often misses the config of lowest energy (`tools/evidence search`)."""


LEVEL = 0.9
"""Confidence of the intervals of power."""
_PRIOR_WEIGHT = 10.0
"""Weight of the assumption that errors are normally distributed, as a number of measurements."""
_LATENCY_WEIGHT = 2.0
"""Weight of the latency in the distance between two configs. Between random configs, latencies contribute as much to
the distance as all tunables together."""


class PowerModel:
    """Model that predicts a config's power from the config and its latency. Powers and latencies are logarithms."""

    def __init__(self, points: Points, log_s: Array, log_w: Array) -> None:
        """Train the model on the log latencies and log powers of at least two configs."""
        self._middle, self._spread = float(log_s.mean()), max(float(log_s.std()), 1e-3)
        self._process = GaussianProcess(self._placed(points, log_s), log_w)
        error, deviation = self._process.leave_one_out()
        self.deviations = _conformal(np.abs(error) / deviation)
        """Half-width of the intervals, in standard deviations of the Gaussian process."""

    def predict(self, points: Points, log_s: Array) -> tuple[Array, Array]:
        """Return (expected log power, half-width of its interval) of each config."""
        mean, variance = self._process.predict(self._placed(points, log_s))
        return mean, self.deviations * np.sqrt(variance + self._process.noise)

    def _placed(self, points: Points, log_s: Array) -> Points:
        return points.with_coordinate(_LATENCY_WEIGHT * (log_s - self._middle) / self._spread)


def _conformal(scores: Array) -> float:
    """Return the quantile `LEVEL` of absolute errors. The errors are `scores` and a few assumed errors with a
    half-normal distribution."""
    count = len(scores) + _PRIOR_WEIGHT
    order = np.sort(scores)
    # For each score, compute the fraction of measured and assumed errors that do not exceed the score.
    prior = np.array([math.erf(score / math.sqrt(2.0)) for score in order])
    share = (_PRIOR_WEIGHT * prior + np.arange(1, len(order) + 1)) / (count + 1.0)
    above = np.flatnonzero(share >= LEVEL)
    return max(float(order[above[0]]), 1.0) if len(above) else max(float(order[-1]), DEVIATIONS)


class EnergyGuide(ObjectiveSearch):
    """Search by expected improvement for the config of lowest cost in one space, with few energy measurements."""

    def __init__(self, search: ExpectedImprovement, weights: tuple[float, float] | None, seed: int = 0) -> None:
        """Begin a search in `search.space`. `search` selects the configs, and `seed` determines random choices."""
        super().__init__(search.space, weights)
        self._search = search
        self._draw = np.random.default_rng(seed)
        self._model: PowerModel | None = None
        self._learned = 0  # Number of measured energies that the model was trained on.

    def latency_round(self) -> list[int]:
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
        left = [config for config in self.ran() if config not in self._asked]
        if not self.with_energy or not left:
            return []
        # If the whole first round returned no energies, this machine cannot measure energy.
        if len(self.energy_j) < 2 and len(self._asked) >= FIRST_ENERGY:
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
        """Return the log cost that each config must beat."""
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
        # On a Pareto front, a config must beat the lowest energy that was measured at its latency or less.
        no_slower = seconds <= latency[:, None]
        return np.asarray(np.where(no_slower, energies, math.inf).min(axis=1) + of_latency * latency)

    def _expected(self, configs: Sequence[int]) -> tuple[Array, Array]:
        """Return (log cost, half-width of its interval) of each config. Measured costs have the half-width 0."""
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
        if len(self.energy_j) >= 2 and len(self.energy_j) > self._learned:
            rows = list(self.energy_j)
            seconds = np.array([self.log_latency(config) for config in rows])
            joules = np.log(list(self.energy_j.values()))
            self._model = PowerModel(self.space.points[rows], seconds, joules - seconds)
            self._learned = len(rows)
        return self._model
