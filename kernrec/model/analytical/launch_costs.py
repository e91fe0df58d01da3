"""Time, power and energy of launches, with and without a power limit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.model.analytical.microarchitecture import CAPPED
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]

LIMITED = 7
"""Number of rows of `LimitedCosts.costs`."""
LATENCY_S, POWER_W, ENERGY_J, CLOCK_HZ, STATIC_J, CORE_J, REGIME = range(LIMITED)
"""Rows of `LimitedCosts.costs`."""


@dataclass(frozen=True)
class NominalCosts:
    """Time and dynamic energy of N launches before any power limit; every field is an array (N,) or a scalar."""

    core_s: Floats | float
    """Seconds bound by the core clock domain, at the boost clock."""
    dram_s: Floats | float
    """Seconds bound by DRAM, which do not depend on the core clock."""
    fixed_s: Floats | float
    core_j: Floats | float
    """Joules of core events at nominal voltage, as from `PowerModel.dynamic`, without the clock tree."""
    dram_j: Floats | float

    def columns(self) -> Floats:
        """Return the fields as rows, (5, N)."""
        columns: list[Any] = [self.core_s, self.dram_s, self.fixed_s, self.core_j, self.dram_j]
        if len({np.shape(column) for column in columns} - {()}) > 1 or np.ndim(columns[0]) != 1:
            columns = [*np.broadcast_arrays(*map(np.atleast_1d, columns))]
        rows = np.empty((len(columns), len(columns[0])))
        for row, column in zip(rows, columns, strict=True):
            row[:] = column
        return rows


@dataclass(frozen=True, eq=False)
class LimitedCosts:
    """Costs of N launches at the clock that keeps them within the power limit; arrays (N,) or (points, N).

    `energy_j = power_w * latency_s = static_j + core_j + dram_j`.
    """

    costs: Floats
    """All costs in the engine's form, (`LIMITED`, N) or (`LIMITED`, points, N)."""
    dram_j: Floats
    """Joules of DRAM traffic, which are equal at every point, (N,)."""

    @property
    def latency_s(self) -> Floats:
        """Return the expected latency of a launch in seconds."""
        return np.asarray(self.costs[LATENCY_S])

    @property
    def power_w(self) -> Floats:
        """Return the mean power during the launch in watts."""
        return np.asarray(self.costs[POWER_W])

    @property
    def energy_j(self) -> Floats:
        """Return the energy of a launch in joules."""
        return np.asarray(self.costs[ENERGY_J])

    @property
    def clock_hz(self) -> Floats:
        """Return the core clock under the power limit in hertz."""
        return np.asarray(self.costs[CLOCK_HZ])

    @property
    def static_j(self) -> Floats:
        """Return joules of board, memory standby and leakage."""
        return np.asarray(self.costs[STATIC_J])

    @property
    def core_j(self) -> Floats:
        """Return joules of core events and of the clock tree, at the voltage of `clock_hz`."""
        return np.asarray(self.costs[CORE_J])

    @property
    def regime(self) -> Floats:
        """Return the index in `spread.REGIMES` of the launch's bottleneck."""
        return np.asarray(self.costs[REGIME])

    @property
    def capped(self) -> NDArray[np.bool_]:
        """Return whether the power limit lowers the clock."""
        return np.asarray(self.costs[REGIME] == CAPPED)

    def at(self, point: int | slice) -> "LimitedCosts":
        """Select one or more operating points."""
        return LimitedCosts(self.costs[:, point], self.dram_j)

    def part(self, part: slice) -> "LimitedCosts":
        """Select some of the launches."""
        if part.start == 0 and part.stop == self.costs.shape[-1]:
            return self
        return LimitedCosts(self.costs[..., part], self.dram_j[part])
