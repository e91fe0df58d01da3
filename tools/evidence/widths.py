"""Compute the widths of 90 % intervals from the errors of kernels, and the coverage of held-out errors.

An error consists of a part that all configs of a kernel on a GPU share and an individual part. So all kernels, and all
GPUs of a kernel, have equal weights. One imaginary kernel has errors of the size that was assumed before there were
recordings: a 90 % interval of `INTERVAL`, of which the fraction `OWN` is individual (hierarchical conformal prediction,
as in `kernrec.model.learn.conformal`). Regimes with too few kernels share one width.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import erf, log, sqrt

import numpy as np

from evidence.cases import Array, Cases
from kernrec.model.analytical.spread import INTERVAL, REGIMES
from kernrec.model.learn.conformal import LEVEL, groups_needed
from kernrec.recommender.estimate.costs import OWN
from kernrec.util.normal import DEVIATIONS

FEWEST = groups_needed(LEVEL)
"""Minimum number of kernels in a regime that has its own widths."""
_UNKNOWN = log(INTERVAL) / DEVIATIONS
"""Standard deviation of the logarithmic error that is assumed for a kernel without recordings."""
_MOST, _HALVINGS = float(np.log(8.0)), 40


Parts = Sequence[Cases]
"""Independent parts of an error, as cases of `with_error`. The first part determines the regime."""


def with_error(cases: Cases, error: Array) -> Cases:
    """Return cases with the column `log_error`. If they have no column `regime`, all belong to the first regime."""
    regime = cases.more.get("regime", np.full(len(cases), REGIMES[0], dtype=object))
    return replace(cases, more={**cases.more, "log_error": error, "regime": regime})


def kernels(cases: Cases) -> int:
    """Return the number of kernels."""
    return len(set(cases.kernel.tolist()))


def _scores(cases: Cases, pairs: bool) -> tuple[Array, Array]:
    """Return (errors in ascending order, weights), or differences between two configs of a problem on a GPU if
    `pairs`."""
    score, weight = _pairs(cases) if pairs else (cases.more["log_error"], _weights(cases, np.ones(len(cases), bool)))
    order = np.argsort(score, kind="stable")
    return score[order], weight[order]


def _pairs(cases: Cases) -> tuple[Array, Array]:
    keys = ["\n".join(map(str, key)) for key in zip(cases.kernel, cases.gpu, cases.problem, strict=True)]
    _, number = np.unique(keys, return_inverse=True)
    order = np.argsort(number, kind="stable")
    groups = [g for g in np.split(order, np.flatnonzero(np.diff(number[order])) + 1) if len(g) > 1]
    apart, weights, counted = [np.zeros(0)], [np.zeros(0)], np.zeros(len(cases), dtype=bool)
    counted[np.concatenate([order[:0], *groups])] = True
    error, weight = cases.more["log_error"], _weights(cases, counted)
    for group in groups:
        first, second = np.triu_indices(len(group), 1)
        apart.append(error[group][first] - error[group][second])
        weights.append(np.full(len(first), weight[group].sum() / len(first)))
    return np.concatenate(apart), np.concatenate(weights)


def _weights(cases: Cases, counted: Array) -> Array:
    """Return the weight of each row, (N,). All kernels, all GPUs of a kernel and all rows of a GPU have equal weights.
    Rows outside the mask `counted` have weight 0."""
    weight = np.zeros(len(cases))
    for kernel in set(cases.kernel.tolist()):
        rows = (cases.kernel == kernel) & counted
        _, place, counts = np.unique(cases.gpu[rows].astype(str), return_inverse=True, return_counts=True)
        weight[rows] = 1.0 / (len(counts) * counts[place]) if len(counts) else 0.0
    return weight


def by_regime(parts: Parts, pairs: bool) -> Array:
    """Return the logarithmic half-width for each of R regimes, (R,), of errors or, if `pairs`, of differences of
    two."""
    first, *others = parts
    of_all = _width(parts, pairs)
    own = [first.take(first.more["regime"] == name) for name in REGIMES]
    return np.array([_width([part, *others], pairs) if kernels(part) >= FEWEST else of_all for part in own])


def covered(parts: Parts, pairs: bool, widths: Array) -> float:
    """Return the fraction of errors inside the half-widths of their regimes, or NaN if there are no errors. If `pairs`,
    count the differences of two errors."""
    first, *others = parts
    shares = weights = 0.0
    for name, width in zip(REGIMES, widths.tolist(), strict=True):
        own = first.take(first.more["regime"] == name)
        inside, weight = _inside([_scores(part, pairs) for part in (own, *others)], width)
        if weight > 0.0:
            shares += len(own) * inside / weight
            weights += len(own)
    return shares / weights if weights else float("nan")


def _width(parts: Parts, pairs: bool) -> float:
    sides, more = [_scores(part, pairs) for part in parts], 1.0 / (min(map(kernels, parts)) + 1)
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
