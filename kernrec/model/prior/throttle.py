"""Clocks, the voltage they need, and the clock at which a launch stays within a power limit.

That clock is found by halving a table of clocks. What follows from a clock alone (voltage, static power, power of the
clock tree) is computed once for the table, so that a step of the search takes few operations on the launches.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernrec.model.prior.launch_costs import ScaledLaunches
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]

BISECTIONS = 10
"""Steps that find the clock to 1/1024 of its range, finer than the 15 MHz steps of real GPUs."""
CLOCKS = 2**BISECTIONS
"""Clocks of a table."""


@dataclass(frozen=True)
class VoltageCurve:
    """The core voltage that a clock needs: constant up to the knee, above it rising faster than the clock."""

    knee_hz: float
    """Clock from which the voltage rises."""
    steepness: float
    """Weight of the part that is quadratic in the distance to the knee."""

    def over_lowest(self, clock_hz: ArrayLike) -> Floats:
        """Voltage over the lowest one: `x + steepness * (x - 1)**2` with x = clock over knee, at least 1."""
        ratio = np.maximum(np.multiply(clock_hz, 1.0 / self.knee_hz), 1.0)
        above = ratio - 1.0
        return ratio + self.steepness * above * above


@dataclass(frozen=True)
class ClockGrid:
    """Tables of `CLOCKS` clocks each, ascending, one after the other, and the power at these clocks."""

    clock_hz: Floats
    """The clocks."""
    at_clock: Floats
    """What `ScaledLaunches.at` takes, as rows: clock over the boost clock, power of board and leakage (W), power of the
    clock tree at nominal voltage (W), square of the core voltage over that at the boost clock."""

    def throttle(self, launches: Floats, limit_w: Floats, first: Any) -> tuple[Floats, Floats, Floats, Floats]:
        """The launches at the highest clock of a table that keeps them within their power limits, or else the lowest.

        Args:
            launches: the fields of `NominalCosts` as rows, (5, N).
            limit_w: power limits, (N,).
            first: where the table of each launch begins, (N,) or one number for all.

        Returns:
            clock_hz, latency_s, static_j, core_j; each (N,).
        """
        scaled = ScaledLaunches(launches)

        def run(place: Any) -> tuple[Floats, Floats, Floats]:
            return scaled.at(*self.at_clock.take(place, axis=1))

        place = np.zeros(len(limit_w), dtype=np.int64)
        place += first
        step = CLOCKS
        while step > 1:
            step //= 2
            latency, static_j, core_j = run(place + step)
            place += (static_j + core_j + scaled.dram_j <= latency * limit_w) * step
        return self.clock_hz.take(place), *run(place)


def clocks_between(lowest: float, highest: float) -> Floats:
    """The `CLOCKS` values that halving a range can lead to, ascending, from the lowest on."""
    values, width = np.array([lowest]), highest - lowest
    for _ in range(BISECTIONS):
        width *= 0.5
        values = np.stack([values, values + width], axis=1).ravel()
    return values
