"""What a handful of measurements on a new GPU or problem change at once, with nothing trained again.

The model's (or the prior's) error there, log(measured / predicted), has a level and a shape. The level is a scale
offset, its mean shrunk towards none; the shape a Gaussian process over the standardised features (Matern 5/2 kernel,
Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 4.2 and 5.4), whose length and noise
are those of the greatest marginal likelihood on a small grid. With few rows the process stays near zero and the scale
remains. Of the choices tried on the recorded spaces (scale alone, boosted continuation, processes over tunables) it
erred least at 1 % and at 5 % of a space (`tools/evaluate_spaces.py`).

Leave-one-out errors come in closed form, and say how wide an interval must be.
"""

from dataclasses import dataclass

import numpy as np

from kernrec.model.intervals import LEVEL, Interval

Array = np.ndarray

MOST_ROWS = 1000
"""More measurements than this are thinned out evenly: beyond it retraining is the better way."""
_SHRINK = 0.5  # measurements' worth of belief that there is no offset
_LENGTHS = (0.35, 0.7, 1.0, 1.8, 3.0)
_NOISES = (0.01, 0.03, 0.1, 0.3, 1.0)  # noise variance over signal variance


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
        keep = np.linspace(0, len(residual) - 1, MOST_ROWS).astype(np.int64)
        matrix, residual = matrix[keep], residual[keep]
    count = len(residual)
    offset = float(residual.sum() / (count + _SHRINK))
    center, scale = _frame(matrix)
    rows = _standard(matrix, center, scale)
    error = residual - offset
    best: tuple[float, float, Array, Array] | None = None
    for length in _LENGTHS:
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
    left_out = np.abs(weights / precision)
    at = min(int(np.ceil(LEVEL * (count + 1))), count) - 1
    # Fewer rows than the level needs cannot tell how far the next one may lie: twice the worst seen.
    enough = np.ceil(LEVEL * (count + 1)) <= count
    width = float(np.sort(left_out)[at]) * (1.0 if enough else 2.0)
    return Adaptation(offset, center, scale, rows, weights, length, Interval(width, count, "config"))


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
    distance = np.sqrt(np.maximum(5.0 * squared, 0.0)) / length
    return (1.0 + distance + distance * distance / 3.0) * np.exp(-distance)
