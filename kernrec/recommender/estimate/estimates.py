"""Estimates of one quantity for each candidate: expected value, interval and source."""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np

from kernrec.model.prior.estimate import SOURCES as SOURCES
from kernrec.model.prior.estimate import Estimate as Estimate
from kernrec.model.prior.estimate import Source as Source

Array = np.ndarray


PRIOR, TRANSFERRED, LEARNED, MEASURED = range(4)

OWN = 0.35
"""Default fraction of a prediction's variance due to the config's own error. For times and energies of the analytical
model, `kernrec.model.prior.spread` states both parts. On recorded convolution spaces of three GPUs, scaling to five
measurements reduced a transferred model's error from 44 / 16 / 30 % to 26 / 10 / 7 %. The median ratio is 0.59, so the
variance falls to 0.35."""


def kinds_of(below: Array | float, above: Array | float, source: Array | int, own: Array) -> Array:
    """Return the intervals and sources of K kinds of estimates, one row per argument, (4, K).

    Args:
        below: factor from the lower end of the 90 % interval to the value.
        above: factor from the value to the upper end of the 90 % interval.
        source: indices into `SOURCES`.
        own: logarithmic half-width of the interval of each config's own error, for comparisons within a kernel and
            problem. These configs share the rest of the error. (K,).
    """
    kinds = np.empty((4, len(own)))
    kinds[_BELOW], kinds[_ABOVE], kinds[_SOURCE], kinds[_OWN_ERROR] = below, above, source, own
    return kinds


_BELOW, _ABOVE, _SOURCE, _OWN_ERROR = range(4)


class Estimates:
    """One quantity of C candidates with its 90 % interval, in SI units; arrays (C,) or (points, C).

    An answer shows few candidates, so arrays of intervals and sources are built only on access.
    """

    def __init__(self, value: Array, kind: Array, kinds: Array) -> None:
        self.value = value
        self.kind = kind
        """Column of `kinds` for each estimate, of any numeric type, in the shape of `value`."""
        self.kinds = kinds
        """Intervals and sources as from `kinds_of`, (4, K)."""

    @classmethod
    def of(cls, value: Array, low: Array, high: Array, source: Array, own: Array) -> "Estimates":
        """Return estimates from arrays (C,), with one kind per candidate."""
        return cls(value, np.arange(len(value)), kinds_of(value / low, high / value, source, own))

    @cached_property
    def _numbers(self) -> Array:
        return self.kind.astype(np.int64)

    @cached_property
    def low(self) -> Array:
        """Lower ends of the intervals."""
        return np.asarray(self.value / self.by_kind(_BELOW))

    @cached_property
    def high(self) -> Array:
        """Upper ends of the intervals."""
        return np.asarray(self.value * self.by_kind(_ABOVE))

    @property
    def source(self) -> Array:
        """Indices into `SOURCES`, int8."""
        return self.for_each(self.kinds[_SOURCE].astype(np.int8))

    @property
    def own(self) -> Array:
        """Logarithmic half-widths of the intervals of the configs' own errors."""
        return self.by_kind(_OWN_ERROR)

    def by_kind(self, row: int) -> Array:
        """Return a row of `kinds` for each candidate, in the shape of `value`."""
        return self.for_each(self.kinds[row])

    def for_each(self, values: Array) -> Array:
        """Map an array with one value per kind to an array with one value per candidate, in the shape of `value`."""
        return np.asarray(values.take(self._numbers))

    def item(self, place: tuple[int, ...]) -> Estimate:
        """Return the estimate of one candidate at one operating point."""
        value = self.value.item(place)
        below, above, source, own = self.kinds[:, int(self.kind.item(place))].tolist()
        return Estimate(value, value / below, value * above, SOURCES[int(source)], own)

    def items(self, places: tuple[Sequence[int], ...]) -> list[Estimate]:
        """Return the estimates of several candidates; each is given by an index for each axis of `value`."""
        columns = self.kinds.T[self.kind[places].astype(np.int64)].tolist()
        return [
            Estimate(value, value / below, value * above, SOURCES[int(source)], own)
            for value, (below, above, source, own) in zip(self.value[places].tolist(), columns, strict=True)
        ]

    def at(self, point: int | slice) -> "Estimates":
        """Select one or more operating points."""
        return Estimates(self.value[point], self.kind[point], self.kinds)

    def part(self, part: slice) -> "Estimates":
        """Select some of the candidates."""
        return Estimates(self.value[..., part], self.kind[..., part], self.kinds)

    @classmethod
    def stacked(cls, points: Sequence["Estimates"]) -> "Estimates":
        """Return one table from the estimates at several operating points."""
        firsts = accumulate((estimates.kinds.shape[1] for estimates in points), initial=0)
        kind = np.stack([estimates.kind + first for estimates, first in zip(points, firsts, strict=False)])
        kinds = np.concatenate([estimates.kinds for estimates in points], 1)
        return cls(np.stack([estimates.value for estimates in points]), kind, kinds)

    def with_parts(self, parts: Sequence[tuple[slice, "Estimates"]]) -> "Estimates":
        """Return a copy in which some candidates have other estimates."""
        value, kind, tables, count = self.value.copy(), self.kind.copy(), [self.kinds], self.kinds.shape[1]
        for part, estimates in parts:
            value[..., part] = estimates.value
            kind[..., part] = estimates.kind + count
            tables.append(estimates.kinds)
            count += estimates.kinds.shape[1]
        return Estimates(value, kind, np.concatenate(tables, 1))

    def gathered(self, parts: Sequence[slice]) -> "Estimates":
        """Return the estimates of several parts of the candidates, concatenated."""
        value, kind = (np.concatenate([table[..., part] for part in parts], -1) for table in (self.value, self.kind))
        return Estimates(value, kind, self.kinds)

    def scaled(self, factor: Array | float) -> "Estimates":
        """Return a copy with values and intervals multiplied by a factor, and unchanged sources."""
        return Estimates(self.value * factor, self.kind, self.kinds)

    def raised(self, factor: float, wide: float) -> "Estimates":
        """Return a copy with values multiplied by `factor` and intervals of a factor `wide`; upper ends never decrease.

        The configs' own errors are limited to their fraction of `wide`.
        """
        _, above, source, own = self.kinds
        own = np.minimum(own, math.sqrt(OWN) * math.log(wide))
        kinds = kinds_of(wide, np.maximum(above / factor, wide), source, own)
        return Estimates(self.value * factor, self.kind, kinds)

    def narrowed(self, factor: float, common: float) -> "Estimates":
        """Return a copy with values multiplied by `factor`, and the shared error's variance by `common`."""
        below, above, source, own = self.kinds

        def width(whole: Array) -> Array:
            return np.asarray(np.exp(np.sqrt(own * own + common * np.maximum(whole * whole - own * own, 0.0))))

        kinds = kinds_of(width(np.log(below)), width(np.log(above)), source, own)
        return Estimates(self.value * factor, self.kind, kinds)

    def replaced(self, positions: Array, value: Array, kinds: Array) -> "Estimates":
        """Return a copy with other values at some positions of C, and with intervals from these columns of `kinds`."""
        values, kind = self.value.copy(), self.kind.copy()
        values[..., positions] = value
        kind[..., positions] = np.arange(len(positions)) + self.kinds.shape[1]
        return Estimates(values, kind, np.concatenate((self.kinds, kinds), 1))

    def learned(self, factor: Array, positions: Array, half_widths: Array, source: int) -> "Estimates":
        """Return a copy with values multiplied by a model's correction, with the model's intervals at some positions.

        Args:
            factor: correction in the shape of `value`.
            positions: candidates that the model evaluated, ascending, (N,).
            half_widths: logarithmic half-widths of their 90 % intervals, (N,).
            source: `LEARNED` or `TRANSFERRED`.
        """
        value, factors = self.value * factor, np.exp(half_widths)
        kinds = kinds_of(factors, factors, source, math.sqrt(OWN) * half_widths)
        if len(positions) < value.shape[-1]:
            return Estimates(value, self.kind, self.kinds).replaced(positions, value[..., positions], kinds)
        kind = np.empty(value.shape)
        kind[:] = np.arange(len(positions))
        return Estimates(value, kind, kinds)
