"""Estimate the costs of configs on problems at operating points with the analytical model.

    costs(space, problems, points)     one problem is a list of one

Every answer calls `costs`. It evaluates static tables. `kernrec.recommender.rank` corrects its costs with trained
models and replaces them with measurements.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows, measured_rows
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import Part, Prediction, costs_in_engine, finishing
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence, MeasuredAnswer
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

Array = np.ndarray

SHORTLIST = 512
"""Maximum number of configs estimated in full; of more, the most promising are selected by quick costs.

The quick time is the number of rounds of blocks times the longer of work and latency. Only the busiest pipe of a block
counts. The quick energy is the core's. A second pass counts only its launch. DRAM is ignored.
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
class RunnableConfigs:
    """Configs of one kernel that can run a problem."""

    table: StaticTable
    on_problem: ProblemSpace
    """Space of the table on the problem."""
    measured: tuple[MeasuredRows, ...]
    in_engine: Any
    """Costs in the engine."""
    kernel: int
    """Number of the kernel in them."""
    problem: int
    """Number of the problem in them."""
    count: int
    """Number of runnable configs."""

    @cached_property
    def rows(self) -> Array:
        """Rows of the space, ascending, without configs that failed in measurements."""
        rows: Array = self.in_engine.runnable(self.kernel, self.problem)
        return rows

    @cached_property
    def unprofiled(self) -> tuple[MeasuredAnswer, ...]:
        """Measurements at the first point of configs without a profile, which cannot be compared with the others."""
        first = self.measured[0]
        if not len(first.rows):
            return ()
        return tuple(m for row, m in zip(first.rows, first.measured, strict=True) if row not in self.rows)

    @property
    def sampled_blocks(self) -> tuple[int, int]:
        """Fewest and most emulated blocks of the first launch over the configs; 0 for probed profiles."""
        if not self.table.kernel.sampled:
            return 0, 0
        profiles = self.table.launches[0].profiles
        blocks = profiles.counts[:, profiles.metrics.index("blocks.sampled"), 0]
        return int(blocks.min()), int(blocks.max())


class KernelCosts:
    """Configs of one kernel on all problems; arrays begin with those of the first problem."""

    def __init__(
        self,
        costs: Any,
        number: int,
        table: StaticTable,
        on_problems: Sequence[ProblemSpace],
        measured: tuple[MeasuredRows, ...],
        start: int,
    ) -> None:
        self.table = table
        self.estimated, self.ends, self.heuristics, counts = costs.kernels[number]
        """Estimated rows of the space; start of each problem's rows, then the total; position of the occupancy
        heuristic's pick for each problem, None if no config can run it."""
        self.runnable = [
            RunnableConfigs(table, on_problem, measured, costs, number, problem, count)
            for problem, (on_problem, count) in enumerate(zip(on_problems, counts, strict=True))
        ]
        self.part = slice(start, start + len(self.estimated))
        """Slice of `SpaceCosts.limited` that belongs to the kernel."""
        own = costs.nominal[:, self.part], costs.longest[:, self.part]
        self.prediction = Prediction(table, on_problems[0], self.estimated, *own, costs, number)
        """The analytical model's nominal costs of `estimated`."""


class SpaceCosts:
    """Costs of the configs of all kernels on all problems; C candidates, kernel after kernel."""

    def __init__(self, space: Space, problems: Sequence[Problem], points: Sequence[OperatingPoint]) -> None:
        self.points = points
        self._power = power = space.tables[0].power
        on_problems, measured, parts = [], [], []
        for table in space.tables:
            here = [table.space.at(problem) for problem in problems]
            rows = measured_rows(table.space, here[0], table.gpu, space.evidence, points)
            on_problems.append(here)
            measured.append(rows)
            parts.append(_part(table, here, rows))
        most = 0 if space.whole else SHORTLIST
        costs = costs_in_engine(parts, power.setting(points[:1]), len(points), most)
        self.kernels: list[KernelCosts] = []
        """Costs of each table's kernel, in order."""
        start = 0
        for number, table in enumerate(space.tables):
            kernel = KernelCosts(costs, number, table, on_problems[number], measured[number], start)
            start = kernel.part.stop
            self.kernels.append(kernel)
        self.costed = [kernel for kernel in self.kernels if len(kernel.estimated)]
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


def _part(table: StaticTable, on_problems: Sequence[ProblemSpace], measured: Sequence[MeasuredRows]) -> Part:
    """Return a kernel as the engine's costs take it; measured: rows at each operating point, on the only problem."""
    able = ran = None
    if measured[0] is not NOTHING:
        ran = np.unique(np.concatenate([rows.rows for rows in measured]))
        able = table.able_configs(on_problems[0], ran)
        able[measured[0].failed] = False
    epilogues = finishing(table, [here.problem for here in on_problems])
    return table.plan(on_problems[0]), [here.in_engine for here in on_problems], None, able, ran, epilogues


def costs(space: Space, problems: Sequence[Problem], points: Sequence[OperatingPoint]) -> SpaceCosts:
    """Estimate the configs of a space on problems with the analytical model.

    Costs are complete at the first operating point. `SpaceCosts.sweep` adds the other points, for all candidates or
    for some.

    Args:
        space: the kernels.
        problems: problems with the op, data type and layout of the space; at least one.
        points: operating points; at least one.
    """
    return SpaceCosts(space, problems, points)


def promising_of_each(costs: Sequence[Array], starts: Sequence[int], count: int) -> Array:
    """Return which candidates of each problem are promising: half by lowest latency, half by lowest energy, bool (C,).

    Args:
        costs: latency and energy, (C,) each.
        starts: position of each problem's first candidate, then C.
        count: maximum number of candidates per problem.
    """
    chosen = np.empty(len(costs[0]), dtype=bool)
    query.promising(*costs, starts, count, chosen)
    return chosen
