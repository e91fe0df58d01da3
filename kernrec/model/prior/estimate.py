"""Estimate of one quantity: its expected value, its 90 % interval and its source."""

import math
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kernrec.util.light_dataclass import dataclass


class Source(StrEnum):
    """Source of a number, least certain first."""

    PRIOR = "predicted"
    TRANSFERRED = "transferred"
    LEARNED = "learned"
    MEASURED = "measured"


SOURCES = tuple(Source)
"""Sources in order; arrays of sources contain indices into this tuple."""


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

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate multiplied by a factor."""
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)

    @property
    def transferred(self) -> bool:
        """Return whether the estimate comes from other GPUs."""
        return self.source == Source.TRANSFERRED

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
