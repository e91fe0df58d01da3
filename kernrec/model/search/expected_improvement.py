"""Choose the next config to measure, given all measurements: Bayesian optimization with expected improvement.

    first batch    for each value of each tunable, the config predicted to be the fastest with this value; random
                   configs if there are no predictions
    later batches  a Gaussian process models log(measured / predicted); the configs of greatest expected improvement
                   come next (Jones et al., "Efficient global optimization", 1998). The configs of one batch are chosen
                   one by one, each as if earlier configs had given the expected result ("kriging believer",
                   Ginsbourger et al., "Kriging is well-suited to parallelize optimization", 2010)

The search may end after any number of measurements.

In a space too large to score completely, the candidates are offspring of the fastest configs, crossed and mutated as in
the genetic search of arXiv 2411.18873. The Gaussian process decides which offspring are measured.

Everything is seeded: the same measurements in the same order give the same next configs.
"""

import math
from abc import ABC, abstractmethod

import numpy as np

from kernrec.model.search.gaussian_process import GaussianProcess, Hyperparameters, SearchSpace
from kernrec.util.optional import import_optional

Array = np.ndarray

FIRST, FIRST_COLD = 15, 10
"""Number of measurements before the first Gaussian process, with and without predictions. On the recorded spaces, 10
random configs led to better results than 15, and than one config for each value of each tunable (`tools/evidence
search`).
"""
_BATCH, _BATCH_SHARE = 5, 0.1
"""Number of configs between two fits: at least `_BATCH`, and `_BATCH_SHARE` of measured ones. Smaller batches did not
find the best config sooner on the recorded spaces (`tools/evidence search`), and larger batches can be compiled ahead.
"""
_FITTED = 256
"""Maximum number of measurements in a fit: the fastest half, and a random sample of the others."""
SCORED = 20_000
"""Maximum number of configs scored for a batch. In a larger space, offspring of the fastest configs are scored."""
_PROMISING = 512
"""Number of configs of greatest expected improvement among which a batch is chosen jointly."""
PARENTS = 30
"""Number of fastest configs that breed offspring."""
_LEARNED_EVERY = 1.15
"""Growth factor of the number of measurements after which hyperparameters are learned again."""
_LEAST_VARIANCE = 1e-12  # Rounding can leave a variance of zero or less.


class ExpectedImprovement:
    """Search of one space of C configs. It stores no measurements; pass all to `order`. Raises `KernrecError` if
    SciPy is not installed.
    """

    def __init__(self, tunables: Array, predicted_s: Array | None = None, seed: int = 0) -> None:
        """Prepare a space.

        Args:
            tunables: Values of the configs, (C, T); NaN for a tunable that a config lacks.
            predicted_s: Predicted latency, (C,), NaN for a config without prediction; None without any predictions.
            seed: Seed of all random choices.
        """
        # Import SciPy here, too, so that a missing library raises an error before any measurement.
        import_optional("scipy.linalg", "choosing which configs to measure", "measure")
        self._seed = seed
        # Store the hyperparameters, with the rows and values that they were learned from.
        self._learned: tuple[Array, Array, Hyperparameters] | None = None
        self._first = FIRST_COLD if predicted_s is None else FIRST
        self.space = SearchSpace(tunables, predicted_s, seed)

    def batch(self, measured: int) -> int:
        """Return how many configs to measure before calling `order` again."""
        left = self._first - measured
        return left if left > 0 else max(_BATCH, int(_BATCH_SHARE * measured))

    def order(self, tried: Array, latency_s: Array) -> Array:
        """Return all configs that were not tried, the most promising first.

        The first `batch(M)` of them are chosen jointly. The others follow by their own expected improvement.

        Args:
            tried: Indices of the M configs that were tried.
            latency_s: Their measured latencies, (M,); NaN for a config that failed.
        """
        left = np.ones(len(self.space.log_s), dtype=bool)
        left[tried] = False
        ran = np.isfinite(latency_s)
        if len(tried) < self._first or ran.sum() < 2:
            first = self.space.by_prediction if self.space.predicted_s is None else self.space.covering
            return self._completed(first[left[first]][: self.batch(len(tried))], left)
        rows, log_s = tried[ran], np.log(latency_s[ran])
        draw = np.random.default_rng([self._seed, len(tried)])
        scored = np.flatnonzero(left)
        if len(scored) > SCORED:
            scored = self.space.offspring(rows[np.argsort(log_s, kind="stable")[:PARENTS]], left, draw)
        if not len(scored):
            return self._completed(scored, left)
        residual = log_s - self.space.log_s[rows]
        hyperparameters = self._hyperparameters(rows, residual)
        sample = _thinned(log_s, draw)
        process = GaussianProcess(self.space.points[rows[sample]], residual[sample], hyperparameters)
        chosen = self._chosen(process, scored, float(log_s.min()), self.batch(len(tried)))
        return self._completed(scored[chosen], left)

    def _hyperparameters(self, rows: Array, residual: Array) -> Hyperparameters:
        """Return hyperparameters, learned from the first measurements up to the last growth by `_LEARNED_EVERY`."""
        steps = math.floor(math.log(len(rows) / FIRST_COLD, _LEARNED_EVERY) + 1e-9)
        count = max(2, min(len(rows), round(FIRST_COLD * _LEARNED_EVERY**steps)))
        rows, residual = rows[:count][-_FITTED:], residual[:count][-_FITTED:]
        learned = self._learned
        if learned is None or not (np.array_equal(learned[0], rows) and np.array_equal(learned[1], residual)):
            learned = rows, residual, GaussianProcess(self.space.points[rows], residual).hyperparameters
            self._learned = learned
        return learned[2]

    def _chosen(self, process: GaussianProcess, scored: Array, best: float, batch: int) -> Array:
        """Return indices in `scored`, the most promising first; `best` is the lowest measured log latency."""
        mean, variance = process.predict(self.space.points[scored])
        expected = self.space.log_s[scored] + mean
        # Sort configs without any expected improvement by expected time.
        by_gain = np.lexsort((expected, -_improvement(expected, np.sqrt(variance), best)))
        promising = by_gain[:_PROMISING]
        covariance = process.covariance(self.space.points[scored[promising]])
        chosen: list[int] = []
        free = np.ones(len(promising), dtype=bool)
        for _ in range(min(batch, len(promising))):
            spread = np.sqrt(np.maximum(np.diagonal(covariance), _LEAST_VARIANCE))
            gain = np.where(free, _improvement(expected[promising], spread, best), -1.0)
            position = int(np.lexsort((expected[promising], -gain))[0])
            chosen.append(position)
            free[position] = False
            # Treat this config as measured with the expected result: the mean stays, the variance shrinks.
            column = covariance[:, position]
            covariance = covariance - np.outer(column, column) / (column[position] + process.noise)
        batch_first = np.concatenate((promising[chosen], by_gain))
        return np.asarray(batch_first[np.sort(np.unique(batch_first, return_index=True)[1])])

    def _completed(self, chosen: Array, left: Array) -> Array:
        rest = left.copy()
        rest[chosen] = False
        return np.concatenate((chosen, self.space.by_prediction[rest[self.space.by_prediction]])).astype(np.int64)


def _thinned(log_s: Array, draw: np.random.Generator) -> Array:
    if len(log_s) <= _FITTED:
        return np.arange(len(log_s))
    order = np.argsort(log_s, kind="stable")
    return np.sort(np.concatenate((order[: _FITTED // 2], draw.permutation(order[_FITTED // 2 :])[: _FITTED // 2])))


def _improvement(expected: Array, spread: Array, best: float) -> Array:
    """Return the expected improvement of a log time over the best so far; arrays (C,)."""
    from scipy.special import ndtr

    z = (best - expected) / spread
    below = ndtr(z)
    return np.asarray(np.maximum(spread * (z * below + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)), 0.0))


class ObjectiveSearch(ABC):
    """Search of one space for an objective.

    The caller first reports earlier measurements. It then calls `latency_round`, `tell_latency`, `energy_round`,
    `tell_energy` in turn, and measures each round.
    """

    def __init__(self, space: SearchSpace, weights: tuple[float, float] | None) -> None:
        """Begin a search.

        Args:
            space: The configs.
            weights: Exponents of latency and energy in the cost to minimize: (1, 0) is latency, (0, 1) energy, (1, 1)
                the energy-delay product. None for the front, with random weights for each round (Knowles, "ParEGO",
                2006).
        """
        self.space = space
        self.front = weights is None
        self.weights = weights or (1.0, 1.0)
        """Current exponents of latency and energy in the cost; they change in each round for a front."""
        self.latency_s: dict[int, float | None] = {}
        """Latency of each tried config; None if it failed or is being measured."""
        self.energy_j: dict[int, float] = {}
        """Measured energy by config."""
        self._asked: set[int] = set()  # The energy of these configs was requested.

    @property
    def with_energy(self) -> bool:
        """Return whether energy counts."""
        return self.front or self.weights[1] > 0.0

    @abstractmethod
    def latency_round(self) -> list[int]:
        """Return the configs whose latency to measure next; empty if the whole space is measured."""

    @abstractmethod
    def energy_round(self) -> list[int]:
        """Return the measured configs whose energy to measure, most important first; no config is returned twice."""

    def tell_latency(self, config: int, latency_s: float | None) -> None:
        """Record a measured latency; None if the config failed."""
        self.latency_s[config] = latency_s

    def tell_energy(self, config: int, energy_j: float | None) -> None:
        """Record a measured energy; None if it could not be measured."""
        self._asked.add(config)
        if energy_j is not None:
            self.energy_j[config] = energy_j

    def ran(self) -> list[int]:
        """Return the configs with a measured latency, in the order of their requests."""
        return [config for config, latency_s in self.latency_s.items() if latency_s]

    def log_latency(self, config: int) -> float:
        """Return the logarithm of a measured latency."""
        latency_s = self.latency_s[config]
        assert latency_s is not None
        return math.log(latency_s)

    def log_cost(self, config: int) -> float:
        """Return the logarithm of the cost to minimize, for a config with all needed measurements."""
        return self.weights[0] * self.log_latency(config) + self.weights[1] * math.log(self.energy_j.get(config, 1.0))

    def best(self) -> int | None:
        """Return the config of lowest measured cost; for a front, of lowest energy-delay product."""
        if self.front:
            self.weights = 1.0, 1.0
        return min(self.energy_j if self.with_energy else self.ran(), key=self.log_cost, default=None)
