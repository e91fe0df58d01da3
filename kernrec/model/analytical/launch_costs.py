"""Time, power and energy of launches, with and without a power limit."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NominalCosts:
    """Time and dynamic energy of N launches without a power limit. Every field is an array (N,) or a scalar."""

    core_s: Floats | float
    """Seconds of core time at the boost clock. Core time scales inversely with the core clock."""
    dram_s: Floats | float
    """Seconds of DRAM time. DRAM time does not depend on the core clock."""
    fixed_s: Floats | float
    core_j: Floats | float
    """Dynamic energy of the core in joules at nominal voltage, without the clock tree."""
    dram_j: Floats | float

    def columns(self) -> Floats:
        """Return the fields as the rows of an array (5, N)."""
        columns: list[Any] = [self.core_s, self.dram_s, self.fixed_s, self.core_j, self.dram_j]
        if len({np.shape(column) for column in columns} - {()}) > 1 or np.ndim(columns[0]) != 1:
            columns = [*np.broadcast_arrays(*map(np.atleast_1d, columns))]
        rows = np.empty((len(columns), len(columns[0])))
        for row, column in zip(rows, columns, strict=True):
            row[:] = column
        return rows


class LimitedCosts(NamedTuple):
    """Costs of N launches under a power limit. For several pairs of power limit and clock, arrays have the shape
    (pairs, N)."""

    latency_s: Floats
    power_w: Floats
    """Mean power during the launch in watts."""
    energy_j: Floats
    clock_hz: Floats
    static_j: Floats
    """Energy in joules of the board, memory standby and leakage."""
    core_j: Floats
    """Energy in joules of the core's work and the clock tree, at the voltage that `clock_hz` needs."""
    regime: Floats
    """Bottleneck of each launch: 0 core, 1 DRAM, 2 launch overhead, 3 power limit (engine/query/power_limit.cpp)."""
    dram_j: Floats
    """Energy of each launch's DRAM traffic in joules."""

    def at(self, point: int | slice) -> "LimitedCosts":
        """Return the costs at one or more pairs of power limit and clock. `point` is an index or a slice."""
        # DRAM energy is equal at all power limits and clocks.
        return LimitedCosts._make([*(row[point] for row in self[:-1]), self.dram_j])

    def part(self, part: slice) -> "LimitedCosts":
        return LimitedCosts(*(row[..., part] for row in self))
