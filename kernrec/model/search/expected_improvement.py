"""Choose the next config to measure by expected improvement, given all measurements so far.

A Gaussian process models log(measured / predicted) (Jones et al., "Efficient global optimization", 1998). The configs
of a batch are chosen one after the other. Each choice assumes that measuring the earlier configs gives the expected
results ("kriging believer", Ginsbourger et al., "Kriging is well-suited to parallelize optimization", 2010). In large
spaces, only offspring of the fastest configs are scored, as in the genetic search of arXiv 2411.18873. Equal
measurements in equal order lead to equal choices.
"""

import math
from abc import ABC, abstractmethod

import numpy as np

from kernrec.model.search.gaussian_process import GaussianProcess, Hyperparameters, SearchSpace
from kernrec.util.optional import import_optional

Array = np.ndarray

FIRST, FIRST_COLD = 15, 10
"""Number of measurements before the first fit, with and without predicted latencies. Without predictions, 10 random
configs led to the best results (`tools/evidence search`)."""
_BATCH, _BATCH_SHARE = 5, 0.1
"""Minimum number of configs in a batch, and the same minimum as a fraction of the measured configs. Smaller batches did
not find the best config sooner (`tools/evidence search`). With larger batches, more configs compile in advance."""
_FITTED = 256
"""Maximum number of measurements for a fit. Half of them are the fastest configs, and the others are random."""
SCORED = 20_000
"""Maximum number of configs to score for a batch. If more configs are unmeasured, only offspring are scored."""
_PROMISING = 512
"""Number of most promising configs from which a batch is chosen."""
PARENTS = 30
"""Number of fastest configs from which offspring are bred."""
_LEARNED_EVERY = 1.15
"""Factor by which the number of measurements grows before hyperparameters are learned again."""
_LEAST_VARIANCE = 1e-12  # Rounding can make a variance zero or negative.


class ExpectedImprovement:
    """Search of a space of C configs for the fastest config. The search stores no measurements: each call receives all
    of them. The constructor raises `KernrecError` if SciPy is not installed."""

    def __init__(self, tunables: Array, predicted_s: Array | None = None, seed: int = 0) -> None:
        """Prepare a space. The arguments are those of `SearchSpace`."""
        # Import SciPy now, so that a missing library raises an error before any measurement.
        import_optional("scipy.linalg", "choosing which configs to measure", "measure")
        self._seed = seed
        # (indices of configs, log(measured / predicted) of each config, hyperparameters learned from them)
        self._learned: tuple[Array, Array, Hyperparameters] | None = None
        self._first = FIRST_COLD if predicted_s is None else FIRST
        self.space = SearchSpace(tunables, predicted_s, seed)

    def batch(self, measured: int) -> int:
        """Return how many configs to measure next. `measured` is the number of configs tried so far."""
        left = self._first - measured
        return left if left > 0 else max(_BATCH, int(_BATCH_SHARE * measured))

    def order(self, tried: Array, latency_s: Array) -> Array:
        """Return the indices of all configs that were not tried yet, the most promising first.

        Args:
            tried: Indices of the M configs that were tried.
            latency_s: Measured latency of each tried config in seconds. NaN marks a config that failed.
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
        # Choose a batch jointly, so that its measurements complement each other.
        chosen = self._chosen(process, scored, float(log_s.min()), self.batch(len(tried)))
        return self._completed(scored[chosen], left)

    def _hyperparameters(self, rows: Array, residual: Array) -> Hyperparameters:
        steps = math.floor(math.log(len(rows) / FIRST_COLD, _LEARNED_EVERY) + 1e-9)
        count = max(2, min(len(rows), round(FIRST_COLD * _LEARNED_EVERY**steps)))
        rows, residual = rows[:count][-_FITTED:], residual[:count][-_FITTED:]
        learned = self._learned
        if learned is None or not (np.array_equal(learned[0], rows) and np.array_equal(learned[1], residual)):
            learned = rows, residual, GaussianProcess(self.space.points[rows], residual).hyperparameters
            self._learned = learned
        return learned[2]

    def _chosen(self, process: GaussianProcess, scored: Array, best: float, batch: int) -> Array:
        """Return indices into the configs `scored`, most promising first. `best` is the lowest measured log latency."""
        mean, variance = process.predict(self.space.points[scored])
        expected = self.space.log_s[scored] + mean
        # Sort configs with equal expected improvements (such as 0) by expected time.
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
            # Assume that the chosen config's cost will equal its expectation, so only variances change.
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
    """Return the expected improvement of each of C configs over `best`. `spread` is the standard deviation of each
    config."""
    from scipy.special import ndtr

    z = (best - expected) / spread
    below = ndtr(z)
    return np.asarray(np.maximum(spread * (z * below + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)), 0.0))


class ObjectiveSearch(ABC):
    """Search of one space for the config of lowest latency, energy, or combination of both.

    Report earlier measurements first. Then repeat two steps. First, measure the latencies of `latency_round`, and
    report them with `tell_latency`. Second, measure the energies of `energy_round`, and report them with `tell_energy`.
    """

    def __init__(self, space: SearchSpace, weights: tuple[float, float] | None) -> None:
        """Begin a search.

        Args:
            space: The configs.
            weights: Exponents of latency and energy in the cost, such as (1, 1) for the energy-delay product. If None,
                search for the Pareto front with random exponents in each round (Knowles, "ParEGO", 2006).
        """
        self.space = space
        self.front = weights is None
        self.weights = weights or (1.0, 1.0)
        """Current exponents of latency and energy in the cost."""
        self.latency_s: dict[int, float | None] = {}
        """Measured latency in seconds, keyed by config. None means that the config failed or is not measured yet."""
        self.energy_j: dict[int, float] = {}
        """Measured energy in joules, keyed by config."""
        self._asked: set[int] = set()  # Configs whose energy was requested or reported

    @property
    def with_energy(self) -> bool:
        """Return whether the cost depends on energy."""
        return self.front or self.weights[1] > 0.0

    @abstractmethod
    def latency_round(self) -> list[int]:
        """Return the configs whose latency to measure next, or an empty list at the end of the search."""

    @abstractmethod
    def energy_round(self) -> list[int]:
        """Return the configs whose energy to measure next, most important first."""

    def tell_latency(self, config: int, latency_s: float | None) -> None:
        """Record the measured latency of a config in seconds, or None if the config failed."""
        self.latency_s[config] = latency_s

    def tell_energy(self, config: int, energy_j: float | None) -> None:
        """Record the measured energy of a config in joules, or None if it could not be measured."""
        self._asked.add(config)
        if energy_j is not None:
            self.energy_j[config] = energy_j

    def ran(self) -> list[int]:
        """Return the configs with a measured latency."""
        return [config for config, latency_s in self.latency_s.items() if latency_s]

    def log_latency(self, config: int) -> float:
        latency_s = self.latency_s[config]
        assert latency_s is not None
        return math.log(latency_s)

    def log_cost(self, config: int) -> float:
        """Return the logarithm of a config's measured cost."""
        return self.weights[0] * self.log_latency(config) + self.weights[1] * math.log(self.energy_j.get(config, 1.0))

    def best(self) -> int | None:
        """Return the config of lowest measured cost, or None if no cost was measured."""
        if self.front:
            # In a search for a Pareto front, the best config is that of lowest energy-delay product.
            self.weights = 1.0, 1.0
        return min(self.energy_j if self.with_energy else self.ran(), key=self.log_cost, default=None)
