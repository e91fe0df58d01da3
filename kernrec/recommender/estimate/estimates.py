"""Estimates of one quantity for each candidate: expected value, interval and source."""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


class Source(StrEnum):
    """Source of a number, least certain first."""

    PRIOR = "predicted"
    TRANSFERRED = "transferred"
    LEARNED = "learned"
    MEASURED = "measured"


SOURCES = tuple(Source)
"""Sources in order; arrays of sources contain indices into this tuple."""
PRIOR, TRANSFERRED, LEARNED, MEASURED = range(4)

OWN = 0.35
"""Default fraction of a prediction's variance due to the config's own error. For times and energies of the analytical
model, `kernrec.model.prior.spread` states both parts. On recorded convolution spaces of three GPUs, scaling to five
measurements reduced a transferred model's error from 44 / 16 / 30 % to 26 / 10 / 7 %. The median ratio is 0.59, so the
variance falls to 0.35."""


@dataclass(frozen=True)
class Estimate(float):
    """One quantity in SI units with its 90 % interval; used as a number, the estimate equals `value`."""

    value: float
    low: float
    high: float
    source: str
    """A `Source`; for a baseline `published`, `learned`, `transferred` or `predicted`."""
    own: float | None = None
    """Logarithmic half-width of the 90 % interval of the config's own error. It excludes the error that all configs of
    the kernel share on this problem and GPU. None if the two parts are not known separately."""

    __hash__ = float.__hash__
    __ne__ = object.__ne__  # Without it, float's `__ne__` would contradict this class's `__eq__`.
    if not TYPE_CHECKING:
        __init__ = object.__init__  # `__new__` already sets the fields, in one call.

        def __new__(cls, value: float, low: float, high: float, source: str, own: float | None = None) -> "Estimate":
            self = float.__new__(cls, value)
            self.__dict__.update(value=value, low=low, high=high, source=source, own=own)
            return self

        def __getnewargs__(self) -> tuple[float, float, float, str, float | None]:
            return self.value, self.low, self.high, self.source, self.own

    @property
    def own_interval(self) -> tuple[float, float]:
        """Interval of the config's own error, for comparisons with other configs of the kernel on the problem."""
        if self.own is None:
            return self.low, self.high
        factor = math.exp(self.own)
        return self.value / factor, self.value * factor

    def as_dict(self, quantity: str, unit: str) -> dict[str, float | list[float]]:
        """Return the value and its intervals, such as `latency_s`, `latency_interval_s`, `latency_own_interval_s`."""
        whole: dict[str, float | list[float]] = {
            f"{quantity}_{unit}": self.value,
            f"{quantity}_interval_{unit}": [self.low, self.high],
        }
        if self.own is not None:
            whole[f"{quantity}_own_interval_{unit}"] = [*self.own_interval]
        return whole


def kinds_of(below: Array | float, above: Array | float, source: Array | int, own: Array) -> Array:
    """Return the intervals and sources of K kinds of estimates, one row per argument, (4, K), or (2, 4, K).

    Args:
        below: factor from the lower end of the 90 % interval to the value.
        above: factor from the value to the upper end of the 90 % interval.
        source: indices into `SOURCES`.
        own: logarithmic half-width of the interval of each config's own error, for comparisons within a kernel and
            problem. These configs share the rest of the error. (K,), or (2, K) for two quantities.
    """
    kinds = np.empty((*own.shape[:-1], 4, own.shape[-1]))
    for row, values in enumerate((below, above, source, own)):
        kinds[..., row, :] = values
    return kinds


_BELOW, _ABOVE, _SOURCE, _OWN_ERROR = range(4)


class Estimates:
    """One quantity of C candidates with its 90 % interval, in SI units; arrays (C,) or (points, C). See `costs.Costs`.

    An answer shows few candidates, so arrays of intervals and sources are built only on access.
    """

    def __init__(self, value: Array, kind: Array, kinds: Array) -> None:
        self.value = value
        self.kind = kind
        """Column of `kinds` for each estimate, of any numeric type, in the shape of `value`."""
        self.kinds = kinds
        """Intervals and sources as from `kinds_of`, (4, K)."""

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
