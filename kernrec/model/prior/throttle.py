"""Clocks, the voltage they need, and the tables of clocks in which that is searched at which a launch stays within a
power limit.

Figures of a clock alone (voltage, static power, power of the clock tree) are computed once for a table. The search is
in engine/query/power_limit.cpp.
"""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernrec.model.prior.constants import CLOCKS, OVERLAP
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class VoltageCurve:
    """The core voltage that a clock needs: above a knee it rises with the clock, the faster the higher, below it slowly
    or not at all."""

    knee_hz: float
    steepness: float
    """Weight of the part that is quadratic in the distance to the knee."""
    slope: float = 1.0
    """Weight of the part that is linear in it: 1 where the voltage at the knee begins to rise in proportion to the
    clock."""
    rise: float = 0.0
    """Share by which the voltage at the knee is above that at a clock near zero; a straight line between them."""

    def over_knee(self, clock_hz: ArrayLike) -> Floats:
        """Voltage over that at the knee: with x = clock over knee, `1 + slope * (x - 1) + steepness * (x - 1)**2`
        above the knee and `1 - rise * (1 - x)` below it."""
        ratio = np.multiply(clock_hz, 1.0 / self.knee_hz)
        above = np.maximum(ratio - 1.0, 0.0)
        below = np.maximum(1.0 - ratio, 0.0)
        return 1.0 + self.slope * above + self.steepness * above * above - self.rise * below


@dataclass(frozen=True, eq=False)
class ClockTable:
    """Clocks, and the power at them."""

    clock_hz: Floats
    at_clock: Floats
    """As rows: clock over the boost clock, power of board and leakage (W), power of the clock tree at nominal voltage
    (W), square of the core voltage over that at the boost clock."""

    @cached_property
    def search(self) -> Floats:
        """The columns of the search, as rows: boost clock over the clock to the power of
        `OVERLAP`, power without events (W), square of the core voltage over that at the boost clock."""
        ratio, static_w, tree_w, volts_squared = self.at_clock
        return np.stack([ratio**-OVERLAP, static_w + tree_w * volts_squared, volts_squared])


def clocks_between(lowest: float, highest: float) -> Floats:
    """The `CLOCKS` values that halving a range can lead to, ascending, from the lowest on."""
    values, width = np.array([lowest]), highest - lowest
    while len(values) < CLOCKS:
        width *= 0.5
        values = np.stack([values, values + width], axis=1).ravel()
    return values
