"""What a handful of measurements on a new GPU or problem change at once, with nothing trained again.

The model's (or the prior's) error there, log(measured / predicted), has a level and a shape. The level is a scale
offset, its mean shrunk towards none; the shape a Gaussian process over the standardised features (Matern 3/2 kernel,
Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 4.2, 5.1 and 5.4).

    few rows   one length for all features and one noise, those of the greatest marginal likelihood on a small grid;
               with a handful the process stays near zero and the scale remains
    more       each feature has a relevance of its own (a length; "automatic relevance determination"), the greatest of
               likelihood times a prior that holds the features together as long as the rows say nothing else

Chosen on the recorded spaces (`tools/evaluate_spaces.py`), where relevances cut the median error after 5 % of a space
by 5 to 10 %, and on a kernel of which the tunables alone are known by 17 %. Tried there and left: scale alone, boosted
continuation and an average with boosted trees, processes over tunables alone, a linear term, other Matern kernels;
noise with heavy tails, which errs less where a card changed its clock and ranks worse where it did not.

Leave-one-out errors come in closed form, and say how wide an interval must be; those of a row count under a relevance
that was found without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.model.learn.conformal import LEVEL, Interval

Array = np.ndarray

MOST_ROWS = 1000
"""More measurements than this are thinned out evenly: beyond it retraining is the better way."""
FEW_ROWS = 32
"""From more rows on each feature has its own relevance: fewer cannot tell features apart."""
_SHRINK = 0.5  # measurements' worth of belief that there is no offset
_LENGTHS = (0.35, 0.7, 1.0, 1.8, 3.0)
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # noise variance over signal variance
_TOGETHER = 0.5  # spread of the features' log relevance before anything was measured
_RELEVANCE_ROWS = 300  # of more the relevance is found on this many
_STEPS = 25


@dataclass(frozen=True)
class Adaptation:
    """A correction in log space. center, scale: of the features (F,); rows (M, F) standardised; weights (M,).

    interval: around corrected predictions on this GPU and problem, from leave-one-out errors.
    """

    offset: float
    center: Array
    scale: Array
    rows: Array
    weights: Array
    length: float
    interval: Interval

    def correction(self, matrix: Array) -> Array:
        """What to add to the log of predictions for rows (C, F); (C,)."""
        return self.offset + _matern(_standard(matrix, self.center, self.scale), self.rows, self.length) @ self.weights


def adapt(matrix: Array, residual: Array) -> Adaptation:
    """The correction that measurements at rows (M, F) with residuals log(measured / predicted) (M,) call for; M >=
    1."""
    if len(residual) > MOST_ROWS:
        keep = thinned(len(residual), MOST_ROWS)
        matrix, residual = matrix[keep], residual[keep]
    count = len(residual)
    offset = float(residual.sum() / (count + _SHRINK))
    center, scale = _frame(matrix)
    rows, error = _standard(matrix, center, scale), residual - offset
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
    at = min(int(np.ceil(LEVEL * (count + 1))), count) - 1
    # Fewer rows than the level needs cannot tell how far the next one may lie: twice the worst seen.
    enough = np.ceil(LEVEL * (count + 1)) <= count
    width = float(np.sort(left_out)[at]) * (1.0 if enough else 2.0)
    return Adaptation(offset, center, scale, rows, weights, length, Interval(width, count, "config"))


def _process(rows: Array, error: Array, lengths: Sequence[float]) -> tuple[float, Array, Array]:
    """(length, weights (M,), sizes of leave-one-out errors (M,)) of the likeliest process over rows (M, F)."""
    count = len(error)
    best: tuple[float, float, Array, Array] | None = None
    for length in lengths:
        values, vectors = np.linalg.eigh(_matern(rows, rows, length))
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
    """What to multiply each feature with (F,) so that a process of length 1 is likeliest to have made the errors.

    Rprop (Riedmiller and Braun, 1993) over log noise, log length and log relevances: steps follow the gradient's signs.
    """
    if len(error) > _RELEVANCE_ROWS:
        keep = thinned(len(error), _RELEVANCE_ROWS)
        rows, error = rows[keep], error[keep]
    apart = np.square(rows.T[:, :, None] - rows.T[:, None, :], dtype=np.float32).reshape(rows.shape[1], -1)
    at = np.concatenate([np.log([0.1, 1.5]), np.zeros(rows.shape[1])])
    step, before, best = np.full(len(at), 0.1), np.zeros(len(at)), (np.inf, at)
    for _ in range(_STEPS):
        loss, slope = _unlikelihood(at, apart, error)
        if loss < best[0]:
            best = loss, at
        turned = slope * before
        step = np.clip(np.where(turned > 0, 1.2 * step, np.where(turned < 0, 0.5 * step, step)), 1e-3, 0.5)
        before = np.where(turned < 0, 0.0, slope)
        at = at - np.sign(before) * step
    return np.exp(best[1][2:] - best[1][1])


def _unlikelihood(at: Array, apart: Array, error: Array) -> tuple[float, Array]:
    """(negative log posterior, its gradient) at log noise, log length, log relevances; the signal's variance is the
    likeliest. apart: squared differences of rows by feature, (F, M * M)."""
    count = len(error)
    noise, length, relevance = np.exp(at[0]), at[1], at[2:]
    share = np.exp(2.0 * (relevance - length))
    distance = np.sqrt(3.0 * (share.astype(apart.dtype) @ apart).astype(np.float64).reshape(count, count))
    decay = np.exp(-distance)
    inverse = np.linalg.inv((1.0 + distance) * decay + noise * np.eye(count))
    weights = inverse @ error
    fit = max(float(error @ weights), 1e-30)
    loss = 0.5 * (count * np.log(fit) - np.linalg.slogdet(inverse)[1])
    outer = 0.5 * (inverse - np.outer(weights, weights) * (count / fit))
    by_feature = -3.0 * share * (apart @ (outer * decay).ravel().astype(apart.dtype))
    slope = np.concatenate([[noise * np.trace(outer), -by_feature.sum()], by_feature + relevance / _TOGETHER**2])
    return loss + 0.5 * float((relevance**2).sum()) / _TOGETHER**2, slope


def thinned(count: int, most: int) -> Array:
    """`most` of `count` places, evenly."""
    return np.linspace(0, count - 1, most).astype(np.int64)


def _frame(matrix: Array) -> tuple[Array, Array]:
    """Mean and spread of each feature; one that does not vary, or is not known everywhere, does not count."""
    known = np.isfinite(matrix).all(axis=0)
    filled = np.where(known, matrix, 0.0).astype(np.float64)
    spread = filled.std(axis=0)
    return filled.mean(axis=0), np.where(known & (spread > 1e-6), spread, np.inf)


def _standard(matrix: Array, center: Array, scale: Array) -> Array:
    """Standardised so that two rows drawn at random lie about 1.4 apart."""
    used = np.isfinite(scale)
    if not used.any():
        return np.zeros((len(matrix), 1))
    return np.nan_to_num((matrix[:, used] - center[used]) / scale[used]) / np.sqrt(used.sum())


def _matern(a: Array, b: Array, length: float) -> Array:
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    distance = np.sqrt(np.maximum(3.0 * squared, 0.0)) / length
    return (1.0 + distance) * np.exp(-distance)
