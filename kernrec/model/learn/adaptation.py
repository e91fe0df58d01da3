"""Adapt predictions to a few measurements of a new GPU or problem, without training again.

The logarithmic error of a prediction, log(measured / predicted), is modeled as the sum of an offset and a shape. The
offset is the mean error, shrunk towards zero. The shape is a Gaussian process over the standardized features (Matern
3/2 kernel, Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 4.2, 5.1 and 5.4).

    few rows    one length scale for all features and one noise level, chosen on a grid by marginal likelihood
    more rows   each feature has its own relevance (automatic relevance determination); a prior keeps the relevances
                equal unless the measurements distinguish the features

This code runs during a query, so it uses only NumPy: importing scikit-learn would take longer than the query itself.
The method was the most accurate on recorded search spaces.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.model.learn.conformal import LEVEL, Interval
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

MOST_ROWS = 1000
"""Maximum number of measurements in a fit. If there are more, evenly spaced measurements are selected."""
FEW_ROWS = 32
"""Maximum number of measurements for which all features share one length scale."""
_OFFSET_PRIOR = 0.5  # Weight of the assumption that the offset is zero, as a number of measurements.
_LENGTHS = (0.35, 0.7, 1.0, 1.8, 3.0)
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # Candidate values of noise variance divided by signal variance.
_RELEVANCE_SPREAD = 0.5  # Standard deviation of log relevances before any measurement.
_RELEVANCE_ROWS = 300  # Maximum number of rows to which relevances are fitted, to limit the time.
_STEPS = 25  # Number of optimization steps that fit the relevances.


@dataclass(frozen=True)
class Adaptation:
    """Correction of logarithmic predictions, fitted to M measurements of configs with F features."""

    offset: float
    """Mean correction of log predictions. It also applies to candidates that are far from all measured configs."""
    center: Array
    """Mean of each feature over the measured configs."""
    scale: Array
    """Standard deviation of each feature divided by its relevance. Infinity marks an unused feature."""
    rows: Array
    """Standardized features of the measured configs, array of shape (M, used features)."""
    weights: Array
    """Weight of each measured config in the Gaussian process."""
    length: float
    interval: Interval

    def correction(self, matrix: Array) -> Array:
        """Return the corrections to add to the log predictions of C candidates with features `matrix` (C, F)."""
        rows = _standardized(matrix, self.center, self.scale)
        return np.asarray(self.offset + matern(rows, self.rows, self.length) @ self.weights)


def adapt(matrix: Array, residual: Array) -> Adaptation:
    """Fit a correction to M configs with features `matrix` (M, F). `residual` (M,) is log(measured / predicted)."""
    if len(residual) > MOST_ROWS:
        keep = thinned(len(residual), MOST_ROWS)
        matrix, residual = matrix[keep], residual[keep]
    count = len(residual)
    offset = float(residual.sum() / (count + _OFFSET_PRIOR))
    center, scale = _frame(matrix)
    rows, error = _standardized(matrix, center, scale), residual - offset
    if count <= FEW_ROWS or not np.isfinite(scale).any():
        length, weights, left_out = _process(rows, error, _LENGTHS)
    else:
        relevance, left_out = _relevance(rows, error), np.empty(count)
        length, weights, _ = _process(rows * relevance, error, (1.0,))
        half = np.arange(count) % 2 == 0
        for mine in (half, ~half):
            without = rows * _relevance(rows[~mine], error[~mine])
            left_out[mine] = _process(without, error, (1.0,))[2][mine]
        rows, scale = rows * relevance, scale.copy()
        scale[np.isfinite(scale)] /= relevance
    rank = int(np.ceil(LEVEL * (count + 1)))
    # With too few rows, no quantile bounds the next error with the probability `LEVEL`. Use twice the largest error.
    width = float(np.sort(left_out)[min(rank, count) - 1]) * (1.0 if rank <= count else 2.0)
    return Adaptation(offset, center, scale, rows, weights, length, Interval(width, count, "config"))


def _process(rows: Array, error: Array, lengths: Sequence[float]) -> tuple[float, Array, Array]:
    """Fit a Gaussian process to M errors. Return (best of `lengths`, weights (M,), |leave-one-out errors| (M,))."""
    count = len(error)
    best: tuple[float, float, Array, Array] | None = None
    for length in lengths:
        values, vectors = np.linalg.eigh(matern(rows, rows, length))
        along = vectors.T @ error
        for noise in _NOISES:
            variance = np.maximum(values, 0.0) + noise
            signal = max(float((along * along / variance).sum()) / count, 1e-12)
            likelihood = -0.5 * (count * np.log(signal) + float(np.log(variance).sum()))
            if best is None or likelihood > best[0]:
                precision = (vectors * vectors / variance).sum(axis=1)
                best = likelihood, length, vectors @ (along / variance), precision
    assert best is not None
    _, length, weights, precision = best
    return length, weights, np.abs(weights / precision)


def _relevance(rows: Array, error: Array) -> Array:
    """Return the most probable factor by which to multiply each feature."""
    if len(error) > _RELEVANCE_ROWS:
        keep = thinned(len(error), _RELEVANCE_ROWS)
        rows, error = rows[keep], error[keep]
    apart = np.square(rows.T[:, :, None] - rows.T[:, None, :], dtype=np.float32).reshape(rows.shape[1], -1)
    # Rprop (Riedmiller and Braun, 1993) optimizes the logarithms of the parameters.
    parameters = np.concatenate([np.log([0.1, 1.5]), np.zeros(rows.shape[1])])
    step, before, best = np.full(len(parameters), 0.1), np.zeros(len(parameters)), (np.inf, parameters)
    for _ in range(_STEPS):
        loss, slope = _negative_log_posterior(parameters, apart, error)
        if loss < best[0]:
            best = loss, parameters
        turned = slope * before
        step = np.clip(np.where(turned > 0, 1.2 * step, np.where(turned < 0, 0.5 * step, step)), 1e-3, 0.5)
        before = np.where(turned < 0, 0.0, slope)
        parameters = parameters - np.sign(before) * step
    return np.asarray(np.exp(best[1][2:] - best[1][1]))


def _negative_log_posterior(parameters: Array, apart: Array, error: Array) -> tuple[float, Array]:
    """Return (negative log posterior, its gradient). `parameters` contains the logarithms of noise, length scale and F
    relevances. `apart` contains the squared differences between all pairs of rows, array of shape (F, M * M)."""
    count = len(error)
    noise, length, relevance = np.exp(parameters[0]), parameters[1], parameters[2:]
    share = np.exp(2.0 * (relevance - length))
    distance = np.sqrt(3.0 * (share.astype(apart.dtype) @ apart).astype(np.float64).reshape(count, count))
    decay = np.exp(-distance)
    inverse = np.linalg.inv((1.0 + distance) * decay + noise * np.eye(count))
    weights = inverse @ error
    fit = max(float(error @ weights), 1e-30)
    loss = 0.5 * (count * np.log(fit) - np.linalg.slogdet(inverse)[1])
    outer = 0.5 * (inverse - np.outer(weights, weights) * (count / fit))
    by_feature = -3.0 * share * (apart @ (outer * decay).ravel().astype(apart.dtype))
    by_relevance = by_feature + relevance / _RELEVANCE_SPREAD**2
    slope = np.concatenate([[noise * np.trace(outer), -by_feature.sum()], by_relevance])
    return loss + 0.5 * float((relevance**2).sum()) / _RELEVANCE_SPREAD**2, slope


def thinned(count: int, most: int) -> Array:
    """Return `most` evenly spaced indices from 0 to `count` - 1."""
    return np.linspace(0, count - 1, most).astype(np.int64)


def _frame(matrix: Array) -> tuple[Array, Array]:
    """Return (mean, standard deviation) of each feature. The standard deviation of an unused feature is infinity."""
    complete = np.isfinite(matrix).all(axis=0)
    filled = np.where(complete, matrix, 0.0).astype(np.float64)
    spread = filled.std(axis=0)
    return filled.mean(axis=0), np.where(complete & (spread > 1e-6), spread, np.inf)


def _standardized(matrix: Array, center: Array, scale: Array) -> Array:
    used = np.isfinite(scale)
    if not used.any():
        return np.zeros((len(matrix), 1))
    return np.asarray(np.nan_to_num((matrix[:, used] - center[used]) / scale[used]) / np.sqrt(used.sum()))


def matern(a: Array, b: Array, length: float) -> Array:
    """Return the Matern 3/2 kernel (N, M) of the rows of a (N, F) and b (M, F). `length` is the length scale."""
    distance = np.sqrt(3.0 * squared_distances(a, b)) / length
    return np.asarray((1.0 + distance) * np.exp(-distance))


def squared_distances(a: Array, b: Array) -> Array:
    """Return the squared distances (N, M) between the rows of a (N, F) and of b (M, F)."""
    # An array of shape (N, M, F) would take too much memory.
    squared = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(squared, 0.0))  # Rounding can make a squared distance negative.
