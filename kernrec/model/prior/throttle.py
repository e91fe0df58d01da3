"""Clocks, the voltage they need, and the clock at which a launch stays within a power limit.

That clock is found by halving a table of clocks. What follows from a clock alone (voltage, static power, power of the
clock tree) is computed once for the table, so that a step of the search takes few operations on the launches.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

    ratio: Floats
    """Clock over the boost clock."""
    clock_hz: Floats
    """The clock."""
    static_w: Floats
    """Power of board and leakage (W)."""
    tree_w: Floats
    """Power of the clock tree at nominal voltage (W)."""
    volts_squared: Floats
    """Square of the core voltage over that at the boost clock."""

    def throttle(self, launches: Floats, limit_w: Floats, first: Any) -> tuple[Floats, Floats, Floats, Floats]:
        """The launches at the highest clock of a table that keeps them within their power limits, or else the lowest.

        Args:
            launches: the fields of `power.NominalCosts` as rows, (5, N).
            limit_w: power limits, (N,).
            first: where the table of each launch begins, (N,) or one number for all.

        Returns:
            clock_hz, latency_s, static_j, core_j; each (N,).
        """
        core_s, dram_s, fixed_s, nominal_j, dram_j = launches
        dram = np.square(np.square(dram_s))

        def run(place: Any) -> tuple[Floats, Floats, Floats]:
            # As `PowerModel._run` does, to the last bit; in place, which saves a third of the time.
            latency = core_s / self.ratio.take(place)
            latency *= latency
            latency *= latency
            latency += dram
            np.sqrt(latency, out=latency)
            np.sqrt(latency, out=latency)
            latency += fixed_s
            core_j = self.tree_w.take(place)
            core_j *= latency
            core_j += nominal_j
            core_j *= self.volts_squared.take(place)
            static_j = self.static_w.take(place)
            static_j *= latency
            return latency, static_j, core_j

        place = np.zeros(len(limit_w), dtype=np.int64)
        place += first
        step = CLOCKS
        while step > 1:
            step //= 2
            latency, energy, core_j = run(place + step)
            energy += core_j
            energy += dram_j
            latency *= limit_w
            place += (energy <= latency) * step
        return self.clock_hz.take(place), *run(place)


def clocks_between(lowest: float, highest: float) -> Floats:
    """The `CLOCKS` values that halving a range can lead to, ascending, from the lowest on."""
    values, width = np.array([lowest]), highest - lowest
    for _ in range(BISECTIONS):
        width *= 0.5
        values = np.stack([values, values + width], axis=1).ravel()
    return values
