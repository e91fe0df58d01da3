"""Estimate time and energy of configs with the analytical model."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.kernel.space import arguments
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
"""Arguments of the engine's `Costs` for one kernel: its plan, the problems, the rows to estimate (None for all that can
run), a mask of the rows that can run (None for the mask in the plan), rows to estimate in any case, and the costs of
each problem's epilogue, (problems, 4)."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Configs of a kernel on one problem, and the time and energy that the analytical model predicts for C of them."""

    table: StaticTable
    on_problem: ProblemSpace
    """Config space of the kernel on the problem, or on the first of several problems."""
    rows: Array
    """Row index of each estimated config in the config space, (C,)."""
    in_engine: Any
    number: int = 0
    start: int = 0
    """Position of the first of these configs among the kernel's configs on all problems."""
    column: int = 0
    """Position of the first of these configs among the configs of all kernels on all problems."""
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
        """Measurements of configs that have no profile and so no prediction, at the first operating point."""
        first = self.measured[0]
        if not len(first.rows):
            return ()
        return tuple(m for row, m in zip(first.rows, first.measured, strict=True) if row not in self.runnable)

    @property
    def sampled_blocks(self) -> tuple[int, int]:
        """Minimum and maximum number of emulated blocks of the first launch, over the configs. Both are 0 if the kernel
        was not profiled from a sample of blocks.
        """
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

    def bottleneck(self, position: int) -> str:
        """Return the resource that takes longest in the longest launch of the config at `position`."""
        return RESOURCES[int(self.in_engine.longest.item(1, self.column + position))]

    def performed(self, position: int) -> list[LaunchTime]:
        """Return the times of the launches that the config at `position` performs, one `LaunchTime` per launch."""
        return [LaunchTime(*times) for times in self.in_engine.launches(self.number, self.start + position)]


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Prediction:
    """Predict time and energy of the configs in these rows of a kernel's space, on one problem."""
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


SHORTLIST = 512
"""Maximum number of a kernel's configs for which full costs are estimated on a problem. The configs with the lowest
quick costs are selected. The quick time is the number of waves of blocks times the time of one wave. The quick energy
is the energy of the core."""


@dataclass(frozen=True, eq=False)
class Space:
    """Kernels that implement problems of one op, data type and layout on one GPU, with all of their configs."""

    tables: Sequence[StaticTable]
    """Static tables of the kernels; at least one. Several problems must have the same launch geometry."""
    evidence: Evidence = Evidence()
    """Database rows about the problem. They must be empty if several problems are estimated together."""
    whole: bool = False
    """Whether to estimate every config instead of only the most promising configs (`SHORTLIST`)."""


class KernelCosts:
    """Predicted costs of the configs of one kernel on all problems, ordered by problem."""

    def __init__(
        self,
        costs: Any,
        table: StaticTable,
        forms: Sequence[Problem],
        number: int,
        column: int,
        measured: tuple[MeasuredRows, ...],
        estimated: tuple[Sequence[int], Sequence[int | None], Sequence[int]],
    ) -> None:
        """Create a view of the costs of one kernel in the engine's `Costs`.

        Args:
            forms: problems, converted to the kernel's op.
            number: index of the kernel in `costs`.
            column: position of the kernel's first config among the configs of all kernels.
            estimated: three sequences with an element for each problem: index of its first config in `rows`,
                position that the occupancy heuristic picks, and number of runnable configs. The first sequence ends
                with the total number of configs.
        """
        self.table, self.number, self.column, self.measured = table, number, column, measured
        self._in_engine, self._forms, self._on_problems = costs, forms, dict[int, ProblemSpace]()
        self.starts, self.heuristics, self.counts = estimated

    @cached_property
    def rows(self) -> Array:
        """Row index of each estimated config in the config space, ordered by problem."""
        rows: Array = self._in_engine.rows(self.number)
        return rows

    def _on_problem(self, problem: int) -> ProblemSpace:
        if problem not in self._on_problems:
            self._on_problems[problem] = self.table.space.at(self._forms[problem])
        return self._on_problems[problem]

    @property
    def part(self) -> slice:
        """Slice of the configs of all kernels that belongs to this kernel."""
        return slice(self.column, self.column + self.starts[-1])

    @property
    def whole(self) -> Prediction:
        """Prediction that covers the configs on all problems."""
        return Prediction(
            self.table, self._on_problem(0), self.rows, self._in_engine, self.number, 0, self.column, 0,
            self.counts[0], self.measured,
        )  # fmt: skip

    def on(self, problem: int) -> Prediction:
        """Return the prediction for the configs on the problem with index `problem`."""
        start, end = self.starts[problem : problem + 2]
        return Prediction(
            self.table, self._on_problem(problem), self.rows[start:end], self._in_engine, self.number, start,
            self.column + start, problem, self.counts[problem], self.measured,
        )  # fmt: skip


class SpaceCosts:
    """Costs that the analytical model predicts for C candidates, ordered by kernel and then by problem.

    Costs are estimated at the first operating point. The engine later estimates some candidates at the other points.
    """

    def __init__(self, space: Space, problems: Sequence[Problem], points: tuple[OperatingPoint, ...]) -> None:
        self.space, self.problems, self.points = space, problems, points
        nothing, evidence = (NOTHING,) * len(points), space.evidence
        any_rows = bool(evidence.measured or evidence.failed)
        measured, parts = [], list[Part]()
        of_op: dict[str, tuple[list[Problem], list[Any], Array | None]] = {}
        """Problems converted to an op, their arguments for the engine, and their epilogues, keyed by op."""
        for table in space.tables:
            first = table.space.form(problems[0])
            if (op := first.op) not in of_op:
                forms = [first, *map(table.space.form, problems[1:])]
                of_op[op] = forms, list(map(arguments, forms)), finishing(table, forms)
            rows, able, ran = nothing, None, None
            if any_rows:
                rows = measured_rows(table.space, table.space.at(first), table.gpu, evidence, points)
            if rows[0] is not NOTHING:
                ran = np.unique(np.concatenate([at_point.rows for at_point in rows]))
                able = table.able_configs(table.space.at(first), ran)
                able[rows[0].failed] = False
            _, of_problems, epilogues = of_op[op]
            # A profile from sampled blocks already includes the epilogue of the problem.
            more = None if table.kernel.sampled else epilogues
            measured.append(rows)
            parts.append((table.plan(first), of_problems, None, able, ran, more))
        most = 0 if space.whole else SHORTLIST
        setting = space.tables[0].power.setting(points[:1])
        self.in_engine = costs = costs_in_engine(parts, setting, len(points), most)
        self.kernels: list[KernelCosts] = []
        column = 0
        each_kernel = zip(space.tables, measured, costs.kernels, strict=True)
        for number, (table, rows, estimated) in enumerate(each_kernel):
            forms = of_op[table.kernel.op][0]
            self.kernels.append(KernelCosts(costs, table, forms, number, column, rows, estimated))
            column += estimated[0][-1]
