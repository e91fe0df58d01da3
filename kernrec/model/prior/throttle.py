"""Clocks and voltages, and tables of clocks for finding the highest clock within a power limit.

Figures that only depend on the clock (voltage, static power, power of the clock tree) are computed once per table. The
search is in engine/query/power_limit.cpp.
"""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernrec.model.prior.constants import CLOCKS, OVERLAP
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class VoltageCurve:
    """Core voltage by clock: nearly constant below a knee, and increasingly steep above it."""

    knee_hz: float
    steepness: float
    """Weight of the quadratic part of the distance to the knee."""
    slope: float = 1.0
    """Weight of the linear part. With 1, the voltage at the knee begins to rise in proportion to the clock."""
    rise: float = 0.0
    """Relative rise of the voltage, linear in the clock, from a clock near zero to the knee."""

    def over_knee(self, clock_hz: ArrayLike) -> Floats:
        """Return the voltage relative to the knee: with x = clock over knee, `1 + slope * (x - 1) + steepness * (x -
        1)**2` above the knee and `1 - rise * (1 - x)` below it.
        """
        ratio = np.multiply(clock_hz, 1.0 / self.knee_hz)
        above = np.maximum(ratio - 1.0, 0.0)
        below = np.maximum(1.0 - ratio, 0.0)
        return 1.0 + self.slope * above + self.steepness * above * above - self.rise * below


@dataclass(frozen=True, eq=False)
class ClockTable:
    """Table of clocks, with the power at each clock."""

    clock_hz: Floats
    at_clock: Floats
    """Rows: clock over the boost clock, power of board and leakage (W), power of the clock tree at nominal voltage (W),
    square of (core voltage over core voltage at the boost clock).
    """

    @cached_property
    def search(self) -> Floats:
        """Return the figures of the search in rows: (boost clock / clock) ** `OVERLAP`, power without events (W), and
        the squared ratio of the core voltage to the voltage at the boost clock.
        """
        ratio, static_w, tree_w, volts_squared = self.at_clock
        return np.stack([ratio**-OVERLAP, static_w + tree_w * volts_squared, volts_squared])


def clocks_between(lowest: float, highest: float) -> Floats:
    """Return the `CLOCKS` values that bisection can reach, ascending from the lowest."""
    values, width = np.array([lowest]), highest - lowest
    while len(values) < CLOCKS:
        width *= 0.5
        values = np.stack([values, values + width], axis=1).ravel()
    return values
