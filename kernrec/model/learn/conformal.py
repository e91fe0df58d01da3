"""Calibrated intervals: hierarchical conformal prediction over held-out groups.

Rows of one problem have correlated errors, so the exchangeable unit is the problem. For an unmeasured GPU or kernel,
the unit is the GPU or kernel. Residuals come from models whose training and selection excluded the row's group. The
factor around a prediction is the quantile of |log(measured / predicted)| over the pooled groups, each with the
same weight, plus an additional group (pooled CDF of hierarchical conformal prediction: Dunn, Wasserman, Ramdas,
"Distribution-free prediction sets for two-layer hierarchical models", JASA 2022, section 3.2). In the paper, the
additional group has unbounded errors. Here, it has the analytical model's errors, which are half-normal and exceed that
model's interval in one of ten cases. With a dozen groups, unbounded errors would make intervals too wide.

A 90 % interval needs 9 groups and the additional group. Missing groups are assumed to have the errors of the analytical
model. Without groups, the interval is the analytical model's. Each held-out group moves it towards the residuals.
An interval with missing groups is `pooled`: it depends on this assumption, and answers say so.

An interval widens with the distance d of a candidate from the training data (`Extent.distance`). Its
logarithmic half-width is

    w + s (hypot(w, p) - w)        s = d**2 / (1 + d**2), p: half-width of the analytical model's interval

because far from the training data, the errors of both models add up. Before the quantile is taken, residuals are
converted to the smallest w that covers them (normalized conformal prediction, Papadopoulos et al., 2008).
"""

import math
from collections.abc import Mapping, Sequence
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
"""Spread assumed for a constant feature: a factor of two for log2 features, or a fraction of 1."""


@dataclass(frozen=True)
class Extent:
    """Range and spread of each of F features in the training data; arrays (F,)."""

    low: Array
    high: Array
    """99th percentile. `low` is the first percentile."""
    spread: Array
    """Standard deviation; infinity for a feature without any known value."""
    part: Array
    """Number of the feature's group (`features.GROUPS`)."""

    @classmethod
    def of(cls, matrix: Array, part: Array | None = None) -> "Extent":
        """Return the extent of a training matrix (N, F).

        Args:
            part: Group of each feature, (F,). By default, all features form one group.
        """
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

    def has(self, values: Sequence[float]) -> bool:
        """Return whether all features of a candidate, (F,), are within their ranges, so that its distance is 0."""
        for (low, high), value in zip(self._ranges, values, strict=True):  # noqa: SIM110 - `all` takes twice as long
            if not low <= value <= high:
                return False
        return True

    @cached_property
    def _ranges(self) -> list[tuple[float, float]]:
        return list(zip(self.low.tolist(), self.high.tolist(), strict=True))

    def distance(self, matrix: Array) -> Array:
        """Return how far candidates with features (C, F) lie outside the training data, (C,); 0 inside.

        The distance is log(1 + r) / 2. Here r is the root mean square excess of a group of features, in standard
        deviations. The group with the largest r counts, because a shape of another size differs in few features.
        """
        distances = np.empty(len(matrix))
        self.in_engine.fill(np.asarray(matrix, dtype=np.float64), distances)
        return distances

    @cached_property
    def in_engine(self) -> Any:
        # np.unique would import np.ma, which is slow.
        members = np.asarray(self.part)[:, None] == sorted(set(np.asarray(self.part).tolist()))
        figures = (np.asarray(values, dtype=np.float64) for values in (self.low, self.high, self.spread))
        return query.Extent(*figures, np.asarray(members / members.sum(axis=0)))


LEVEL = 0.90
"""Coverage of intervals."""
NEW_GPU, NEW_KERNEL = "new GPU", "new kernel"
"""Keys of a model's intervals for a GPU or kernel that is not in the training data."""
_PRIOR = math.log(INTERVAL)
"""Logarithmic half-width of the analytical model's 90 % interval."""
_DEVIATION = _PRIOR / DEVIATIONS
"""Standard deviation of the analytical model's log error."""


def on_dtype(gpu: str, dtype: str) -> str:
    """Return the key of a model's interval for one data type on a GPU."""
    return f"{gpu} {dtype}"


def on_rows(gpu: str, dtype: str, row_kind: str) -> str:
    """Return the key of the interval of a row kind and a data type; without a row kind, of the data type."""
    return f"{on_dtype(gpu, dtype)}, {row_kind}" if row_kind else on_dtype(gpu, dtype)


@dataclass(frozen=True)
class Interval:
    """Calibrated interval: `level` of the true values are within a factor exp(`width`) of the prediction. The factor
    grows with the distance from the training data.
    """

    width: float
    """Logarithmic half-width inside the training data."""
    groups: int
    """Number of held-out groups that determine the interval."""
    kind: str
    """Kind of group: `problem`, `GPU`, `kernel`, or `config` after an adaptation."""
    level: float = LEVEL
    """Coverage of the interval."""

    @property
    def pooled(self) -> bool:
        """Return whether the interval also depends on the analytical model's, because there were too few groups."""
        return self.groups < groups_needed(self.level)

    @property
    def summary(self) -> str:
        """Text that describes the data behind the interval."""
        if not self.groups:
            return f"the analytical model: no {self.kind} was held out"
        held_out = f"{self.groups} held-out {self.kind}{'s' * (self.groups != 1)}"
        if not self.pooled:
            return held_out
        return f"{held_out} and the analytical model, which {groups_needed(self.level)} would replace"

    def around(self, value: Array, distance: Array | float = 0.0) -> tuple[Array, Array]:
        """Return the lower and upper ends around predicted values.

        Args:
            distance: Distance of the candidates from the training data.
        """
        factor = factor_at(self.width, distance)
        return value / factor, value * factor


def factor_at(width: Array | float, distance: Array | float) -> Array:
    """Return the factor from a prediction to either end of its interval, at a distance from the training data."""
    return np.asarray(np.exp(half_width_at(width, distance)))


def half_width_at(width: Array | float, distance: Array | float) -> Array:
    """Return the logarithm of `factor_at`."""
    hypotenuse = math.hypot(width, _PRIOR) if isinstance(width, float) else np.hypot(width, _PRIOR)
    widening = hypotenuse - width
    return np.asarray(width + _prior_share(np.asarray(distance)) * widening)


def interval_from(entry: Mapping[str, Any]) -> Interval:
    """Return the interval in a model card. Raises `ValueError` if the interval is implausible."""
    interval = Interval(float(entry["width"]), int(entry["groups"]), str(entry["kind"]), float(entry["level"]))
    if not (0.0 <= interval.width < np.inf and interval.groups >= 0 and 0.0 < interval.level < 1.0):
        raise ValueError(f"an interval is {dict(entry)!r:.80}")
    return interval


def unknown_interval(kind: str) -> Interval:
    """Return the analytical model's interval, for models without held-out groups of this kind."""
    return Interval(_PRIOR, 0, kind)


def groups_needed(level: float = LEVEL) -> int:
    """Return the minimum number of held-out groups for an interval that ignores the analytical model's."""
    return math.ceil(round(level / (1.0 - level), 9))


def calibrate(
    residual: Array, group: Array, kind: str, distance: Array | float = 0.0, level: float = LEVEL
) -> Interval:
    """Calibrate an interval on held-out residuals.

    Args:
        residual: log(measured / predicted), (N,).
        group: Number of each row's group, (N,).
        kind: Kind of the groups: `problem`, `GPU` or `kernel`.
        distance: Distance of each row from the training data, (N,).
        level: Coverage of the interval.
    """
    numbers, place, rows = np.unique(group, return_inverse=True, return_counts=True)
    if not len(numbers):
        return unknown_interval(kind)
    score = _near_width(np.abs(residual), np.asarray(distance))
    ascending = np.argsort(score, kind="stable")
    total = max(len(numbers), groups_needed(level)) + 1.0
    share = np.cumsum((1.0 / rows)[place][ascending]) / total
    width = _quantile(score[ascending], share, 1.0 - len(numbers) / total, level)
    return Interval(width, len(numbers), kind, level)


def _prior_share(distance: Array) -> Array:
    """Return the share of the analytical model's error to add at a distance: 0 at distance 0, 1/2 at distance 1."""
    squared = distance * distance
    return np.asarray(squared / (1.0 + squared))


def _near_width(error: Array, distance: Array) -> Array:
    """Return the smallest width whose interval at this distance covers an absolute log error, at least 0."""
    s = _prior_share(distance)
    # This is the root of (1 - s) w + s hypot(w, p) = error, in a form that is never 0 / 0.
    beyond = np.maximum(error * error - (s * _PRIOR) ** 2, 0.0)
    inside = np.maximum(error * error + (1.0 - 2.0 * s) * _PRIOR**2, 0.0)
    return np.asarray(beyond / np.maximum(error * (1.0 - s) + s * np.sqrt(inside), 1e-12))


def _quantile(score: Array, share: Array, prior_weight: float, level: float) -> float:
    """Return the width w for which share(w) + prior_weight * P(analytical model's log error < w) reaches `level`.

    Args:
        score: Smallest width that covers each row, ascending, (N,).
        share: Cumulative weight of the rows up to each score, (N,).
        prior_weight: Weight of the missing groups, which have the analytical model's errors.
        level: Coverage to reach.
    """

    def covered(width: float) -> float:
        rows = int(np.searchsorted(score, width, side="right"))
        observed = share[rows - 1] if rows else 0.0
        return observed + prior_weight * math.erf(width / (_DEVIATION * math.sqrt(2.0)))

    low, high = 0.0, max(float(score[-1]), 8.0 * _DEVIATION)
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if covered(middle) >= level else (middle, high)
    return high
