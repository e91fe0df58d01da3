"""Calibrated intervals: hierarchical conformal prediction over held-out groups.

Rows of one problem have correlated errors, so the exchangeable unit is the problem. For an unmeasured GPU or kernel,
the unit is the GPU or kernel. The residual of a row comes from a model whose training and selection excluded the row's
group. The logarithm of the interval's factor is a quantile of |log(measured / predicted)| over all groups with equal
weights (pooled CDF of hierarchical conformal prediction: Dunn, Wasserman, Ramdas, "Distribution-free prediction sets
for two-layer hierarchical models", JASA 2022, section 3.2). The paper adds one more group, whose errors are infinite.
kernrec also adds a group, but its errors are half-normal like the errors of the analytical model, because infinite
errors would make intervals too wide.

A 90 % interval needs 9 measured groups and the added group. Errors of the analytical model replace missing groups.
Reports mark an interval with replaced groups as `pooled`.

An interval widens with the distance d of a candidate from the training data (`Extent.distance`). Its logarithmic
half-width is

    w + s (hypot(w, p) - w)        s = d**2 / (1 + d**2)

where w is the half-width inside the training data, and p is the half-width of the analytical model's interval. Far from
the training data, the errors of both models add up. Before the quantile is taken, each residual is converted to the
smallest w whose interval covers it (normalized conformal prediction, Papadopoulos et al., 2008).
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.model.analytical.spread import INTERVAL
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

Array = np.ndarray

_LEAST_SPREAD = 0.05
"""Standard deviation below which a feature counts as constant."""
_UNIT_SPREAD = 1.0
"""Standard deviation assumed for a constant feature: a factor of two if the feature is a base-2 logarithm."""


@dataclass(frozen=True)
class Extent:
    """Range and spread of each of F features in the training data, (F,) each."""

    low: Array
    high: Array
    """99th percentile of each feature. `low` is the first percentile."""
    spread: Array
    """Standard deviation of each feature. Infinity marks a feature without known values."""
    part: Array
    """Index of each feature's group in `features.GROUPS`."""

    @classmethod
    def of(cls, matrix: Array, part: Array | None = None) -> "Extent":
        """Return the extent of training rows with features `matrix` (N, F). `part` (F,) is the group of each feature,
        or None for a single group."""
        with np.errstate(all="ignore"):
            finite = np.isfinite(matrix)
            filled = np.where(finite, matrix, np.nan).astype(np.float64)
            some = finite.any(axis=0)
            low, high, spread = (np.zeros(matrix.shape[1]) for _ in range(3))
            if some.any():
                low[some], high[some] = np.nanpercentile(filled[:, some], [1, 99], axis=0)
                spread[some] = np.nanstd(filled[:, some], axis=0)
        part = np.zeros(matrix.shape[1], dtype=np.int64) if part is None else part
        spread = np.where(spread > _LEAST_SPREAD, spread, _UNIT_SPREAD)
        return cls(low, high, np.where(some, spread, np.inf), part)

    def distance(self, matrix: Array) -> Array:
        """Return the distance of each candidate (row of features) from the training data.

        The distance is log(1 + r) / 2, where r is a root mean square over a group of features. Each feature contributes
        its distance from the range, divided by the standard deviation. Within all ranges, r is 0.
        """
        distances = np.empty(len(matrix))
        # The group with the largest distance counts. A mean over all features would hide a change of few features.
        self.in_engine.fill(np.asarray(matrix, dtype=np.float64), distances)
        return distances

    @cached_property
    def in_engine(self) -> Any:
        # Avoid np.unique, because it imports np.ma, which is slow.
        members = np.asarray(self.part)[:, None] == sorted(set(np.asarray(self.part).tolist()))
        figures = (np.asarray(values, dtype=np.float64) for values in (self.low, self.high, self.spread))
        return query.Extent(*figures, np.asarray(members / members.sum(axis=0)))


LEVEL = 0.90
"""Fraction of true values that an interval covers."""
NEW_GPU, NEW_KERNEL = "new GPU", "new kernel"
"""Keys in `Model.intervals[quantity]` for GPUs and for kernels that are not in the training data."""
PRIOR = math.log(INTERVAL)
"""Logarithmic half-width of the analytical model's 90 % interval."""
_DEVIATION = PRIOR / DEVIATIONS
"""Standard deviation of the analytical model's log error."""


def on_dtype(gpu: str, dtype: str) -> str:
    """Return the key in `Model.intervals[quantity]` for a GPU and a data type."""
    return f"{gpu} {dtype}"


def on_rows(gpu: str, dtype: str, row_kind: str) -> str:
    """Return the key in `Model.intervals[quantity]` for a GPU, a data type and an alignment (`features.row_kind`)."""
    return f"{on_dtype(gpu, dtype)}, {row_kind}" if row_kind else on_dtype(gpu, dtype)


@dataclass(frozen=True)
class Interval:
    """Calibrated interval around a prediction. The fraction `level` of the true values is within a factor
    exp(`width`)."""

    width: float
    """Logarithm of the factor for candidates inside the training data."""
    groups: int
    """Number of held-out groups behind the interval."""
    kind: str
    """Kind of the held-out groups: `problem`, `GPU` or `kernel`, or `config` after an adaptation."""
    level: float = LEVEL

    @property
    def pooled(self) -> bool:
        """Return whether the interval also uses errors of the analytical model, for lack of held-out groups."""
        return self.groups < groups_needed(self.level)

    @property
    def summary(self) -> str:
        """Return a text that describes the held-out data behind the interval."""
        if not self.groups:
            return f"the analytical model: no {self.kind} was held out"
        held_out = f"{self.groups} held-out {self.kind}{'s' * (self.groups != 1)}"
        if not self.pooled:
            return held_out
        return f"{held_out} and the analytical model; {groups_needed(self.level)} would be enough without it"

    def around(self, value: Array, distance: Array | float = 0.0) -> tuple[Array, Array]:
        """Return (lower ends, upper ends) of intervals for predictions at a distance from the training data."""
        beyond = math.hypot(self.width, PRIOR) - self.width
        factor = np.exp(self.width + _prior_share(np.asarray(distance)) * beyond)
        return value / factor, value * factor


def interval_from(entry: Mapping[str, Any]) -> Interval:
    """Create an interval from its entry in a model card. Raise `ValueError` if the interval is implausible."""
    interval = Interval(float(entry["width"]), int(entry["groups"]), str(entry["kind"]), float(entry["level"]))
    if not (0.0 <= interval.width < np.inf and interval.groups >= 0 and 0.0 < interval.level < 1.0):
        raise ValueError(f"an interval is {dict(entry)!r:.80}")
    return interval


def unknown_interval(kind: str) -> Interval:
    """Return the analytical model's interval, for use if no group of this kind was held out."""
    return Interval(PRIOR, 0, kind)


def groups_needed(level: float = LEVEL) -> int:
    """Return the number of held-out groups from which intervals no longer depend on the analytical model."""
    return math.ceil(round(level / (1.0 - level), 9))


def calibrate(
    residual: Array, group: Array, kind: str, distance: Array | float = 0.0, level: float = LEVEL
) -> Interval:
    """Calibrate an interval on held-out residuals.

    Args:
        residual: log(measured / predicted) of each row, (N,).
        group: Number of each row's group, (N,).
        kind: Kind of the groups: `problem`, `GPU` or `kernel`.
        distance: Distance of each row from the training data, (N,) or one number.
        level: Fraction of true values that the interval must cover.
    """
    numbers, place, rows = np.unique(group, return_inverse=True, return_counts=True)
    if not len(numbers):
        return unknown_interval(kind)
    score = _width_needed(np.abs(residual), np.asarray(distance))
    ascending = np.argsort(score, kind="stable")
    total = max(len(numbers), groups_needed(level)) + 1.0
    share = np.cumsum((1.0 / rows)[place][ascending]) / total
    width = _quantile(score[ascending], share, 1.0 - len(numbers) / total, level)
    return Interval(width, len(numbers), kind, level)


def _prior_share(distance: Array) -> Array:
    squared = distance * distance
    return np.asarray(squared / (1.0 + squared))


def _width_needed(error: Array, distance: Array) -> Array:
    """Return the smallest `Interval.width` that covers a log error at a distance from the training data."""
    s = _prior_share(distance)
    # The returned w solves (1 - s) w + s hypot(w, p) = error. The formula has a form that is never 0 / 0.
    beyond = np.maximum(error * error - (s * PRIOR) ** 2, 0.0)
    inside = np.maximum(error * error + (1.0 - 2.0 * s) * PRIOR**2, 0.0)
    return np.asarray(beyond / np.maximum(error * (1.0 - s) + s * np.sqrt(inside), 1e-12))


def _quantile(score: Array, share: Array, prior_weight: float, level: float) -> float:
    """Return the smallest interval width that covers the fraction `level` of errors. `score` contains the widths that
    rows need, ascending. `share` contains cumulative weights. `prior_weight` is the weight of a normal distribution."""

    def covered(width: float) -> float:
        rows = int(np.searchsorted(score, width, side="right"))
        observed = share[rows - 1] if rows else 0.0
        return observed + prior_weight * math.erf(width / (_DEVIATION * math.sqrt(2.0)))

    low, high = 0.0, max(float(score[-1]), 8.0 * _DEVIATION)
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if covered(middle) >= level else (middle, high)
    return high
