"""Widths of 90 % intervals that errors of kernels ask for, and how much of held-out errors they cover.

The error of a prediction has a part common to a kernel on a GPU (its clock, its memory, its compiler) and a part of
its own. So each kernel has the same weight, of it each GPU, and one more kernel is added that is off as before
anything was recorded, by `INTERVAL`, of it `OWN` by itself (hierarchical conformal prediction, as in
`kernrec.model.learn.conformal`). A regime with few kernels has the widths of all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import erf, log, sqrt

import numpy as np

from evidence.cases import Array, Cases
from kernrec.model.learn.conformal import LEVEL, groups_needed
from kernrec.model.prior.spread import INTERVAL, REGIMES
from kernrec.recommender.estimate.estimates import OWN
from kernrec.util.normal import DEVIATIONS

FEWEST = groups_needed(LEVEL)
"""Fewest kernels that a regime needs for widths of its own."""
UNKNOWN = log(INTERVAL) / DEVIATIONS
"""Standard deviation of the errors of a kernel without recordings."""


@dataclass(frozen=True)
class Errors:
    """N logarithmic errors with their kernel, GPU, problem and position of the regime; arrays (N,)."""

    kernel: Array
    gpu: Array
    problem: Array
    regime: Array
    error: Array

    @classmethod
    def of_cases(cls, cases: Cases, error: Array) -> "Errors":
        """Return the errors of cases that have the column `regime`."""
        regime = np.array([REGIMES.index(str(name)) for name in cases.more["regime"]])
        return cls(cases.kernel, cases.gpu, cases.problem, regime, error)

    def take(self, rows: Array) -> "Errors":
        """Return some rows."""
        return Errors(*(column[rows] for column in (self.kernel, self.gpu, self.problem, self.regime, self.error)))

    @property
    def kernels(self) -> int:
        """Number of kernels."""
        return len(set(self.kernel.tolist()))

    def weights(self, counted: Array) -> Array:
        """Return weights by which kernels are equal, in a kernel GPUs, and in a GPU the counted rows.

        With the weight of one more kernel they add up to 1.
        """
        weight, kernels = np.zeros(len(self.error)), 0
        for kernel in set(self.kernel.tolist()):
            rows = (self.kernel == kernel) & counted
            gpus, place, counts = np.unique(self.gpu[rows].astype(str), return_inverse=True, return_counts=True)
            if len(gpus):
                kernels += 1
                weight[rows] = 1.0 / (len(gpus) * counts[place])
        return weight / (kernels + 1)

    def groups(self) -> Iterator[Array]:
        """Yield the rows of each kernel on a problem and GPU."""
        keys = ["\n".join(map(str, key)) for key in zip(self.kernel, self.gpu, self.problem, strict=True)]
        _, number = np.unique(keys, return_inverse=True)
        order = np.argsort(number, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(number[order])) + 1)

    def single(self) -> tuple[Array, Array]:
        """Return (errors, their weights)."""
        return self.error, self.weights(np.ones(len(self.error), dtype=bool))

    def pairs(self) -> tuple[Array, Array]:
        """Return (differences of two errors of a kernel on a problem and GPU, their weights)."""
        apart, weights, paired = [np.zeros(0)], [np.zeros(0)], np.zeros(len(self.error), dtype=bool)
        groups = [group for group in self.groups() if len(group) > 1]
        for group in groups:
            paired[group] = True
        weight = self.weights(paired)
        for group in groups:
            first, second = np.triu_indices(len(group), 1)
            apart.append(self.error[group][first] - self.error[group][second])
            weights.append(np.full(len(first), weight[group].sum() / len(first)))
        return np.concatenate(apart), np.concatenate(weights)

    def time(self) -> float:
        """Return the half-width that covers the errors."""
        return quantile(*self.single(), UNKNOWN)

    def ratio(self) -> float:
        """Return the half-width that covers the differences of two errors."""
        apart, weight = self.pairs()
        return quantile(apart, weight, UNKNOWN * sqrt(2.0 * OWN)) if len(apart) else 0.0

    def by_regime(self, width: Callable[["Errors"], float]) -> Array:
        """Return a width for each regime, (R,)."""
        parts = (self.take(self.regime == number) for number in range(len(REGIMES)))
        return np.array([width(part if part.kernels >= FEWEST else self) for part in parts])

    def inside(self, time: Array, ratio: Array) -> tuple[float, float]:
        """Return the shares of errors and of pairs inside half-widths by regime, (R,) each; NaN without pairs."""
        within, own = [], (ratio / sqrt(2.0))[self.regime]
        for group in self.groups():
            first, second = np.triu_indices(len(group), 1)
            apart = np.abs(self.error[group][first] - self.error[group][second])
            within.append(apart <= np.hypot(own[group][first], own[group][second]))
        pairs = np.concatenate(within)
        return float(np.mean(np.abs(self.error) <= time[self.regime])), float(pairs.mean()) if len(pairs) else np.nan


def normal_share(width: Array, deviation: float) -> Array:
    """Return the share of normal errors of a standard deviation within half-widths."""
    return np.array([erf(value / (deviation * sqrt(2.0))) for value in width.tolist()])


def quantile(error: Array, weight: Array, unknown: float) -> float:
    """Return the least half-width up to which the weight reaches the level; the greatest if it does not.

    The rest of the weights to 1 is that of a kernel with normal errors of the standard deviation `unknown`.
    """
    ascending = np.argsort(np.abs(error), kind="stable")
    width = np.abs(error)[ascending]
    reached = np.cumsum(weight[ascending]) + (1.0 - weight.sum()) * normal_share(width, unknown)
    return float(width[min(int(np.searchsorted(reached, LEVEL - 1e-12)), len(width) - 1)])
