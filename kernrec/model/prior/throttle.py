"""Clocks, the voltage they need, and the clock at which a launch stays within a power limit.

That clock is searched in a table of clocks: a launch draws more power the higher its clock, so each round tries a few
clocks of the range that is left, all of them in one go. Figures of a clock alone (voltage, static power, power of the
clock tree) are computed once for the table, and a round asks only whether the limit holds; a pass over short
arrays costs more by its calls than by their length.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernrec.model.prior.launch_costs import OVERLAP, ScaledLaunches, overlap_power, overlap_root
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]

_PARTS, _ROUNDS = 4, 5
"""Parts into which a round of the search divides the range that is left, and rounds."""
CLOCKS = _PARTS**_ROUNDS
"""Clocks of a table: 1/1024 of its range is finer than the 15 MHz steps of real GPUs."""


@dataclass(frozen=True)
class VoltageCurve:
    """The core voltage that a clock needs: above a knee it rises in proportion to the clock and a little faster, below
    it slowly or not at all."""

    knee_hz: float
    steepness: float
    """Weight of the part that is quadratic in the distance to the knee."""
    rise: float = 0.0
    """Share by which the voltage at the knee is above that at a clock near zero; a straight line between them."""

    def over_knee(self, clock_hz: ArrayLike) -> Floats:
        """Voltage over that at the knee: with x = clock over knee, `x + steepness * (x - 1)**2` above the knee and
        `1 - rise * (1 - x)` below it."""
        ratio = np.multiply(clock_hz, 1.0 / self.knee_hz)
        above = np.maximum(ratio - 1.0, 0.0)
        below = np.maximum(1.0 - ratio, 0.0)
        return 1.0 + above + self.steepness * above * above - self.rise * below


@dataclass(frozen=True)
class ClockGrid:
    """Tables of `CLOCKS` clocks each, ascending, one after the other, and the power at these clocks."""

    clock_hz: Floats
    at_clock: Floats
    """The arguments of `ScaledLaunches.at` as rows: clock over the boost clock, power of board and leakage (W), power
    of the clock tree at nominal voltage (W), square of the core voltage over that at the boost clock."""

    def throttle(self, launches: Floats, limit_w: float | Floats, first: Any) -> tuple[Floats, Floats, Floats, Floats]:
        """The launches at the highest clock of a table that keeps them within their power limits, or else the lowest.

        Args:
            launches: the fields of `NominalCosts` as rows, (5, N).
            limit_w: power limits, (N,) or one number for all.
            first: where the table of each launch begins, (N,) or one number for all.

        Returns:
            clock_hz, latency_s, static_j, core_j; each (N,).
        """
        core_s, dram_s, fixed_s, core_j, dram_j = launches
        core, dram, budget_j = overlap_power(core_s), overlap_power(dram_s), -dram_j
        place = np.zeros(len(core_s), dtype=np.int64)
        place += first
        for trials in _TRIALS:
            shortened, power_w, volts_squared = self._by_clock.take(place + trials, axis=1)
            shortened *= core
            shortened += dram
            latency = overlap_root(shortened)
            latency += fixed_s
            power_w -= limit_w
            power_w *= latency
            volts_squared *= core_j
            power_w += volts_squared
            place += np.add.reduce(power_w <= budget_j, axis=0) * trials[0]
        at_place = ScaledLaunches(launches).at(*self.at_clock.take(place, axis=1))
        return self.clock_hz.take(place), *at_place

    @cached_property
    def _by_clock(self) -> Floats:
        """The columns of the search as rows: boost clock over the clock to the power of `OVERLAP`, power without events
        (W), square of the core voltage over that at the boost clock."""
        ratio, static_w, tree_w, volts_squared = self.at_clock
        return np.stack([ratio**-OVERLAP, static_w + tree_w * volts_squared, volts_squared])


_TRIALS = [CLOCKS // _PARTS**number * np.arange(1, _PARTS)[:, np.newaxis] for number in range(1, _ROUNDS + 1)]
"""For each round of the search the distances of the clocks that it tries from the lowest one left, (parts - 1, 1)."""


def clocks_between(lowest: float, highest: float) -> Floats:
    """The `CLOCKS` values that halving a range can lead to, ascending, from the lowest on."""
    values, width = np.array([lowest]), highest - lowest
    while len(values) < CLOCKS:
        width *= 0.5
        values = np.stack([values, values + width], axis=1).ravel()
    return values
