"""One quantity of each candidate: its expected value, how sure that is, and where it comes from."""

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

Array = np.ndarray


class Source(StrEnum):
    """Where a number comes from, the least sure source first."""

    PRIOR = "prior"
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


@dataclass(frozen=True, eq=False)
class Estimates:
    """One quantity of C candidates with its 90 % interval, in SI units; every field an array (C,) or (points, C)."""

    value: Array
    low: Array
    high: Array
    source: Array
    """Positions in `SOURCES`, int8."""
    own: Array
    """Logarithmic half-width of the 90 % interval of each config's own error: what counts against other configs of the
    kernel on the problem. The rest of the interval is common to them."""

    def at(self, point: int | slice) -> "Estimates":
        """Those of a table of several operating points at one of them, or at some."""
        return Estimates(*[column[point] for column in self.columns()])

    @classmethod
    def stacked(cls, points: Sequence["Estimates"]) -> "Estimates":
        """The table of several operating points from theirs."""
        return cls(*map(np.stack, zip(*(estimates.columns() for estimates in points), strict=True)))

    def item(self, place: tuple[int, ...]) -> tuple[float, float, float, int, float]:
        """The fields of one candidate, at one operating point, in order."""
        value, low, high, source, own = (column.item(place) for column in self.columns())
        return value, low, high, int(source), own

    def columns(self) -> tuple[Array, Array, Array, Array, Array]:
        """The fields in order."""
        return self.value, self.low, self.high, self.source, self.own

    @property
    def has_learned(self) -> bool:
        """Whether a model predicted some of them."""
        return bool((self.source == LEARNED).any())

    def by_source(self, values: Sequence[float]) -> Array:
        """Of these values, one for each of `SOURCES`, that of the source of each candidate, in the shape of `value`."""
        return np.array(values).take(self.source)

    def part(self, part: slice) -> "Estimates":
        """Those of some of the candidates."""
        return Estimates(*[column[..., part] for column in self.columns()])

    def scaled(self, factor: Array | float) -> "Estimates":
        """Values and intervals multiplied by a factor; the source stays."""
        return Estimates(self.value * factor, self.low * factor, self.high * factor, self.source, self.own)

    def raised(self, factor: float, wide: float) -> "Estimates":
        """Values multiplied by a factor, and then within another one, `wide`; no upper end is lowered.

        The configs' own errors are no larger than their share of that.
        """
        value = self.value * factor
        own = np.minimum(self.own, math.sqrt(OWN) * math.log(wide))
        return Estimates(value, value / wide, np.maximum(self.high, value * wide), self.source, own)

    def narrowed(self, factor: float, common: float) -> "Estimates":
        """Values multiplied by `factor`, and of the variance of the common part of their errors this share."""
        value, own = self.value * factor, self.own * self.own

        def width(whole: Array) -> Array:
            return np.asarray(np.exp(np.sqrt(own + common * np.maximum(whole * whole - own, 0.0))))

        low, high = width(np.log(self.value / self.low)), width(np.log(self.high / self.value))
        return Estimates(value, value / low, value * high, self.source, self.own)


@dataclass(frozen=True, eq=False)
class Kinds:
    """Intervals of K kinds of predictions, by what their errors depend on; arrays (K,)."""

    below: Array
    """The factor from the lower end of the 90 % interval to the value."""
    above: Array
    """The factor from the value to its upper end."""
    source: Array
    """Positions in `SOURCES`, int8."""
    own: Array
    """As `Estimates.own`."""

    @classmethod
    def of(cls, factors: Array, source: int, own: Array) -> "Kinds":
        """Kinds whose intervals reach as far to either side, from one source."""
        sources = np.empty(len(factors), dtype=np.int8)
        sources.fill(source)
        return cls(factors, factors, sources, own)

    def and_also(self, more: "Kinds") -> "Kinds":
        """These, and after them others."""
        return Kinds(*[np.concatenate(both) for both in zip(self.columns(), more.columns(), strict=True)])

    def columns(self) -> tuple[Array, Array, Array, Array]:
        """The fields in order."""
        return self.below, self.above, self.source, self.own


class PredictedEstimates(Estimates):
    """Predictions whose intervals follow from the kind of each.

    An answer asks for those of a few candidates, so arrays of them are made only where somebody asks for them.
    """

    kind: Array
    """Positions in `kinds`, as any numbers, in the shape of `value`."""
    kinds: Kinds

    def __init__(self, value: Array, kind: Array, kinds: Kinds) -> None:
        self.__dict__.update(value=value, kind=kind, kinds=kinds)

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

    @cached_property
    def source(self) -> Array:
        """Where each comes from."""
        return self.kinds.source.take(self._numbers)

    @cached_property
    def own(self) -> Array:
        """Half-widths of the configs' own parts."""
        return self.kinds.own.take(self._numbers)

    @property
    def has_learned(self) -> bool:
        """Whether a model predicted some of them."""
        return bool((self.kinds.source == LEARNED).any())

    def by_source(self, values: Sequence[float]) -> Array:
        """Of these values, one for each of `SOURCES`, that of the source of each candidate, in the shape of `value`."""
        return np.array(values).take(self.kinds.source).take(self._numbers)

    def item(self, place: tuple[int, ...]) -> tuple[float, float, float, int, float]:
        """The fields of one candidate, as the arrays have them."""
        value, number, kinds = self.value.item(place), int(self.kind.item(place)), self.kinds
        low, high = value / kinds.below.item(number), value * kinds.above.item(number)
        return value, low, high, kinds.source.item(number), kinds.own.item(number)

    def at(self, point: int | slice) -> Estimates:
        """Those of a table of several operating points at one of them, or at some."""
        return PredictedEstimates(self.value[point], self.kind[point], self.kinds)

    def part(self, part: slice) -> Estimates:
        """Those of some of the candidates."""
        return PredictedEstimates(self.value[..., part], self.kind[..., part], self.kinds)

    def scaled(self, factor: Array | float) -> "PredictedEstimates":
        """Values and intervals multiplied by a factor; the source stays."""
        return PredictedEstimates(self.value * factor, self.kind, self.kinds)

    def raised(self, factor: float, wide: float) -> Estimates:
        """Values multiplied by a factor, and then within another one, `wide`; no upper end is lowered.

        The configs' own errors are no larger than their share of that.
        """
        below, above, source, own = self.kinds.columns()
        own = np.minimum(own, math.sqrt(OWN) * math.log(wide))
        kinds = Kinds(np.full(len(below), wide), np.maximum(above / factor, wide), source, own)
        return PredictedEstimates(self.value * factor, self.kind, kinds)

    def learned(self, factor: Array, positions: Array, half_widths: Array) -> "PredictedEstimates":
        """Values multiplied by what a model corrects them by, with its intervals and source at some positions.

        Args:
            factor: in the shape of `value`.
            positions: of the candidates that the model was asked about, ascending, (N,).
            half_widths: the logarithms of the factors of their 90 % intervals to either side, (N,).
        """
        kinds = Kinds.of(np.exp(half_widths), LEARNED, math.sqrt(OWN) * half_widths)
        numbers = np.arange(float(len(positions)))
        if len(positions) == self.value.shape[-1]:
            kind = np.empty(self.value.shape)
            kind[...] = numbers
        else:
            kind = self.kind.copy()
            kind[..., positions] = numbers + len(self.kinds.own)
            kinds = self.kinds.and_also(kinds)
        return PredictedEstimates(self.value * factor, kind, kinds)
