"""Estimate time and energy of configs with the analytical model.

    SpaceCosts(space, problems, points)     all kernels on all problems at operating points; every answer starts here
    predict(table, on_problem, rows)        one kernel on one problem, before any power limit

`kernrec.recommender.rank` corrects these costs with trained models and replaces predictions with measurements.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.launch_time import RESOURCES, LaunchTime, epilogue
from kernrec.op import Problem
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows, measured_rows
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.store import Evidence, MeasuredAnswer
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


_in_engine = attrgetter("in_engine")

SHORTLIST = 512
"""Maximum number of configs estimated in full; quick costs select the most promising ones in a larger space.

The quick time is the number of rounds of blocks times the longer of work and latency. Only the busiest pipe of a block
counts. The quick energy is the energy of the core. A second pass counts only its launch. DRAM is ignored.
"""


@dataclass(frozen=True, eq=False)
class Space:
    """Configs of the kernels that implement problems of one op, data type and layout on a GPU."""

    tables: Sequence[StaticTable]
    """Static tables; at least one. For several problems, the launch geometry must not depend on the problem."""
    evidence: Evidence = Evidence()
    """Database rows about the problem; empty for several problems."""
    whole: bool = False
    """Whether to estimate every config, not only the most promising ones."""


class KernelCosts:
    """Configs of one kernel on all problems, problem after problem."""

    def __init__(
        self,
        costs: Any,
        table: StaticTable,
        on_problems: Sequence[ProblemSpace],
        number: int,
        column: int,
        measured: tuple[MeasuredRows, ...],
        estimated: tuple[Array, Sequence[int], Sequence[int | None], Sequence[int]],
    ) -> None:
        """Collect the configs of a kernel in the engine's costs.

        Args:
            costs: the engine's cost object.
            table: static table of the kernel.
            on_problems: its space on each problem.
            number: number of the kernel in the engine's costs.
            column: position of its first config among the configs of all kernels.
            measured: measured rows at each operating point.
            estimated: the engine's estimated rows, starts, picks of the occupancy heuristic and numbers of runnable
                configs.
        """
        self.table, self.number, self.column, self.measured = table, number, column, measured
        self._in_engine, self._on_problems = costs, on_problems
        self.rows, self.starts, self.heuristics, self.counts = estimated

    @property
    def part(self) -> slice:
        """Slice of all configs that belongs to the kernel."""
        return slice(self.column, self.column + len(self.rows))

    @property
    def whole(self) -> Prediction:
        """Prediction of the configs on all problems."""
        return Prediction(
            self.table, self._on_problems[0], self.rows, self._in_engine, self.number, 0, self.column, 0,
            self.counts[0], self.measured,
        )  # fmt: skip

    def on(self, problem: int) -> Prediction:
        """Return the prediction of the configs on one problem."""
        start, end = self.starts[problem : problem + 2]
        return Prediction(
            self.table, self._on_problems[problem], self.rows[start:end], self._in_engine, self.number, start,
            self.column + start, problem, self.counts[problem], self.measured,
        )  # fmt: skip


class SpaceCosts:
    """The analytical model's costs of all kernels' configs on all problems: C candidates, kernel after kernel.

    Costs at operating points after the first are infinite until the engine's `Ranking` estimates some candidates there.
    """

    def __init__(self, space: Space, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]) -> None:
        self.space, self.problems, self.points = space, problems, points
        nothing, evidence = (NOTHING,) * len(points), space.evidence
        any_rows = bool(evidence.measured or evidence.failed)
        on_problems, measured = [], []
        parts: list[Part] = []
        epilogues: dict[str, Array | None] = {}
        for table in space.tables:
            here = list(map(partial(ProblemSpace, table.space), problems))
            rows = measured_rows(table.space, here[0], table.gpu, evidence, points) if any_rows else nothing
            able = ran = None
            if rows[0] is not NOTHING:
                ran = np.unique(np.concatenate([at_point.rows for at_point in rows]))
                able = table.able_configs(here[0], ran)
                able[rows[0].failed] = False
            if (op := table.kernel.op) not in epilogues:
                epilogues[op] = finishing(table, here)
            # A profile from sampled blocks belongs to its problem and includes the epilogue.
            more = None if table.kernel.sampled else epilogues[op]
            on_problems.append(here)
            measured.append(rows)
            parts.append((table.plan(here[0]), list(map(_in_engine, here)), None, able, ran, more))
        most = 0 if space.whole else SHORTLIST
        setting = space.tables[0].power.setting(points[:1])
        self.in_engine = costs = costs_in_engine(parts, setting, len(points), most)
        self.kernels: list[KernelCosts] = []
        """Costs of each table's kernel, in order."""
        column = 0
        each_kernel = zip(space.tables, on_problems, measured, costs.kernels, strict=True)
        for number, (table, here, rows, estimated) in enumerate(each_kernel):
            self.kernels.append(KernelCosts(costs, table, here, number, column, rows, estimated))
            column += len(estimated[0])

    @cached_property
    def limited(self) -> LimitedCosts:
        """Latency, power and energy, (points, C); infinite at points where a candidate is not estimated."""
        return LimitedCosts(self.in_engine.limited, self.in_engine.nominal[4])
