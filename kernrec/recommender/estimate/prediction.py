"""Predict time and energy of configs on one problem with the analytical model, before any power limit."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import RESOURCES, LaunchTime, epilogue
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.store import MeasuredAnswer
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Part = tuple[Any, list[Any], Array | None, Array | None, Array | None, Array | None]
"""Kernel of an engine's `Costs`: its plan, its problems, the rows to estimate, whether each row could run, rows that
are always estimated, and the epilogue of each problem, (problems, 4)."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Configs of a kernel on one problem, with time and energy of the C estimated configs."""

    table: StaticTable
    on_problem: ProblemSpace
    """Space of the table on the problem; on the first problem if the configs of several problems are concatenated."""
    rows: Array
    """Estimated rows of the space, (C,)."""
    in_engine: Any
    """The engine's cost object."""
    number: int = 0
    """Number of the kernel in the engine's costs."""
    start: int = 0
    """Position of the first config among the kernel's configs."""
    column: int = 0
    """Position of the first config among the configs of all kernels."""
    problem: int = 0
    """Number of the problem in the engine's costs."""
    count: int = 0
    """Number of configs that can run the problem, estimated or not."""
    measured: tuple[MeasuredRows, ...] = (NOTHING,)
    """Measured rows at each operating point."""

    @cached_property
    def runnable(self) -> Array:
        """Rows of the space that can run the problem, ascending, without configs that failed in measurements."""
        rows: Array = self.in_engine.runnable(self.number, self.problem)
        return rows

    @cached_property
    def unprofiled(self) -> tuple[MeasuredAnswer, ...]:
        """Measurements, at the first point, of configs without a profile, which cannot be compared with others."""
        first = self.measured[0]
        if not len(first.rows):
            return ()
        return tuple(m for row, m in zip(first.rows, first.measured, strict=True) if row not in self.runnable)

    @property
    def sampled_blocks(self) -> tuple[int, int]:
        """Minimum and maximum number of emulated blocks of the first launch over all configs; 0 for probed profiles."""
        if not self.table.kernel.sampled:
            return 0, 0
        profiles = self.table.launches[0].profiles
        blocks = profiles.counts[:, profiles.metrics.index("blocks.sampled"), 0]
        return int(blocks.min()), int(blocks.max())

    @property
    def nominal(self) -> NominalCosts:
        """Seconds at the boost clock by resource, and joules at nominal voltage; arrays (C,)."""
        return NominalCosts(*self.in_engine.nominal[:, self.column : self.column + len(self.rows)])

    def limited(self, point: OperatingPoint = DEFAULT_POINT) -> LimitedCosts:
        """Return latency, power and energy at an operating point."""
        return self.table.power.apply_power_limit(self.nominal, point.power_limit_w, point.clock_hz)

    def at(self, position: int) -> NominalCosts:
        """Return the costs of one candidate before any power limit."""
        return NominalCosts(*self.in_engine.nominal[:, self.column + position].tolist())

    def bottleneck(self, position: int) -> str:
        """Return the resource that takes longest in the longest launch of the candidate at `position`."""
        return RESOURCES[int(self.in_engine.longest.item(1, self.column + position))]

    @property
    def launches(self) -> list[tuple[Array, LaunchTime]]:
        """For each launch of the kernel, in order: positions of the configs that perform it, and their times.

        Positions count from the kernel's first config. Launches that no config performs are missing.
        """
        return [(positions, LaunchTime(*times)) for _, positions, *times in self.in_engine.launches(self.number)]

    def performed(self, position: int) -> list[tuple[LaunchTime, int]]:
        """Return, for each launch of the candidate at `position`, the launch's times and the candidate's index."""
        place, performed = self.start + position, []
        for positions, times in self.launches:
            column = int(positions.searchsorted(place))
            if column < len(positions) and positions[column] == place:
                performed.append((times, column))
        return performed


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """Return the analytical model's time and energy of the configs `rows` on a problem."""
    epilogues = None if table.kernel.sampled else finishing(table, [on_problem])
    part: Part = table.plan(on_problem), [on_problem.in_engine], rows, None, None, epilogues
    return Prediction(table, on_problem, rows, costs_in_engine([part]))


def costs_in_engine(parts: list[Part], limits: Any = None, points: int = 0, most: int = 0) -> Any:
    """Return the engine's costs of the configs of several kernels on problems.

    Args:
        parts: the kernels.
        limits: the first operating point in the engine's form; None for no power limit.
        points: number of operating points.
        most: maximum number of configs of a kernel to estimate on a problem; 0 for all.

    Raises:
        UsageError: an expression of a kernel has no value on a problem.
    """
    try:
        return query.Costs(parts, limits, points, most)
    except ValueError as error:
        raise UsageError(str(error)) from None


def finishing(table: StaticTable, on_problems: Sequence[ProblemSpace]) -> Array | None:
    """Return core_s, dram_s, core_j and dram_j of each problem's epilogue, (problems, 4); None without epilogues."""
    each = [epilogue(table.gpu, table.power, on_problem.problem) for on_problem in on_problems]
    if each.count(None) == len(each):
        return None
    slower = table.calibration.core_time if table.calibration else 1.0
    figures = np.zeros((len(each), 4))
    for row, more in zip(figures, each, strict=True):
        if more is not None:
            core_s, core_j, dram_bytes = more
            row[:] = slower * core_s, dram_bytes / table.bandwidth, core_j, dram_bytes * table.dram_byte_j
    return figures
