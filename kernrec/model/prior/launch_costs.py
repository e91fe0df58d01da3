"""Time, power and energy of launches, before a power limit and under one."""

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.util.light_dataclass import dataclass

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NominalCosts:
    """Time and dynamic energy of N launches before any power limit; every field an array (N,) or a scalar."""

    core_s: Floats | float
    """Seconds bound by the core clock domain, at the boost clock."""
    dram_s: Floats | float
    """Seconds bound by DRAM; they do not depend on the core clock."""
    fixed_s: Floats | float
    core_j: Floats | float
    """Joules of core events at nominal voltage, as from `PowerModel.dynamic`; without the clock tree."""
    dram_j: Floats | float

    def columns(self) -> Floats:
        """The fields as rows, (5, N)."""
        columns: list[Any] = [self.core_s, self.dram_s, self.fixed_s, self.core_j, self.dram_j]
        if len({np.shape(column) for column in columns} - {()}) > 1 or np.ndim(columns[0]) != 1:
            columns = [*np.broadcast_arrays(*map(np.atleast_1d, columns))]
        rows = np.empty((len(columns), len(columns[0])))
        for row, column in zip(rows, columns, strict=True):
            row[:] = column
        return rows


@dataclass(frozen=True)
class LimitedCosts:
    """N launches at the clock where they stay within the power limit; every field an array (N,) or (points, N).

    `energy_j = power_w * latency_s = static_j + core_j + dram_j`.
    """

    latency_s: Floats
    power_w: Floats
    """Mean power while the launch runs (W)."""
    energy_j: Floats
    clock_hz: Floats
    """Core clock that the power limit leaves."""
    capped: NDArray[np.bool_]
    static_j: Floats
    """Joules of board, memory standby and leakage."""
    core_j: Floats
    """Joules of core events and of the clock tree, at the voltage of `clock_hz`."""
    dram_j: Floats

    def at(self, point: int | slice) -> "LimitedCosts":
        """Those of several operating points at one of them, or at some."""
        return LimitedCosts(*[column[point] for column in self.columns()])

    def part(self, part: slice) -> "LimitedCosts":
        """Those of some of the launches."""
        if part.start == 0 and part.stop == self.latency_s.shape[-1]:
            return self
        return LimitedCosts(*[column[..., part] for column in self.columns()])

    def columns(self) -> list[Any]:
        """The fields in order."""
        return [getattr(self, name) for name in _LIMITED]


_LIMITED = tuple(field.name for field in fields(LimitedCosts))
