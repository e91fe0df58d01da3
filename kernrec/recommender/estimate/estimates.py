"""Estimates of one quantity for each candidate: expected value, interval and source."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from kernrec.model.prior.spread import SOURCES, Estimate

Array = np.ndarray


PRIOR, TRANSFERRED, LEARNED, MEASURED = range(4)

OWN = 0.35
"""Default fraction of a prediction's variance due to the config's own error. For times and energies of the analytical
model, `kernrec.model.prior.spread` states both parts. On recorded convolution spaces of three GPUs, scaling to five
measurements reduced a transferred model's error from 44 / 16 / 30 % to 26 / 10 / 7 %. The median ratio is 0.59, so the
variance falls to 0.35."""


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
