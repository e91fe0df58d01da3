"""Compute the widths of 90 % intervals from the errors of kernels, and the coverage of held-out errors.

An error consists of a part that all configs of a kernel on a GPU share and an individual part. So all kernels, and all
GPUs of a kernel, have equal weights. One imaginary kernel has errors of the size that was assumed before there were
recordings: a 90 % interval of `INTERVAL`, of which the fraction `OWN` is individual (hierarchical conformal prediction,
as in `kernrec.model.learn.conformal`). All bottlenecks share one width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Errors:
    """Logarithmic errors of N rows, with kernel, GPU and problem. Arrays are (N,)."""

    kernel: Array
    gpu: Array
    problem: Array
    error: Array

    @classmethod
    def of_cases(cls, cases: Cases, error: Array) -> "Errors":
        """Create errors from cases, with the kernel, GPU and problem of each case."""
        return cls(cases.kernel, cases.gpu, cases.problem, error)

    def take(self, rows: Array) -> "Errors":
        """Return the errors of some rows."""
        return Errors(*(column[rows] for column in (self.kernel, self.gpu, self.problem, self.error)))

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return len(set(self.kernel.tolist()))

    def scores(self, pairs: bool) -> tuple[Array, Array]:
        """Return (errors in ascending order, weights), or differences between two configs of a problem on a GPU if
        `pairs`."""
        score, weight = self._pairs() if pairs else (self.error, self._weights(np.ones(len(self.error), dtype=bool)))
        order = np.argsort(score, kind="stable")
        return score[order], weight[order]

    def _pairs(self) -> tuple[Array, Array]:
        apart, weights, counted = [np.zeros(0)], [np.zeros(0)], np.zeros(len(self.error), dtype=bool)
        groups = [group for group in self._groups() if len(group) > 1]
        for group in groups:
            counted[group] = True
        weight = self._weights(counted)
        for group in groups:
            first, second = np.triu_indices(len(group), 1)
            apart.append(self.error[group][first] - self.error[group][second])
            weights.append(np.full(len(first), weight[group].sum() / len(first)))
        return np.concatenate(apart), np.concatenate(weights)

    def _weights(self, counted: Array) -> Array:
        """Return the weight of each row, (N,). All kernels, all GPUs of a kernel and all rows of a GPU have equal
        weights. Rows outside the mask `counted` have weight 0."""
        weight = np.zeros(len(self.error))
        for kernel in set(self.kernel.tolist()):
            rows = (self.kernel == kernel) & counted
            _, place, counts = np.unique(self.gpu[rows].astype(str), return_inverse=True, return_counts=True)
            weight[rows] = 1.0 / (len(counts) * counts[place]) if len(counts) else 0.0
        return weight

    def _groups(self) -> Iterator[Array]:
        keys = ["\n".join(map(str, key)) for key in zip(self.kernel, self.gpu, self.problem, strict=True)]
        _, number = np.unique(keys, return_inverse=True)
        order = np.argsort(number, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


Parts = Sequence[Errors]
"""Independent parts of an error."""


def covered(parts: Parts, pairs: bool, width: float) -> float:
    """Return the fraction of errors inside a logarithmic half-width, or NaN if there are no errors. If `pairs`, count
    the differences of two errors."""
    inside, weight = _inside([part.scores(pairs) for part in parts], width)
    return inside / weight if weight > 0.0 else float("nan")


def half_width(parts: Parts, pairs: bool) -> float:
    """Return the logarithmic half-width of the 90 % interval of errors or, if `pairs`, of differences of two."""
    sides, more = [part.scores(pairs) for part in parts], 1.0 / (min(part.kernels for part in parts) + 1)
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
