"""Intervals that hold what they promise: conformal prediction over groups that were held out.

Rows of a problem err together, so rows cannot vouch for one another: what is exchangeable is the problem. Residuals are
those of models that did not see the row's group (a problem; where there is one problem alone, a GPU or a kernel). The
factor around a prediction is the quantile of |log(measured / predicted)| over the pooled groups, each weighing the
same, with one more group assumed that errs without bound (pooled CDF of hierarchical conformal prediction: Dunn,
Wasserman, Ramdas, "Distribution-free prediction sets for two-layer hierarchical models", JASA 2022, section 3.2). For
a 90 % interval that takes at least 9 groups.

An interval widens with distance: residuals are divided by 1 + d before the quantile is taken, and the quantile is
multiplied by 1 + d of the candidate asked about, d being how far it lies outside of what was trained on (normalised
conformal prediction, Papadopoulos et al., 2008).
"""

import math
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

LEVEL = 0.90


@dataclass(frozen=True)
class Interval:
    """A calibrated spread: predictions hold within a factor exp(width * (1 + distance)) at `level`.

    groups: how many held-out groups it stands on, of what `kind` (problem, GPU, kernel).
    """

    width: float
    groups: int
    kind: str
    level: float = LEVEL

    def around(self, value: Array, distance: Array | float = 0.0) -> tuple[Array, Array]:
        """(low, high) around predicted values."""
        factor = np.exp(self.width * (1.0 + np.asarray(distance)))
        return value / factor, value * factor


def groups_needed(level: float = LEVEL) -> int:
    """How many groups must be held out before an interval of this level is finite."""
    return math.ceil(round(level / (1.0 - level), 9))


def calibrate(
    residual: Array, group: Array, kind: str, distance: Array | float = 0.0, level: float = LEVEL
) -> Interval | None:
    """The interval of residuals log(measured / predicted) (N,) in groups numbered `group` (N,).

    None where there are fewer groups than `groups_needed`.
    """
    numbers, place, rows = np.unique(group, return_inverse=True, return_counts=True)
    if len(numbers) < groups_needed(level):
        return None
    score = np.abs(residual) / (1.0 + np.asarray(distance))
    ascending = np.argsort(score, kind="stable")
    share = np.cumsum((1.0 / rows)[place][ascending]) / (len(numbers) + 1.0)
    at = min(int(np.searchsorted(share, level - 1e-12)), len(score) - 1)
    return Interval(float(score[ascending][at]), len(numbers), kind, level)


@dataclass(frozen=True)
class Extent:
    """Where in feature space training happened: the 1st and 99th percentile of each feature and its spread; (F,)."""

    low: Array
    high: Array
    spread: Array

    @classmethod
    def of(cls, matrix: Array) -> "Extent":
        """The extent of a training matrix (N, F); a feature that was never known has none."""
        with np.errstate(all="ignore"):
            known = np.isfinite(matrix)
            filled = np.where(known, matrix, np.nan).astype(np.float64)
            some = known.any(axis=0)
            low, high, spread = (np.zeros(matrix.shape[1]) for _ in range(3))
            if some.any():
                low[some], high[some] = np.nanpercentile(filled[:, some], [1, 99], axis=0)
                spread[some] = np.nanstd(filled[:, some], axis=0)
        return cls(low, high, np.where(spread > 1e-9, spread, np.inf))

    def distance(self, matrix: Array) -> Array:
        """How far rows (C, F) lie outside, in standard deviations of each feature, root mean square; (C,)."""
        outside = np.maximum(np.maximum(self.low - matrix, matrix - self.high), 0.0) / self.spread
        outside = np.where(np.isfinite(outside), np.minimum(outside, 10.0), 0.0)
        return np.sqrt((outside * outside).mean(axis=1))
