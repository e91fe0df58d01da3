"""Region of feature space that training data covers, and the distance of candidates from this region."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

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
