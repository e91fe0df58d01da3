"""Predict time and energy of configs on one problem with the analytical model, before any power limit."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.model.prior.epilogue import epilogue
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import RESOURCES, LaunchTime
from kernrec.op import Problem
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Part = tuple[Any, list[Any], Array | None, Array | None, Array | None, Array | None]
"""Kernel of an engine's `Costs`: its plan, its problems, the rows to estimate, whether each row could run, rows that
are always estimated, and the epilogue of each problem, (problems, 4)."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Time and energy of C configs of a kernel on one problem; arrays (C,) unless stated otherwise."""

    table: StaticTable
    on_problem: ProblemSpace
    """Space of the table on the problem; on the first of several problems, whose configs are then concatenated."""
    rows: Array
    """Rows of the space."""
    costs: Array
    """Fields of `nominal` as rows, (5, C)."""
    longest: Array
    """Seconds of core or DRAM in the longest launch of each config, and the index in `RESOURCES` of its bottleneck; (2,
    C)."""
    in_engine: Any
    """Costs in the engine."""
    number: int = 0
    """Number of the kernel in the engine's costs."""
    start: int = 0
    """Position of the first of the configs among those of the kernel."""

    def by_problem(self, starts: Sequence[int], on_problems: Sequence[ProblemSpace]) -> "Iterator[Prediction]":
        """Yield the prediction for each of several problems.

        Args:
            starts: index in `rows` of each problem's first config, then the total.
            on_problems: space on each problem.
        """
        if len(on_problems) == 1:
            yield self
            return
        for on_problem, (start, end) in zip(on_problems, pairwise(starts), strict=True):
            own = self.rows[start:end], self.costs[:, start:end], self.longest[:, start:end]
            yield Prediction(self.table, on_problem, *own, self.in_engine, self.number, start)

    @property
    def nominal(self) -> NominalCosts:
        """Seconds at the boost clock by resource, and joules at nominal voltage."""
        return NominalCosts(*self.costs)

    def limited(self, point: OperatingPoint = DEFAULT_POINT) -> LimitedCosts:
        """Return latency, power and energy at an operating point."""
        return self.table.power.apply_power_limit(self.nominal, point.power_limit_w, point.clock_hz)

    def at(self, position: int) -> NominalCosts:
        """Return the costs of one candidate before any power limit."""
        return NominalCosts(*self.costs[:, position].tolist())

    def bottleneck(self, position: int) -> str:
        """Return the resource that takes longest in the longest launch of the candidate at `position`."""
        return RESOURCES[int(self.longest.item(1, position))]

    @property
    def launches(self) -> list[tuple[Array, LaunchTime]]:
        """Launches of the kernel, in order: positions of the configs that perform it, and their times.

        Positions count from the kernel's first config. Launches that no config performs are missing.
        """
        return [(positions, LaunchTime(*times)) for _, positions, *times in self.in_engine.launches(self.number)]

    def performed(self, position: int) -> list[tuple[LaunchTime, int]]:
        """Return the times of each launch of the candidate at `position`, in order, with its index in them."""
        place, performed = self.start + position, []
        for positions, times in self.launches:
            column = int(positions.searchsorted(place))
            if column < len(positions) and positions[column] == place:
                performed.append((times, column))
        return performed


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """Return the analytical model's time and energy of the configs `rows` on a problem."""
    epilogues = finishing(table, [on_problem.problem])
    part: Part = table.plan(on_problem), [on_problem.in_engine], rows, None, None, epilogues
    costs = costs_in_engine([part])
    return Prediction(table, on_problem, rows, costs.nominal, costs.longest, costs)


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


def finishing(table: StaticTable, problems: Sequence[Problem]) -> Array | None:
    """Return core_s, dram_s, core_j and dram_j of each problem's epilogue, (problems, 4); None if they have none.

    A profile from sampled blocks belongs to its problem and includes the epilogue.
    """
    if table.kernel.sampled:
        return None
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
