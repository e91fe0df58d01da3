"""Estimate time and energy of configs with the analytical model.

    SpaceCosts(space, problems, points)     all kernels on all problems at operating points; every answer starts here
    predict(table, on_problem, rows)        one kernel on one problem, before any power limit

`kernrec.recommender.rank` corrects these costs with trained models and replaces predictions with measurements.
"""

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.model.prior.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.prior.launch_time import RESOURCES, LaunchTime, epilogue
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


@dataclass(frozen=True, eq=False)
class KernelCosts:
    """Configs of one kernel on all problems; arrays are ordered by problem."""

    whole: Prediction
    """Prediction for the configs on all problems."""
    predictions: Sequence[Prediction]
    """Prediction for each problem."""
    part: slice
    """Slice of `SpaceCosts.limited` that belongs to the kernel."""
    starts: Sequence[int]
    """Position of each problem's first config among the kernel's configs, then the total number of configs."""
    heuristics: Sequence[int | None]
    """Position of the occupancy heuristic's pick for each problem; None if no config can run it."""


class SpaceCosts:
    """The analytical model's costs of all kernels' configs on all problems: C candidates, kernel after kernel.

    Initially, only the first operating point is filled in. `sweep` adds the others, for all or some candidates.
    """

    def __init__(self, space: Space, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]) -> None:
        self.points = points
        self._power = power = space.tables[0].power
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
        costs = costs_in_engine(parts, power.setting(points[:1]), len(points), most)
        self.kernels: list[KernelCosts] = []
        """Costs of each table's kernel, in order."""
        column = 0
        each_kernel = zip(space.tables, on_problems, measured, costs.kernels, strict=True)
        for number, (table, here, rows, (estimated, starts, heuristics, counts)) in enumerate(each_kernel):
            whole = Prediction(table, here[0], estimated, costs, number, 0, column, 0, counts[0], rows)
            each = [whole]
            if len(here) > 1:
                each = [
                    Prediction(
                        table, on, estimated[start:end], costs, number, start, column + start, i, counts[i], rows
                    )
                    for i, (on, (start, end)) in enumerate(zip(here, pairwise(starts), strict=True))
                ]
            part = slice(column, column + len(estimated))
            self.kernels.append(KernelCosts(whole, each, part, starts, heuristics))
            column = part.stop
        self.costed = [kernel for kernel in self.kernels if kernel.starts[-1]]
        """Kernels with at least one candidate."""
        self._nominal = costs.nominal
        self.limited = LimitedCosts(costs.limited, self._nominal[4])
        """Latency, power and energy, (points, C); infinite at points that are not swept."""

    def sweep(self, swept: Sequence[Array | None]) -> None:
        """Fill in the costs at all operating points except the first.

        Args:
            swept: for each of `costed`, the positions of the candidates to estimate; None for all.
        """
        positions = [
            np.arange(kernel.part.start, kernel.part.stop) if some is None else some + kernel.part.start
            for some, kernel in zip(swept, self.costed, strict=True)
        ]
        costs = self.limited.costs[:, 1:]
        self._power.limit_some(self._nominal, np.concatenate(positions), self.points[1:], costs)


def promising_of_each(costs: Sequence[Array], starts: Sequence[int], count: int) -> Array:
    """Return a mask of each problem's promising candidates, half by lowest latency, half by lowest energy; bool (C,).

    Args:
        costs: latency and energy, (C,) each.
        starts: position of each problem's first candidate, then C.
        count: maximum number of candidates per problem.
    """
    chosen = np.empty(len(costs[0]), dtype=bool)
    query.promising(*costs, starts, count, chosen)
    return chosen
