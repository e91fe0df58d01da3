"""Time, power and energy of launches, with and without a power limit."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.model.analytical.microarchitecture import CAPPED
from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]

LIMITED = 7
LATENCY_S, POWER_W, ENERGY_J, CLOCK_HZ, STATIC_J, CORE_J, REGIME = range(LIMITED)
"""Row indices of `LimitedCosts.costs`."""


@dataclass(frozen=True)
class NominalCosts:
    """Time and dynamic energy of N launches without a power limit. Every field is an array (N,) or a scalar."""

    core_s: Floats | float
    """Core time in seconds at the boost clock. It scales inversely with the core clock."""
    dram_s: Floats | float
    """DRAM time in seconds, which does not depend on the core clock."""
    fixed_s: Floats | float
    core_j: Floats | float
    """Energy in joules of core events at nominal voltage, without the clock tree."""
    dram_j: Floats | float

    def columns(self) -> Floats:
        """Return the fields as the rows of an array of shape (5, N). A scalar field fills its whole row."""
        columns: list[Any] = [self.core_s, self.dram_s, self.fixed_s, self.core_j, self.dram_j]
        if len({np.shape(column) for column in columns} - {()}) > 1 or np.ndim(columns[0]) != 1:
            columns = [*np.broadcast_arrays(*map(np.atleast_1d, columns))]
        rows = np.empty((len(columns), len(columns[0])))
        for row, column in zip(rows, columns, strict=True):
            row[:] = column
        return rows


@dataclass(frozen=True, eq=False)
class LimitedCosts:
    """Costs of N launches at the highest clock that keeps each launch within the power limit. Properties are arrays
    (N,), or (points, N) for several pairs of power limit and clock. `energy_j` equals `power_w * latency_s`, and also
    `static_j + core_j + dram_j`."""

    costs: Floats
    """Costs as an array of shape (`LIMITED`, N) or (`LIMITED`, points, N). `LATENCY_S`, `POWER_W` and so on are its row
    indices."""
    dram_j: Floats
    """Energy of DRAM traffic in joules, as an array of shape (N,). It does not depend on the power limit and the
    clock."""

    @property
    def latency_s(self) -> Floats:
        return np.asarray(self.costs[LATENCY_S])

    @property
    def power_w(self) -> Floats:
        """Return the mean power during the launch in watts."""
        return np.asarray(self.costs[POWER_W])

    @property
    def energy_j(self) -> Floats:
        return np.asarray(self.costs[ENERGY_J])

    @property
    def clock_hz(self) -> Floats:
        return np.asarray(self.costs[CLOCK_HZ])

    @property
    def static_j(self) -> Floats:
        """Return the energy in joules of the board, memory standby and leakage."""
        return np.asarray(self.costs[STATIC_J])

    @property
    def core_j(self) -> Floats:
        """Return the energy in joules of core events and the clock tree, at the voltage that `clock_hz` needs."""
        return np.asarray(self.costs[CORE_J])

    @property
    def capped(self) -> NDArray[np.bool_]:
        """Return, for each launch, whether the power limit lowers its clock."""
        return np.asarray(self.costs[REGIME] == CAPPED)

    def at(self, point: int | slice) -> "LimitedCosts":
        """Return the costs at one or more pairs of power limit and clock. `point` is their index or slice."""
        return LimitedCosts(self.costs[:, point], self.dram_j)

    def part(self, part: slice) -> "LimitedCosts":
        if part.start == 0 and part.stop == self.costs.shape[-1]:
            return self
        return LimitedCosts(self.costs[..., part], self.dram_j[part])
