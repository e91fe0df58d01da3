"""Estimate of one quantity, and the error of the analytical model's costs that its interval covers.

The error has a common part per kernel and GPU, and an individual part per config. The common part comes from the GPU's
clock and memory, the compiler and the model's errors for a kernel. It changes all configs of the kernel on a problem by
about one factor. The individual part is the rest. So there are two 90 % intervals. The interval of a time covers both
parts. The interval of the ratio of two configs of a kernel on a problem covers only their individual parts.

`tools/evidence intervals` prints the widths for times and energies, from recorded times of other people's kernels. Few
kernels were recorded with their energy, which is power times time. Its error is assumed to be the sum of the effect of
a wrong time, from recorded times, and of the error of power at a recorded time.
"""

import math
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.microarchitecture import CAPPED
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

INTERVAL = 2.0
"""Half-width of the default 90 % interval as a factor: the spread against the anchors (`tools/evidence library`)."""
REGIMES = ("core", "DRAM", "launch", "power limit")
"""Bottlenecks of a launch: core (pipes, caches and latencies), DRAM, launch (start and end), and power limit."""


@dataclass(frozen=True)
class Spread:
    """90 % intervals of a regime, as factors to either side."""

    time: float
    """Interval of a time, with the common error of a kernel on a GPU and the config's individual error."""
    ratio: float
    """Interval of the latency ratio of two configs of one kernel, problem and GPU, with both configs' own errors."""
    energy: float
    """Interval of an energy, like `time`."""
    energy_ratio: float
    """Interval of the energy ratio of two configs, like `ratio`."""

    @property
    def own(self) -> float:
        """Return the logarithmic half-width of a config's own error. The widths of two configs add in quadrature."""
        return math.log(self.ratio) / math.sqrt(2.0)

    @property
    def own_energy(self) -> float:
        """Return the logarithmic half-width of the individual part of an energy."""
        return math.log(self.energy_ratio) / math.sqrt(2.0)


_OF_ALL = Spread(1.50, 1.39, 1.43, 1.44)
SPREADS = (Spread(1.57, 1.43, 1.44, 1.44), _OF_ALL, _OF_ALL, _OF_ALL)
"""Intervals for each of `REGIMES`. Regimes with fewer than nine recorded kernels share the widths of all. The data are
17 kernels on 9 GPUs (convolution, point in polygon, CLBlast's matmul, dedispersion, hotspot, expdist, eight textbook
kernels, Triton's matmul in three kinds of arithmetic), at the clock that a GPU is assumed to hold if none is stated, so
the error includes that of the clock. `docs/accuracy/prior.md` has their coverage on held-out kernels and GPUs.

Energies use the same times, and the power of 12 loads on 14 GPUs by coefficients that have not seen the GPU. Their
ratios are of pairs of loads, which differ more than configs of a kernel do.
"""


@dataclass(frozen=True, eq=False)
class Widths:
    """90 % intervals of a quantity by index in `REGIMES`, (4,)."""

    factors: Array
    """Factors to either side."""
    own: Array
    """Logarithmic half-widths of the configs' individual parts."""


OF_TIME = Widths(
    np.exp(np.array([math.log(spread.time) for spread in SPREADS])), np.array([spread.own for spread in SPREADS])
)
OF_ENERGY = Widths(
    np.exp(np.array([math.log(spread.energy) for spread in SPREADS])),
    np.array([spread.own_energy for spread in SPREADS]),
)


def regime(nominal: NominalCosts, capped: Array) -> Array:
    """Return the index in `REGIMES` of the bottleneck of each of N launches.

    Args:
        nominal: Costs before any power limit, (N,).
        capped: Whether the power limit lowers the clock, (N,), or (points, N) at several operating points.

    Returns:
        Array in the shape of `capped`.
    """
    core_s, dram_s, fixed_s = nominal.core_s, nominal.dram_s, nominal.fixed_s
    bound = np.where(fixed_s > np.maximum(core_s, dram_s), 2, np.where(dram_s > core_s, 1, 0))
    return np.where(capped, int(CAPPED), bound).astype(np.int64)


class Source(StrEnum):
    """Source of a number, least certain first."""

    PREDICTED = "predicted"
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
