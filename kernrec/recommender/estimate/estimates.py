"""One quantity of each candidate: its expected value, how sure that is, and where it comes from."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from kernrec.util.light_property import cached_property

Array = np.ndarray


class Source(StrEnum):
    """Where a number comes from, the least sure source first."""

    PRIOR = "predicted"
    LEARNED = "learned"
    MEASURED = "measured"


SOURCES = tuple(Source)
"""Arrays of sources hold positions in this tuple."""
PRIOR, LEARNED, MEASURED = range(3)

OWN = 0.35
"""Share of a prediction's variance that is the config's own, where no more is known: of the prior's times and energies
`kernrec.model.prior.spread` has both parts. On recorded convolution spaces of three GPUs, five
measurements that fixed the scale cut a transferred model's error from 44 / 16 / 30 % to 26 / 10 / 7 %: to 0.59, the
median of the three, and so its variance to 0.35."""


class Kinds(NamedTuple):
    """Intervals and sources of K kinds of estimates; arrays (K,)."""

    below: Array
    """The factor from the lower end of the 90 % interval to the value."""
    above: Array
    """The factor from the value to its upper end."""
    source: Array
    """Positions in `SOURCES`, int8."""
    own: Array
    """Logarithmic half-width of the interval of each config's own error, which counts against other configs of the
    kernel on the problem. The rest of the interval is common to them."""

    @classmethod
    def even(cls, factors: Array, source: int, own: Array) -> "Kinds":
        """Return kinds of one source whose intervals reach as far to either side."""
        sources = np.empty(len(factors), dtype=np.int8)
        sources.fill(source)
        return cls(factors, factors, sources, own)

    def and_also(self, more: "Kinds") -> "Kinds":
        """Return these kinds, and after them others."""
        return Kinds(*map(np.concatenate, zip(self, more, strict=True)))


class Estimates:
    """One quantity of C candidates with its 90 % interval, in SI units; arrays (C,) or (points, C).

    An answer shows a few candidates, so arrays of intervals and sources are made only when they are read.
    """

    def __init__(self, value: Array, kind: Array, kinds: Kinds) -> None:
        self.value = value
        self.kind = kind
        """Positions in `kinds`, as any numbers, in the shape of `value`."""
        self.kinds = kinds

    @classmethod
    def of(cls, value: Array, low: Array, high: Array, source: Array, own: Array) -> "Estimates":
        """Return estimates from arrays (C,), each candidate of a kind of its own."""
        return cls(value, np.arange(len(value)), Kinds(value / low, high / value, source, own))

    @cached_property
    def _numbers(self) -> Array:
        return self.kind.astype(np.int64)

    @cached_property
    def low(self) -> Array:
        """Lower ends of the intervals."""
        return np.asarray(self.value / self.kinds.below.take(self._numbers))

    @cached_property
    def high(self) -> Array:
        """Upper ends of the intervals."""
        return np.asarray(self.value * self.kinds.above.take(self._numbers))

    @property
    def source(self) -> Array:
        """Positions in `SOURCES`, int8."""
        return self.by_kind(self.kinds.source)

    @property
    def own(self) -> Array:
        """Logarithmic half-widths of the intervals of the configs' own errors."""
        return self.by_kind(self.kinds.own)

    @property
    def has_learned(self) -> bool:
        """Whether a model predicted some of them."""
        return bool((self.kinds.source == LEARNED).any())

    def by_kind(self, values: Array) -> Array:
        """Return the value of each candidate's kind, in the shape of `value`."""
        return values.take(self._numbers)

    def item(self, place: tuple[int, ...]) -> tuple[float, float, float, int, float]:
        """Return value, low, high, source and own error of one candidate, at one operating point."""
        value, number, kinds = self.value.item(place), int(self.kind.item(place)), self.kinds
        low, high = value / kinds.below.item(number), value * kinds.above.item(number)
        return value, low, high, kinds.source.item(number), kinds.own.item(number)

    def at(self, point: int | slice) -> "Estimates":
        """Select one operating point, or some of them."""
        return Estimates(self.value[point], self.kind[point], self.kinds)

    def part(self, part: slice) -> "Estimates":
        """Select some of the candidates."""
        return Estimates(self.value[..., part], self.kind[..., part], self.kinds)

    @classmethod
    def stacked(cls, points: Sequence["Estimates"]) -> "Estimates":
        """Return the table of several operating points from the estimates at each."""
        kinds, numbers = points[0].kinds, [points[0].kind]
        for estimates in points[1:]:
            numbers.append(estimates.kind + len(kinds.own))
            kinds = kinds.and_also(estimates.kinds)
        return cls(np.stack([estimates.value for estimates in points]), np.stack(numbers), kinds)

    def scaled(self, factor: Array | float) -> "Estimates":
        """Return values and intervals multiplied by a factor, from the same sources."""
        return Estimates(self.value * factor, self.kind, self.kinds)

    def raised(self, factor: float, wide: float) -> "Estimates":
        """Return values multiplied by `factor`, within a factor of `wide`; no upper end is lowered.

        The configs' own errors are no larger than their share of that.
        """
        below, above, source, own = self.kinds
        own = np.minimum(own, math.sqrt(OWN) * math.log(wide))
        kinds = Kinds(np.full(len(below), wide), np.maximum(above / factor, wide), source, own)
        return Estimates(self.value * factor, self.kind, kinds)

    def narrowed(self, factor: float, common: float) -> "Estimates":
        """Return values multiplied by `factor`, with this share of the variance that errors have in common."""
        below, above, source, own = self.kinds

        def width(whole: Array) -> Array:
            return np.asarray(np.exp(np.sqrt(own * own + common * np.maximum(whole * whole - own * own, 0.0))))

        kinds = Kinds(width(np.log(below)), width(np.log(above)), source, own)
        return Estimates(self.value * factor, self.kind, kinds)

    def replaced(self, positions: Array, value: Array, kinds: Kinds) -> "Estimates":
        """Return a copy with other values at some positions of C, each of the kind at the same place in `kinds`."""
        values, kind = self.value.copy(), self.kind.copy()
        values[..., positions] = value
        kind[..., positions] = np.arange(float(len(positions))) + len(self.kinds.own)
        return Estimates(values, kind, self.kinds.and_also(kinds))

    def learned(self, factor: Array, positions: Array, half_widths: Array) -> "Estimates":
        """Return values multiplied by what a model corrects them by, with its intervals at some positions.

        Args:
            factor: in the shape of `value`.
            positions: of the candidates that the model was asked about, ascending, (N,).
            half_widths: the logarithms of the factors of their 90 % intervals to either side, (N,).
        """
        value, kinds = self.value * factor, Kinds.even(np.exp(half_widths), LEARNED, math.sqrt(OWN) * half_widths)
        if len(positions) < value.shape[-1]:
            return Estimates(value, self.kind, self.kinds).replaced(positions, value[..., positions], kinds)
        return Estimates(value, np.broadcast_to(np.arange(float(len(positions))), value.shape), kinds)
