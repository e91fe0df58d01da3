"""Estimate time and energy of configs with the analytical model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.kernel.space import arguments
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.launch_time import LaunchTime, epilogue
from kernrec.op import Problem
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.store import MeasuredAnswer
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Part = tuple[Any, list[Any], Array | None, Array | None, Array | None, Array | None]
"""Arguments of the engine's `Costs` for one kernel, in this order: plan, problems, rows to estimate (None for all
runnable rows), mask of runnable rows (None for the plan's mask), rows that must be estimated, and the costs of each
problem's epilogue, (problems, 4)."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Time and energy that the analytical model predicts for C configs of a kernel on one problem."""

    table: StaticTable
    on_problem: ProblemSpace
    """Config space of the kernel on the problem, or on the first of several problems."""
    rows: Array
    """Row index of each estimated config in the config space, (C,)."""
    in_engine: Any
    number: int = 0
    start: int = 0
    """Position of the first predicted config among this kernel's configs on all problems of a batch."""
    column: int = 0
    """Position of the first predicted config among all kernels' configs on all problems of a batch."""
    problem: int = 0
    count: int = 0
    """Number of configs that can run the problem, including configs that are not estimated."""
    measured: tuple[MeasuredRows, ...] = (NOTHING,)

    @cached_property
    def runnable(self) -> Array:
        """Row indices, in ascending order, of the configs that can run the problem and did not fail when measured."""
        rows: Array = self.in_engine.runnable(self.number, self.problem)
        return rows

    @cached_property
    def unprofiled(self) -> tuple[MeasuredAnswer, ...]:
        """Measurements, at the first operating point, of configs without a profile. Such configs have no prediction."""
        first = self.measured[0]
        if not len(first.rows):
            return ()
        return tuple(m for row, m in zip(first.rows, first.measured, strict=True) if row not in self.runnable)

    @property
    def sampled_blocks(self) -> tuple[int, int]:
        """Smallest and largest number of emulated blocks of any config's first launch; 0 if blocks were not sampled."""
        if not self.table.kernel.sampled:
            return 0, 0
        profiles = self.table.launches[0].profiles
        blocks = profiles.counts[:, profiles.metrics.index("blocks.sampled"), 0]
        return int(blocks.min()), int(blocks.max())

    @property
    def nominal(self) -> NominalCosts:
        """Costs of the C configs without a power limit: times at the boost clock, energies at nominal voltage, (C,)."""
        return NominalCosts(*self.in_engine.nominal[:, self.column : self.column + len(self.rows)])

    def limited(self, point: OperatingPoint = DEFAULT_POINT) -> LimitedCosts:
        """Return latency, power and energy of the C configs at an operating point, (C,)."""
        return self.table.power.apply_power_limit(self.nominal, point.power_limit_w, point.clock_hz)

    def at(self, position: int) -> NominalCosts:
        """Return the costs of the config at `position` without a power limit."""
        return NominalCosts(*self.in_engine.nominal[:, self.column + position].tolist())

    def performed(self, position: int) -> list[LaunchTime]:
        """Return a `LaunchTime` for each launch that the config at `position` performs."""
        return [LaunchTime(*times) for times in self.in_engine.launches(self.number, self.start + position)]


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """Predict time and energy of the configs in `rows` of a kernel's space, on one problem."""
    epilogues = None if table.kernel.sampled else finishing(table, [on_problem.problem])
    part: Part = table.plan(on_problem.problem), [arguments(on_problem.problem)], rows, None, None, epilogues
    return Prediction(table, on_problem, rows, costs_in_engine([part]))


def costs_in_engine(parts: list[Part], limits: Any = None, points: int = 0, most: int = 0) -> Any:
    """Return the engine's `Costs` for the configs of several kernels.

    Args:
        limits: first operating point, in the engine's form; None to apply no power limit.
        points: number of operating points.
        most: maximum number of configs to estimate for each kernel and problem; 0 for all configs.

    Raises:
        UsageError: an expression of a kernel has no value on a problem.
    """
    try:
        return query.Costs(parts, limits, points, most)
    except ValueError as error:
        raise UsageError(str(error)) from None


def finishing(table: StaticTable, problems: Sequence[Problem]) -> Array | None:
    """Return the costs of each problem's epilogue, such as a bias, or None if no problem has an epilogue.

    The shape is (problems, 4): seconds of the core, seconds of DRAM, joules of the core, joules of DRAM.
    """
    each = [epilogue(table.gpu, table.power, problem) for problem in problems]
    if each.count(None) == len(each):
        return None
    slower = table.calibration.core_time if table.calibration else 1.0
    figures = np.zeros((len(each), 4))
    for row, more in zip(figures, each, strict=True):
        if more is not None:
            core_s, core_j, dram_bytes = more
            row[:] = slower * core_s, dram_bytes / table.bandwidth, core_j, dram_bytes * table.dram_byte_j
    return figures
