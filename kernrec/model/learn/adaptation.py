"""Adapt predictions to a few measurements of a new GPU or problem, without training again.

The error of these predictions, log(measured / predicted), is modeled as an offset plus a shape. The offset is the
mean error, shrunk towards zero. The shape is a Gaussian process over the standardized features (Matern 3/2 kernel,
Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 4.2, 5.1 and 5.4).

    few rows    one length scale for all features and one noise level, with the greatest marginal likelihood on a grid;
                for a handful of rows, the process stays near zero and only the offset remains
    more rows   each feature has its own relevance (automatic relevance determination); a prior on the relevances keeps
                them equal unless the rows distinguish them

A query runs this code, so it uses NumPy: importing scikit-learn would take longer than the query.

The method was chosen on the recorded spaces. These alternatives were rejected: the offset without a shape, continued
boosting and an average with boosted trees, processes over tunables only, a linear term, and other Matern kernels. Noise
with heavy tails was rejected too: its errors are smaller where a GPU changed its clock, but it ranks worse elsewhere.

Leave-one-out errors have a closed form and determine the width of the interval. Each row's error uses relevances that
were fitted without that row.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.model.learn.conformal import LEVEL, Interval
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

MOST_ROWS = 1000
"""Maximum number of measurements; an even selection is used if there are more. Training a model is then better."""
FEW_ROWS = 32
"""Number of rows above which each feature has its own relevance. Fewer rows cannot distinguish features."""
_OFFSET_PRIOR = 0.5  # The offset is shrunk toward zero with the weight of this many measurements.
_LENGTHS = (0.35, 0.7, 1.0, 1.8, 3.0)
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # Candidates for the ratio of noise variance to signal variance
_RELEVANCE_SPREAD = 0.5  # Standard deviation of the prior of log relevances
_RELEVANCE_ROWS = 300  # Fitting relevances to more rows would take too long.
_STEPS = 25  # Number of optimization steps for relevances


@dataclass(frozen=True)
class Adaptation:
    """Correction of log predictions, fitted to M measurements with F features."""

    offset: float
    """Correction of candidates that are far from all measurements."""
    center: Array
    """Mean of each feature, (F,)."""
    scale: Array
    """Spread of each feature, divided by its relevance, (F,); infinity for an unused feature."""
    rows: Array
    """Measured rows, standardized, (M, used features)."""
    weights: Array
    """Weight of each measured row, (M,)."""
    length: float
    """Length scale of the Gaussian process."""
    interval: Interval
    """Interval around corrected predictions on this GPU and problem, from leave-one-out errors."""

    def correction(self, matrix: Array) -> Array:
        """Return the correction to add to the log predictions of candidates, (C,).

        Args:
            matrix: Features of the candidates, (C, F).
        """
        rows = _standardized(matrix, self.center, self.scale)
        return np.asarray(self.offset + matern(rows, self.rows, self.length) @ self.weights)


def adapt(matrix: Array, residual: Array) -> Adaptation:
    """Fit a correction to measurements.

    Args:
        matrix: Features of the measured configs, (M, F); M >= 1.
        residual: log(measured / predicted), (M,).
    """
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
    # Too few rows for the level do not bound the next error, so use twice the largest error.
    width = float(np.sort(left_out)[min(rank, count) - 1]) * (1.0 if rank <= count else 2.0)
    return Adaptation(offset, center, scale, rows, weights, length, Interval(width, count, "config"))


def _process(rows: Array, error: Array, lengths: Sequence[float]) -> tuple[float, Array, Array]:
    """Fit a Gaussian process with the length scale and noise level of greatest marginal likelihood.

    Args:
        rows: Standardized features, (M, F).
        error: Values that the process models, (M,).
        lengths: Length scales to try.

    Returns:
        The length scale, the weights of the rows (M,), and the absolute leave-one-out errors (M,).
    """
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
    """Return the factor of each feature, (F,), with the greatest posterior probability at length scale 1.

    Log noise, log length scale and log relevances are optimized by Rprop (Riedmiller and Braun, 1993), whose steps
    follow the signs of the gradient.
    """
    if len(error) > _RELEVANCE_ROWS:
        keep = thinned(len(error), _RELEVANCE_ROWS)
        rows, error = rows[keep], error[keep]
    apart = np.square(rows.T[:, :, None] - rows.T[:, None, :], dtype=np.float32).reshape(rows.shape[1], -1)
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
    """Return the negative log posterior of a process and its gradient, at the most likely signal variance.

    Args:
        parameters: log noise, log length scale, log relevances, (2 + F,).
        apart: Squared differences of rows by feature, (F, M * M).
        error: Values that the process models, (M,).
    """
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
    """Return mean and spread of each feature; infinite spread for a feature that is constant or unknown in some row."""
    complete = np.isfinite(matrix).all(axis=0)
    filled = np.where(complete, matrix, 0.0).astype(np.float64)
    spread = filled.std(axis=0)
    return filled.mean(axis=0), np.where(complete & (spread > 1e-6), spread, np.inf)


def _standardized(matrix: Array, center: Array, scale: Array) -> Array:
    """Return the used features, standardized so that two random rows have a distance of about 1.4."""
    used = np.isfinite(scale)
    if not used.any():
        return np.zeros((len(matrix), 1))
    return np.asarray(np.nan_to_num((matrix[:, used] - center[used]) / scale[used]) / np.sqrt(used.sum()))


def matern(a: Array, b: Array, length: float) -> Array:
    """Return the Matern 3/2 kernel between rows a (N, F) and b (M, F), (N, M)."""
    distance = np.sqrt(3.0 * squared_distances(a, b)) / length
    return np.asarray((1.0 + distance) * np.exp(-distance))


def squared_distances(a: Array, b: Array) -> Array:
    """Return squared distances between rows a (N, F) and b (M, F), (N, M), without an array of N x M x F."""
    squared = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(np.maximum(squared, 0.0))  # Rounding can make it negative.
