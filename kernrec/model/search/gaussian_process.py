"""Gaussian process over configs whose tunables matter unequally (automatic relevance determination).

    covariance   signal * Matern 5/2 of the distance r, r^2 = sum over tunables of relevance * squared distance

Relevances, signal and noise have the greatest posterior probability (Rasmussen and Williams, "Gaussian Processes for
Machine Learning", 2006, section 5.4.1), with a log-normal prior for each of them, so that a few measurements suffice. A
tunable that does not matter gets a small relevance, so a measurement at one value informs about all its other values.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.model.learn.adaptation import squared_distances
from kernrec.util.optional import import_optional

Array = np.ndarray

_RELEVANCE_SPREAD = 2.0
"""Prior standard deviation of the logarithm of a relevance. A priori, all relevances are equal and add up to one."""
_NOISE, _NOISE_SPREAD = 0.01, 1.0
"""Prior of noise variance over the variance of the values: its median, and the standard deviation of its logarithm."""
_SIGNAL_SPREAD = 1.0
"""Prior standard deviation of the logarithm of signal variance over the variance of the values. The median is one."""
_WITHIN = 3.0
"""Maximum deviation of hyperparameters from their prior, in standard deviations."""
_STEPS = 25
"""Maximum number of steps of the optimizer."""
_JITTER = 1e-8  # It keeps the covariance matrix positive definite.
_LEAST_VARIANCE = 1e-12  # Rounding can leave a variance of zero or less.


@dataclass(frozen=True)
class Hyperparameters:
    """Relevances, noise and signal of a process."""

    relevance: Array
    """Relevance of each group of coordinates, (G,)."""
    noise: float
    """Noise variance over signal variance."""
    signal: float
    """Signal variance over the variance of the values."""


@dataclass(frozen=True)
class Points:
    """Points whose coordinates belong to groups, one for each tunable."""

    coordinates: Array
    """Coordinates, (N, D). The squared distance of two random points of a space is about one in each group."""
    groups: Array
    """Group of each coordinate, (D,), from zero."""

    def __getitem__(self, rows: Any) -> "Points":
        return Points(self.coordinates[rows], self.groups)

    def with_coordinate(self, values: Array) -> "Points":
        """Return the points with one more coordinate (N,), which forms its own group."""
        number = self.groups.max(initial=-1) + 1
        return Points(np.column_stack((self.coordinates, values)), np.append(self.groups, number))


class GaussianProcess:
    """Process conditioned on values. Raises `KernrecError` if SciPy is not installed."""

    def __init__(self, points: Points, values: Array, hyperparameters: Hyperparameters | None = None) -> None:
        """Condition on values (M,) at points.

        Args:
            hyperparameters: Known hyperparameters; None to learn them.
        """
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
        """Variance of the measurement noise."""

    def _between(self, first: Array, second: Array) -> Array:
        return self.hyperparameters.signal * _matern(squared_distances(first, second))[0]

    def _across(self, points: Points) -> tuple[Array, Array, Array]:
        """Return embedded points, their covariance with the values (C, M), and covariance over the factor (M, C)."""
        embedded = points.coordinates * self._weights
        across = self._between(embedded, self._embedded)
        solved = self._linear.solve_triangular(self._factor, across.T, lower=True, check_finite=False)
        return embedded, across, solved

    def predict(self, points: Points) -> tuple[Array, Array]:
        """Return expected values and their variances without noise at points; arrays (C,)."""
        _, across, solved = self._across(points)
        variance = np.maximum(self.hyperparameters.signal - (solved * solved).sum(axis=0), _LEAST_VARIANCE)
        return self._offset + self._scale * (across @ self._pulls), self._scale**2 * variance

    def covariance(self, points: Points) -> Array:
        """Return the covariance of the values at points without noise, (C, C)."""
        embedded, _, solved = self._across(points)
        return np.asarray(self._scale**2 * (self._between(embedded, embedded) - solved.T @ solved))

    def leave_one_out(self) -> tuple[Array, Array]:
        """Return the leave-one-out error of each value and its standard deviation with noise, (M,) each."""
        inverse = np.diagonal(self._linear.cho_solve((self._factor, True), np.eye(len(self._factor))))
        return self._scale * self._pulls / inverse, self._scale / np.sqrt(inverse)


def _matern(squared: Array) -> tuple[Array, Array]:
    distance = np.sqrt(5.0 * squared)
    decay = np.exp(-distance)
    return (1.0 + distance + distance * distance / 3.0) * decay, -5.0 / 6.0 * (1.0 + distance) * decay


def _learned(points: Points, values: Array, linear: Any) -> Hyperparameters:
    """Return the most probable hyperparameters, given values (M,) of mean 0 and variance 1."""
    optimize = import_optional("scipy.optimize", "choosing which configs to measure", "measure")
    count, unit = int(points.groups.max(initial=-1)) + 1, np.eye(len(values))
    of_groups = [points.coordinates[:, points.groups == group] for group in range(count)]
    apart = np.stack([squared_distances(coordinates, coordinates) for coordinates in of_groups])
    believed = np.append(np.full(count, -math.log(max(count, 1))), (math.log(_NOISE), 0.0))
    spread = np.append(np.full(count, _RELEVANCE_SPREAD), (_NOISE_SPREAD, _SIGNAL_SPREAD))

    def improbability(logs: Array) -> tuple[float, Array]:
        """Return the negative log posterior and its gradient."""
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
