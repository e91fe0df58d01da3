"""Gaussian process over configs, and the space of configs that a search explores.

    covariance   signal * Matern 5/2 of the distance r
    r^2          sum of the squared distances in each tunable, weighted by the tunable's relevance

The process learns which tunables matter. Its hyperparameters maximize the posterior probability (Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2006, section 5.4.1). They have log-normal priors, so that a few
measurements suffice.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.model.learn.adaptation import squared_distances
from kernrec.util.optional import import_optional

Array = np.ndarray

_RELEVANCE_SPREAD = 2.0
"""Prior standard deviation of the logarithm of a relevance. The prior medians are equal and add up to 1."""
_NOISE, _NOISE_SPREAD = 0.01, 1.0
"""Prior median of `Hyperparameters.noise`, and prior standard deviation of its logarithm."""
_SIGNAL_SPREAD = 1.0
"""Prior standard deviation of the logarithm of `Hyperparameters.signal`. The prior median is 1."""
_WITHIN = 3.0
"""Maximum distance of a log hyperparameter from its prior median, in prior standard deviations."""
_STEPS = 25
_JITTER = 1e-8  # Added to the noise, so that the covariance matrix stays positive definite
_LEAST_VARIANCE = 1e-12  # Rounding can make a variance zero or negative.


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of a Gaussian process."""

    relevance: Array
    """Relevance of each group of coordinates in `Points`, array of shape (G,)."""
    noise: float
    """Ratio of the noise variance to the signal variance."""
    signal: float
    """Ratio of the signal variance to the variance of the training values."""


@dataclass(frozen=True)
class Points:
    """N points that represent configs. Their D coordinates form groups, usually one for each tunable."""

    coordinates: Array
    """Coordinates, array of shape (N, D). In each group, the squared distance between two random points is about 1."""
    groups: Array
    """Group number of each coordinate."""

    def __getitem__(self, rows: Any) -> "Points":
        return Points(self.coordinates[rows], self.groups)

    def with_coordinate(self, values: Array) -> "Points":
        """Return the points with an additional coordinate as a new group. `values` has the shape (N,)."""
        number = self.groups.max(initial=-1) + 1
        return Points(np.column_stack((self.coordinates, values)), np.append(self.groups, number))


class GaussianProcess:
    """Gaussian process, given known values. The constructor raises `KernrecError` if SciPy is not installed."""

    def __init__(self, points: Points, values: Array, hyperparameters: Hyperparameters | None = None) -> None:
        """Condition the process on known values at M points. Learn the hyperparameters if they are None."""
        self._linear = import_optional("scipy.linalg", "choosing which configs to measure", "measure")
        self._offset, self._scale = float(values.mean()), max(float(values.std()), 1e-6)
        scaled = (values - self._offset) / self._scale
        self.hyperparameters = hyperparameters or _learned(points, scaled, self._linear)
        self._weights = np.sqrt(self.hyperparameters.relevance)[points.groups]
        self._embedded = points.coordinates * self._weights
        self._unit_noise = self.hyperparameters.signal * (self.hyperparameters.noise + _JITTER)
        within = self._between(self._embedded, self._embedded) + self._unit_noise * np.eye(len(values))
        self._factor = self._linear.cholesky(within, lower=True)
        self._pulls = self._linear.cho_solve((self._factor, True), scaled)
        self.noise = self._unit_noise * self._scale**2
        """Variance of the measurement noise, in the squared unit of the values."""

    def _between(self, first: Array, second: Array) -> Array:
        return self.hyperparameters.signal * _matern(squared_distances(first, second))[0]

    def _across(self, points: Points) -> tuple[Array, Array, Array]:
        """Return (scaled coordinates of C points, K, L^-1 K^T). K, of shape (C, M), is the covariance of the points
        with the known values. L is the Cholesky factor of the known values' covariance."""
        embedded = points.coordinates * self._weights
        across = self._between(embedded, self._embedded)
        solved = self._linear.solve_triangular(self._factor, across.T, lower=True, check_finite=False)
        return embedded, across, solved

    def predict(self, points: Points) -> tuple[Array, Array]:
        """Return (expected value, variance without measurement noise) at each point."""
        _, across, solved = self._across(points)
        variance = np.maximum(self.hyperparameters.signal - (solved * solved).sum(axis=0), _LEAST_VARIANCE)
        return self._offset + self._scale * (across @ self._pulls), self._scale**2 * variance

    def covariance(self, points: Points) -> Array:
        """Return the covariance (C, C) of the values at C points, without measurement noise."""
        embedded, _, solved = self._across(points)
        return np.asarray(self._scale**2 * (self._between(embedded, embedded) - solved.T @ solved))

    def leave_one_out(self) -> tuple[Array, Array]:
        """Predict each of M known values from all others. Return (errors, standard deviations of the errors), (M,)
        each."""
        inverse = np.diagonal(self._linear.cho_solve((self._factor, True), np.eye(len(self._factor))))
        return self._scale * self._pulls / inverse, self._scale / np.sqrt(inverse)


def _matern(squared: Array) -> tuple[Array, Array]:
    distance = np.sqrt(5.0 * squared)
    decay = np.exp(-distance)
    return (1.0 + distance + distance * distance / 3.0) * decay, -5.0 / 6.0 * (1.0 + distance) * decay


def _learned(points: Points, values: Array, linear: Any) -> Hyperparameters:
    """Return the most probable hyperparameters for standardized values (M,) at M points."""
    optimize = import_optional("scipy.optimize", "choosing which configs to measure", "measure")
    count, unit = int(points.groups.max(initial=-1)) + 1, np.eye(len(values))
    of_groups = [points.coordinates[:, points.groups == group] for group in range(count)]
    apart = np.stack([squared_distances(coordinates, coordinates) for coordinates in of_groups])
    believed = np.append(np.full(count, -math.log(max(count, 1))), (math.log(_NOISE), 0.0))
    spread = np.append(np.full(count, _RELEVANCE_SPREAD), (_NOISE_SPREAD, _SIGNAL_SPREAD))

    def improbability(logs: Array) -> tuple[float, Array]:
        """Return the negative log posterior and its gradient. `logs` contains the logarithms of the hyperparameters."""
        relevance, noise, signal = np.exp(logs[:-2]), math.exp(logs[-2]), math.exp(logs[-1])
        matern, slope = _matern(np.tensordot(relevance, apart, 1))
        within = signal * (matern + (noise + _JITTER) * unit)
        factor = linear.cholesky(within, lower=True, check_finite=False)
        pulls = linear.cho_solve((factor, True), values, check_finite=False)
        change = 0.5 * (linear.cho_solve((factor, True), unit, check_finite=False) - np.outer(pulls, pulls))
        by_relevance = signal * relevance * np.tensordot(apart, change * slope, 2)
        by_others = signal * noise * np.trace(change), float((change * within).sum())
        off = (logs - believed) / spread
        value = 0.5 * values @ pulls + np.log(np.diagonal(factor)).sum() + 0.5 * off @ off
        return float(value), np.append(by_relevance, by_others) + off / spread

    bounds = np.column_stack((believed - _WITHIN * spread, believed + _WITHIN * spread))
    options = {"maxiter": _STEPS}
    logs = optimize.minimize(improbability, believed, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return Hyperparameters(np.exp(logs[:-2]), math.exp(logs[-2]), math.exp(logs[-1]))


_OFFSPRING, _MUTATIONS = 2000, 1.5
"""Number of distinct offspring to breed, and mean number of mutated tunables per child."""
_MOST_CHOICES = 32
"""Maximum number of values of a categorical tunable. A tunable with more values is numerical."""
_GENERATIONS = 8
"""Maximum number of attempts to breed enough offspring. Children that the space does not contain are discarded."""
FEWEST = 20
"""Minimum number of predictions from which `completed_predictions` fills gaps."""
_FITTED = 300
"""Maximum number of predictions that `completed_predictions` learns from."""
_CHUNK = 4096
"""Number of configs that are predicted at once. This limits memory to about `_CHUNK * _FITTED` numbers."""


class SearchSpace:
    """Configs of a search, identified by index."""

    def __init__(self, tunables: Array, predicted_s: Array | None = None, seed: int = 0) -> None:
        """Prepare a space.

        Args:
            tunables: Value of each tunable (column) of each config (row). NaN marks a tunable that a config lacks.
            predicted_s: Predicted latency of each config in seconds, or None. NaN marks a config without a prediction.
            seed: Seed of the random order of configs without predictions.
        """
        count = len(tunables)
        self.predicted_s = predicted_s
        self.log_s = np.zeros(count)
        """Log predicted latency of each config. Configs without a prediction get the largest prediction."""
        predicted = np.zeros(count, dtype=bool) if predicted_s is None else np.isfinite(predicted_s)
        if predicted_s is not None and predicted.any():
            self.log_s = np.log(np.where(predicted, predicted_s, np.max(predicted_s[predicted])))
        tie = np.where(predicted, np.arange(count), np.random.default_rng(seed).random(count))
        self.by_prediction = np.lexsort((tie, self.log_s, ~predicted))
        """Indices of the configs, sorted by predicted latency. Configs without a prediction come last."""
        columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in tunables.T]
        self._genes = np.stack(columns, axis=1) if columns else np.zeros((count, 0), dtype=np.int64)
        self._values = self._genes.max(axis=0) + 1 if count else np.zeros(len(columns), dtype=np.int64)
        self.points = _points(tunables, self.log_s, self._genes)
        """Points of the configs, with a group for each tunable and a group for the predicted latency."""
        self.features = np.column_stack((np.log2(1.0 + np.maximum(np.nan_to_num(tunables), 0.0)), self.log_s))
        """Inputs of boosted trees, (C, T + 1): log tunables and log predicted latency."""

    def __len__(self) -> int:
        return len(self.log_s)

    @cached_property
    def covering(self) -> Array:
        """Return the indices of fast configs that together have each value of each tunable."""
        covering: dict[int, None] = {}
        for column in self._genes[self.by_prediction].T:
            covering |= dict.fromkeys(np.unique(column, return_index=True)[1].tolist())
        return np.asarray(self.by_prediction[sorted(covering)])

    def offspring(self, parents: Array, left: Array, draw: np.random.Generator) -> Array:
        """Breed configs from parents by crossover and mutation. Return their indices, ascending.

        Args:
            parents: Indices of the parents, the best first. Better parents breed more often (linear ranking).
            left: Whether each config may be returned.
            draw: Random generator.
        """
        ranks = np.arange(len(parents), 0.0, -1.0)
        weights = ranks / ranks.sum()
        offspring = np.empty(0, dtype=np.int64)
        for _ in range(_GENERATIONS):
            pairs = self._genes[draw.choice(parents, (2, 2 * _OFFSPRING), p=weights)]
            children = np.where(draw.random(pairs.shape[1:]) < 0.5, pairs[0], pairs[1])
            mutated = draw.random(children.shape) < _MUTATIONS / max(len(self._values), 1)
            children = np.where(mutated, (draw.random(children.shape) * self._values).astype(np.int64), children)
            order, keys = self._sorted_keys
            born = _mixed_radix(children, self._values)
            position = np.minimum(np.searchsorted(keys, born), len(order) - 1)
            rows = order[position[keys[position] == born]]  # Drop children that are not configs of the space.
            offspring = np.union1d(offspring, rows[left[rows]])
            if len(offspring) >= _OFFSPRING:
                break
        return offspring

    @cached_property
    def _sorted_keys(self) -> tuple[Array, Array]:
        keys = _mixed_radix(self._genes, self._values)
        order = np.argsort(keys)
        return order, keys[order]


def _mixed_radix(genes: Array, values: Array) -> Array:
    # Keys are floats, so different rows may have the same key if there are more than 2^53 combinations.
    key = np.zeros(len(genes))
    for column, count in zip(genes.T, values, strict=True):
        key = key * count + column
    return key


def _points(tunables: Array, log_s: Array, genes: Array) -> Points:
    columns = np.column_stack((np.log2(1.0 + np.maximum(tunables, 0.0)), log_s))
    # Replace a missing tunable by the mean value.
    columns = np.nan_to_num(columns - np.nanmean(columns, axis=0))
    spread = columns.std(axis=0)
    coordinates, groups = [np.zeros((len(log_s), 0))], list[int]()
    # Half of the squared distance in a tunable comes from the difference of log values. The other half is 0 for equal
    # values and a constant for different values. The constant is smaller for a tunable with many values.
    for number, column in enumerate(np.flatnonzero(spread > 1e-6).tolist()):
        value = columns[:, column : column + 1] / spread[column] / 2.0
        same = value
        if column < genes.shape[1]:
            values = int(genes[:, column].max(initial=0)) + 1
            same = np.eye(values)[genes[:, column]] / 2.0 * min(1.0, math.sqrt(_MOST_CHOICES / values))
        coordinates += [value, same]
        groups += [number] * (1 + same.shape[1])
    return Points(np.concatenate(coordinates, axis=1), np.array(groups, dtype=np.int64))


def completed_predictions(tunables: Array, predicted_s: Array, seed: int = 0) -> Array:
    """Fill gaps in the predicted latencies of a kernel's configs. Return latencies in seconds.

    Args:
        tunables: Values of the T tunables of each config, array of shape (C, T).
        predicted_s: Predicted latencies in seconds. NaN marks a gap. Gaps stay if there are fewer than `FEWEST`
            predictions.
        seed: Seed for choosing the configs to learn from.
    """
    predicted = np.isfinite(predicted_s)
    rows, left = np.flatnonzero(predicted), np.flatnonzero(~predicted)
    if len(rows) < FEWEST or not len(left):
        return predicted_s
    if len(rows) > _FITTED:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:_FITTED])
    points = SearchSpace(tunables).points
    process = GaussianProcess(points[rows], np.log(predicted_s[rows]))
    completed = predicted_s.copy()
    for begin in range(0, len(left), _CHUNK):
        part = left[begin : begin + _CHUNK]
        completed[part] = np.exp(process.predict(points[part])[0])
    return completed
