"""Estimates with 90 % intervals, and the errors of the analytical model that determine the intervals.

The error of a predicted cost has a common part and an individual part. The common part changes the costs of all configs
of a kernel on a problem by about the same factor. The individual part differs between configs. Intervals of costs
include both parts. Intervals for comparing two configs of a kernel include only the individual parts.

`tools/evidence intervals` computes the widths from published recordings. Few recordings contain energy, so the error of
energy combines two errors: of predicted time, and of the power that is predicted if the time is known.
"""

import math
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kernrec.util.light_dataclass import dataclass

INTERVAL = 2.0
"""Half-width of the default 90 % interval, as a factor: value / 2 to value * 2. `tools/evidence library` derives it
from published measurements."""


@dataclass(frozen=True)
class Spread:
    """Half-widths of 90 % intervals. A factor f means an interval from value / f to value * f."""

    time: float
    ratio: float
    """Half-width for the ratio of two configs' latencies."""
    energy: float
    energy_ratio: float
    """Half-width for the ratio of two configs' energies."""

    @property
    def own(self) -> float:
        """Return the logarithmic half-width of one config's latency error, without the part that all configs share."""
        # A ratio of two configs contains the errors of both.
        return math.log(self.ratio) / math.sqrt(2.0)

    @property
    def own_energy(self) -> float:
        """Return the logarithmic half-width of one config's energy error, without the part that all configs share."""
        return math.log(self.energy_ratio) / math.sqrt(2.0)


SPREAD = Spread(1.43, 1.41, 1.41, 1.44)
"""Half-widths of intervals, from 17 kernels on 9 GPUs. Some recordings do not state their clock, so the half-widths
include the error of an assumed clock. `docs/accuracy/your-kernels.md` states the coverage.

Half-widths of energy also use recorded power of 12 workloads on 14 GPUs, predicted with coefficients fitted to other
GPUs. Half-widths of energy ratios are cautious: they compare workloads, which differ more than configs of one kernel.
"""


class Source(StrEnum):
    """Sources of estimates, in ascending order of certainty."""

    PREDICTED = "predicted"
    TRANSFERRED = "transferred"
    LEARNED = "learned"
    MEASURED = "measured"


SOURCES = tuple(Source)
"""All sources, in ascending order of certainty. Arrays of sources contain indices into this tuple."""


@dataclass(frozen=True)
class Estimate(float):
    """Estimate of one quantity in SI units with a 90 % interval from `low` to `high`. An estimate can be used as a
    float."""

    value: float
    low: float
    high: float
    source: str
    """Source of the estimate: `measured`, `published`, `learned`, `transferred` or `predicted`."""
    own: float | None = None
    """Logarithmic half-width of the interval for comparing configs of one kernel, or None if unknown."""

    __hash__ = float.__hash__
    # Without this line, `!=` would be the inherited `float.__ne__` and contradict this class's `__eq__`.
    __ne__ = object.__ne__
    if not TYPE_CHECKING:
        __init__ = object.__init__  # `__new__` sets all fields.

        def __new__(cls, value: float, low: float, high: float, source: str, own: float | None = None) -> "Estimate":
            self = float.__new__(cls, value)
            fields = self.__dict__  # Separate assignments are faster than `fields.update`.
            fields["value"], fields["low"], fields["high"] = value, low, high
            fields["source"], fields["own"] = source, own
            return self

        def __getnewargs__(self) -> tuple[float, float, float, str, float | None]:
            return self.value, self.low, self.high, self.source, self.own

    def scaled(self, factor: float) -> "Estimate":
        """Return a copy with the value and the interval multiplied by a factor."""
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)

    @property
    def transferred(self) -> bool:
        """Return whether the estimate comes from a model that was trained only on other GPUs."""
        return self.source == Source.TRANSFERRED

    @property
    def own_interval(self) -> tuple[float, float]:
        """Return (low, high) of the interval for comparing configs of the same kernel on the same problem. Return the
        whole interval if the narrower one is unknown."""
        if self.own is None:
            return self.low, self.high
        factor = math.exp(self.own)
        return self.value / factor, self.value * factor

    def as_dict(self, quantity: str, unit: str) -> dict[str, float | list[float]]:
        """Return the value and its intervals as JSON values. The keys contain the quantity and unit, as in
        `latency_s`."""
        whole: dict[str, float | list[float]] = {
            f"{quantity}_{unit}": self.value,
            f"{quantity}_interval_{unit}": [self.low, self.high],
        }
        if self.own is not None:
            whole[f"{quantity}_own_interval_{unit}"] = [*self.own_interval]
        return whole
