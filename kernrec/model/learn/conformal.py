"""Intervals that hold what they promise: conformal prediction over groups that were held out.

Rows of a problem err together, so rows cannot vouch for one another: what is exchangeable is the problem, and for a
GPU or kernel that nobody measured the GPU or the kernel. Residuals are those of models that did not see the row's
group, nor took their number of trees from it. The factor around a prediction is the quantile of
|log(measured / predicted)| over the pooled groups, each weighing the same, and one more (pooled CDF of hierarchical
conformal prediction: Dunn, Wasserman, Ramdas, "Distribution-free prediction sets for two-layer hierarchical models",
JASA 2022, section 3.2). There the one more errs without bound; here it errs as the prior does, half-normally and beyond
the prior's own interval one time in ten, for with a dozen groups the bound-free one costs a tenth of the width and
covers more than was asked (`tools/bench_training.py`).

A 90 % interval takes 9 groups and the one more. With fewer, all that are missing to that are taken to err as the prior
does: with none it is the prior's interval, and each group that is held out moves it towards what was seen. Such an
interval is `pooled`, holds as far as that assumption does, and answers say so.

An interval widens with distance d, by how far a candidate lies outside of what was trained on. Its logarithmic width is

    w + s (hypot(w, p) - w)        s = d**2 / (1 + d**2), p: of the prior's interval

for far away nothing was learned: the error is the prior's, and what is left of the model's beside it. Residuals are
brought to the w that would just cover them before the quantile is taken (normalised conformal prediction, Papadopoulos
et al., 2008).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernrec.model.prior.launch_time import INTERVAL

Array = np.ndarray

LEVEL = 0.90
NEW_GPU, NEW_KERNEL = "new GPU", "new kernel"
"""Keys of the intervals for a GPU or kernel that was not trained on, beside those of GPUs and `*`, all of them."""
_LEAST_SPREAD = 0.05
_UNIT = 1.0
"""Spread of a feature that did not vary, or less than `_LEAST_SPREAD`: a factor of two, or a whole share."""
_PRIOR = math.log(INTERVAL)
_DEVIATION = _PRIOR / 1.6448536269514722
"""Standard deviation of the prior's log error, of which its 90 % interval is 1.645 to either side."""


@dataclass(frozen=True)
class Interval:
    """A calibrated spread: predictions hold within a factor exp(`width`) at `level`, farther away within a larger one.

    groups: how many held-out groups it stands on, of what `kind` (problem, GPU, kernel).
    """

    width: float
    groups: int
    kind: str
    level: float = LEVEL

    @property
    def pooled(self) -> bool:
        """Whether it rests on the prior's spread too."""
        return self.groups < groups_needed(self.level)

    @property
    def summary(self) -> str:
        """What the interval stands on, in words."""
        if not self.groups:
            return f"the prior's interval: no {self.kind} was held out"
        held_out = f"{self.groups} held-out {self.kind}{'s' * (self.groups != 1)}"
        if not self.pooled:
            return held_out
        return f"{held_out} and the prior's interval (with {groups_needed(self.level)} it would not be needed)"

    def around(self, value: Array, distance: Array | float = 0.0) -> tuple[Array, Array]:
        """(low, high) around predicted values."""
        farther = math.hypot(self.width, _PRIOR) - self.width
        factor = np.exp(self.width + _strange(np.asarray(distance)) * farther)
        return value / factor, value * factor


def unknown_interval(kind: str) -> Interval:
    """The interval where no group of this kind was held out: the prior's."""
    return Interval(_PRIOR, 0, kind)


def groups_needed(level: float = LEVEL) -> int:
    """How many groups must be held out before an interval of this level rests on them alone, but for one more."""
    return math.ceil(round(level / (1.0 - level), 9))


def calibrate(
    residual: Array, group: Array, kind: str, distance: Array | float = 0.0, level: float = LEVEL
) -> Interval:
    """The interval of residuals log(measured / predicted) (N,) in groups numbered `group` (N,)."""
    numbers, place, rows = np.unique(group, return_inverse=True, return_counts=True)
    if not len(numbers):
        return unknown_interval(kind)
    score = _brought_near(np.abs(residual), np.asarray(distance))
    ascending = np.argsort(score, kind="stable")
    whole = max(len(numbers), groups_needed(level)) + 1.0
    share = np.cumsum((1.0 / rows)[place][ascending]) / whole
    return Interval(_reaching(score[ascending], share, 1.0 - len(numbers) / whole, level), len(numbers), kind, level)


def _strange(distance: Array) -> Array:
    """How much of the prior's ignorance holds at a distance: none at 0, half at 1."""
    squared = distance * distance
    return squared / (1.0 + squared)


def _brought_near(error: Array, distance: Array) -> Array:
    """The width whose interval at this distance just reaches an absolute log error; 0 where any does."""
    s = _strange(distance)
    # The root of (1 - s) w + s hypot(w, p) = error, in the form that no s makes 0 / 0.
    beyond = np.maximum(error * error - (s * _PRIOR) ** 2, 0.0)
    inside = np.maximum(error * error + (1.0 - 2.0 * s) * _PRIOR**2, 0.0)
    return beyond / np.maximum(error * (1.0 - s) + s * np.sqrt(inside), 1e-12)


def _reaching(score: Array, share: Array, others: float, level: float) -> float:
    """The width w at which share(w) + others * P(the prior errs by less than w) reaches the level.

    score, share: ascending, (N,): of all groups, what was seen up to each score. others: what was not seen of them.
    """

    def reached(width: float) -> float:
        seen = int(np.searchsorted(score, width, side="right"))
        return (share[seen - 1] if seen else 0.0) + others * math.erf(width / (_DEVIATION * math.sqrt(2.0)))

    low, high = 0.0, max(float(score[-1]), 8.0 * _DEVIATION)
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if reached(middle) >= level else (middle, high)
    return high


@dataclass(frozen=True)
class Extent:
    """Where in feature space training happened: the 1st and 99th percentile of each feature and its spread; (F,).

    part: the number of each feature's group.
    """

    low: Array
    high: Array
    spread: Array
    part: Array

    @classmethod
    def of(cls, matrix: Array, part: Array | None = None) -> "Extent":
        """The extent of a training matrix (N, F); a feature that was never known has none."""
        with np.errstate(all="ignore"):
            known = np.isfinite(matrix)
            filled = np.where(known, matrix, np.nan).astype(np.float64)
            some = known.any(axis=0)
            low, high, spread = (np.zeros(matrix.shape[1]) for _ in range(3))
            if some.any():
                low[some], high[some] = np.nanpercentile(filled[:, some], [1, 99], axis=0)
                spread[some] = np.nanstd(filled[:, some], axis=0)
        part = np.zeros(matrix.shape[1], dtype=np.int64) if part is None else part
        spread = np.where(spread > _LEAST_SPREAD, spread, _UNIT)
        return cls(low, high, np.where(some, spread, np.inf), part)

    def distance(self, matrix: Array) -> Array:
        """How far rows (C, F) lie outside, (C,): half the logarithm of 1 + r, of which each doubling adds as much.

        r is in standard deviations of each feature, root mean square over a group of features, of the group where that
        is most: a shape that is new in size alone is far in few features.
        """
        outside = np.maximum(np.maximum(self.low - matrix, matrix - self.high), 0.0) / self.spread
        outside = np.where(np.isfinite(outside), np.minimum(outside, 10.0), 0.0)
        outside *= outside
        return 0.5 * np.log1p(np.sqrt((outside @ self._mean).max(axis=1)))

    @cached_property
    def _mean(self) -> Array:
        """What takes the mean over each group of features, (F, groups)."""
        members = self.part[:, None] == np.unique(self.part)
        return members / members.sum(axis=0)
