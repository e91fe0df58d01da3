"""Choose which config to measure next, from those measured so far: Bayesian optimization with expected improvement.

    first batch    each value of each tunable once, in the config that is predicted to be the fastest with that value
    later batches  a Gaussian process models log(measured / predicted); the configs of greatest expected improvement
                   come next (Jones et al., "Efficient global optimization", 1998). The configs of one batch are chosen
                   one by one, each as if those before it had come out as expected ("kriging believer", Ginsbourger et
                   al., "Kriging is well-suited to parallelize optimization", 2010)

The search may end after any number of measurements. The Gaussian process is scikit-learn's.

In a space too large to score whole, the candidates are offspring of the fastest configs, crossed and mutated as in the
genetic search of arXiv 2411.18873; the process decides which of them are measured.

Everything is seeded: the same measurements in the same order give the same next configs.
"""

import math
import warnings
from typing import Any

import numpy as np

from kernrec.model.search.search_space import SearchSpace
from kernrec.util.optional import import_optional

Array = np.ndarray

FIRST = 15
"""Measurements before the first Gaussian process."""
_BATCH, _BATCH_SHARE = 5, 0.1
"""Configs between two fits: at least `_BATCH`, and `_BATCH_SHARE` of those measured. Smaller batches found the best
config no sooner on the recorded spaces (`tools/compare_kernel_tuner.py`), and compilers need to know what comes."""
_FITTED = 256
"""Most measurements in a fit: the fastest half, and a random sample of the others."""
SCORED = 20_000
"""Most configs that are scored for one batch; in a larger space offspring of the fastest are."""
_PROMISING = 512
"""Configs of greatest expected improvement among which a batch is chosen jointly."""
PARENTS = 30
"""Fastest configs that offspring are bred from."""
_LENGTH, _LENGTH_BOUNDS = 1.0, (0.2, 5.0)
"""Length scale of the Gaussian process: initial value and bounds; coordinates of two random configs differ by about
1.4."""
_NOISE, _NOISE_BOUNDS = 0.1, (0.005, 1.0)
"""Noise variance over the variance of the residuals: initial value and bounds."""
_SIGNAL_BOUNDS = (0.05, 20.0)
"""Bounds of the signal variance over the variance of the residuals."""
_OFFSET_PRIOR = 0.5
"""The belief that predictions are right on average, in measurements."""

_erfc = np.frompyfunc(math.erfc, 1, 1)


class ExpectedImprovement:
    """The search of one space of C configs; it keeps no measurements, `order` takes all of them.

    Raises:
        KernrecError: scikit-learn is not installed.
    """

    def __init__(self, tunables: Array, predicted_s: Array | None = None, seed: int = 0) -> None:
        """Lay out a space.

        Args:
            tunables: the configs' values, (C, T); NaN for a tunable that a config does not have.
            predicted_s: predicted latency, (C,), NaN for a config without prediction; None where there is none at all.
            seed: of everything that is drawn at random.
        """
        # Imported here too, so that a missing library is an error before anything is measured.
        import_optional("sklearn.gaussian_process", "choosing which configs to measure", "train")
        self._seed = seed
        self.space = SearchSpace(tunables, predicted_s, seed)

    @staticmethod
    def batch(measured: int) -> int:
        """How many configs of an order to measure before asking for another."""
        return FIRST - measured if measured < FIRST else max(_BATCH, int(_BATCH_SHARE * measured))

    def order(self, tried: Array, latency_s: Array) -> Array:
        """All configs that were not tried, the most promising first.

        The first `batch(M)` of them are chosen jointly; the others follow by their own expected improvement.

        Args:
            tried: positions of the M configs that were tried.
            latency_s: their measured latencies, (M,); NaN for a config that failed.
        """
        left = np.ones(len(self.space.log_s), dtype=bool)
        left[tried] = False
        ran = np.isfinite(latency_s)
        if len(tried) < FIRST or ran.sum() < 2:
            first = self.space.covering
            return self._completed(first[left[first]][: self.batch(len(tried))], left)
        rows, log_s = tried[ran], np.log(latency_s[ran])
        draw = np.random.default_rng([self._seed, len(tried)])
        scored = np.flatnonzero(left)
        if len(scored) > SCORED:
            scored = self.space.offspring(rows[np.argsort(log_s, kind="stable")[:PARENTS]], left, draw)
        if not len(scored):
            return self._completed(scored, left)
        sample = _thinned(log_s, draw)
        fitted = rows[sample]
        process = ResidualProcess(self.space.points[fitted], log_s[sample] - self.space.log_s[fitted])
        chosen = self._chosen(process, scored, float(log_s.min()), self.batch(len(tried)))
        return self._completed(scored[chosen], left)

    def _chosen(self, process: "ResidualProcess", scored: Array, best: float, batch: int) -> Array:
        """Positions in `scored`, the most promising first; best: the least log latency measured so far."""
        mean, variance = process.predict(self.space.points[scored])
        expected = self.space.log_s[scored] + mean
        # Where no improvement is expected of several configs, the least expected time decides.
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
            # As if this config had been measured with the expected result: the mean stays, the variance shrinks.
            column = covariance[:, position]
            covariance = covariance - np.outer(column, column) / (column[position] + process.noise)
        batch_first = np.concatenate((promising[chosen], by_gain))
        return batch_first[np.sort(np.unique(batch_first, return_index=True)[1])]

    def _completed(self, chosen: Array, left: Array) -> Array:
        """The chosen configs, and then all others that are left by their prediction."""
        rest = left.copy()
        rest[chosen] = False
        return np.concatenate((chosen, self.space.by_prediction[rest[self.space.by_prediction]])).astype(np.int64)


_LEAST_VARIANCE = 1e-12  # rounding can leave a variance of zero or less


class ResidualProcess:
    """A Gaussian process over residuals log(measured / predicted): scikit-learn's, with a Matern 5/2 kernel.

    The hyperparameters are those of the greatest marginal likelihood. The mean of the residuals is shrunk towards none.
    """

    def __init__(self, points: Array, residual: Array, offset: float | None = None) -> None:
        """Fit the process to residuals (M,) at points (M, D); offset: their mean, where it is not to be shrunk."""
        gaussian = import_optional("sklearn.gaussian_process", "choosing which configs to measure", "train")
        kernels = gaussian.kernels
        self._offset = float(residual.sum() / (len(residual) + _OFFSET_PRIOR)) if offset is None else offset
        self._scale = max(float(residual.std()), 1e-6)
        kernel = kernels.ConstantKernel(1.0, _SIGNAL_BOUNDS) * kernels.Matern(_LENGTH, _LENGTH_BOUNDS, nu=2.5)
        kernel += kernels.WhiteKernel(_NOISE, _NOISE_BOUNDS)
        self._regressor: Any = gaussian.GaussianProcessRegressor(kernel, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a hyperparameter at its bound is no problem here
            self._regressor.fit(points, (residual - self._offset) / self._scale)
        self._unit_noise = float(self._regressor.kernel_.k2.noise_level)
        self.noise = self._unit_noise * self._scale**2
        """Variance of the measurement noise."""

    def predict(self, points: Array) -> tuple[Array, Array]:
        """(expected residual, its variance without noise) at points (C, D); arrays (C,)."""
        mean, deviation = self._regressor.predict(points, return_std=True)
        variance = np.maximum(deviation**2 - self._unit_noise, _LEAST_VARIANCE)
        return self._offset + self._scale * mean, self._scale**2 * variance

    def leave_one_out(self) -> tuple[Array, Array]:
        """(errors of each residual as predicted from all others, their standard deviations with noise), (M,) each."""
        from scipy.linalg import cho_solve

        regressor = self._regressor
        inverse = np.diagonal(cho_solve((regressor.L_, True), np.eye(len(regressor.L_))))
        return self._scale * regressor.alpha_ / inverse, self._scale / np.sqrt(inverse)

    def covariance(self, points: Array) -> Array:
        """Covariance of the residuals at points (C, D) without noise, (C, C)."""
        covariance = self._regressor.predict(points, return_cov=True)[1]
        return self._scale**2 * (covariance - self._unit_noise * np.eye(len(points)))


def _thinned(log_s: Array, draw: np.random.Generator) -> Array:
    """Which measurements a fit uses, ascending."""
    if len(log_s) <= _FITTED:
        return np.arange(len(log_s))
    order = np.argsort(log_s, kind="stable")
    return np.sort(np.concatenate((order[: _FITTED // 2], draw.permutation(order[_FITTED // 2 :])[: _FITTED // 2])))


def _improvement(expected: Array, spread: Array, best: float) -> Array:
    """By how much a log time is expected to fall below the best so far; arrays (C,)."""
    z = (best - expected) / spread
    below = 0.5 * _erfc(-z / math.sqrt(2.0)).astype(np.float64)
    return np.maximum(spread * (z * below + np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)), 0.0)
