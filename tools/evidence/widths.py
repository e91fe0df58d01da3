"""Compute the widths of 90 % intervals from the errors of kernels, and the coverage of held-out errors.

An error consists of a part that all configs of a kernel on a GPU share and an individual part. So all kernels, and all
GPUs of a kernel, have equal weights. One imaginary kernel has errors of the size that was assumed before there were
recordings: a 90 % interval of `INTERVAL`, of which the fraction `OWN` is individual (hierarchical conformal prediction,
as in `kernrec.model.learn.conformal`). All bottlenecks share one width.
"""

from collections.abc import Sequence
from math import erf, log, sqrt

import numpy as np

from evidence.cases import Array, Cases
from kernrec.model.analytical.spread import INTERVAL
from kernrec.model.learn.conformal import LEVEL
from kernrec.recommender.estimate.costs import OWN
from kernrec.util.normal import DEVIATIONS

_UNKNOWN = log(INTERVAL) / DEVIATIONS
"""Standard deviation of the logarithmic error that is assumed for a kernel without recordings."""
_MOST, _HALVINGS = float(np.log(8.0)), 40


Parts = Sequence[Cases]
"""Cases with independent parts of an error."""


def _scores(cases: Cases, pairs: bool) -> tuple[Array, Array]:
    """Return (errors in ascending order, weights), or differences between two configs of a problem on a GPU if
    `pairs`."""
    score, weight = _pairs(cases) if pairs else (cases.error, _weights(cases, np.ones(len(cases), dtype=bool)))
    order = np.argsort(score, kind="stable")
    return score[order], weight[order]


def _pairs(cases: Cases) -> tuple[Array, Array]:
    groups = [group for group in cases.rows("kernel", "gpu", "problem").values() if len(group) > 1]
    counted = np.isin(np.arange(len(cases)), np.concatenate([[], *groups]))
    error, weight = cases.error, _weights(cases, counted)
    apart, weights = [np.zeros(0)], [np.zeros(0)]
    for group in groups:
        first, second = np.triu_indices(len(group), 1)
        apart.append(error[group][first] - error[group][second])
        weights.append(np.full(len(first), weight[group].sum() / len(first)))
    return np.concatenate(apart), np.concatenate(weights)


def _weights(cases: Cases, counted: Array) -> Array:
    """Return the weight of each row, (N,). All kernels, all GPUs of a kernel and all rows of a GPU have equal weights.
    Rows outside the mask `counted` have weight 0."""
    weight = np.zeros(len(cases))
    for kernel in set(cases["kernel"].tolist()):
        rows = (cases["kernel"] == kernel) & counted
        _, place, counts = np.unique(cases["gpu"][rows].astype(str), return_inverse=True, return_counts=True)
        weight[rows] = 1.0 / (len(counts) * counts[place]) if len(counts) else 0.0
    return weight


def covered(parts: Parts, pairs: bool, width: float) -> float:
    """Return the fraction of errors inside a logarithmic half-width, or NaN if there are no errors. If `pairs`, count
    the differences of two errors."""
    inside, weight = _inside([_scores(part, pairs) for part in parts], width)
    return inside / weight if weight > 0.0 else float("nan")


def half_width(parts: Parts, pairs: bool) -> float:
    """Return the logarithmic half-width of the 90 % interval of errors or, if `pairs`, of differences of two."""
    sides = [_scores(part, pairs) for part in parts]
    more = 1.0 / (min(len(set(part["kernel"].tolist())) for part in parts) + 1)
    unknown = _UNKNOWN * (sqrt(2.0 * OWN) if pairs else 1.0)
    low, high = 0.0, _MOST
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside, weight = _inside(sides, middle)
        beyond = erf(middle / (unknown * sqrt(2.0)))
        reached = (1.0 - more) * inside / weight + more * beyond if weight > 0.0 else beyond
        low, high = (low, middle) if reached >= LEVEL - 1e-12 else (middle, high)
    return high


def _inside(sides: Sequence[tuple[Array, Array]], width: float) -> tuple[float, float]:
    """Return (weight of the errors within a width, weight of all errors). Two sides are added in all pairs."""
    (first, weight), (second, other) = sides if len(sides) > 1 else (*sides, (np.zeros(1), np.ones(1)))
    below = np.concatenate([[0.0], np.cumsum(other)])
    reached = below[np.searchsorted(second, width - first, side="right")]
    missed = below[np.searchsorted(second, -width - first, side="left")]
    return float(weight @ (reached - missed)), float(weight.sum() * other.sum())
