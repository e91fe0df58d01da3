"""Estimate the costs of configs on problems at operating points with the analytical model.

    costs(space, problems, points)     one problem is a list of one

Every answer calls `costs`. It evaluates static tables. `kernrec.recommender.rank` corrects its costs with trained
models and replaces them with measurements.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.kernel.many_problems import ManyProblems, OnProblems
from kernrec.model.prior.constants import CAPPED
from kernrec.model.prior.launch_costs import LIMITED, LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.costs import promising
from kernrec.recommender.estimate.measured_rows import NOTHING, MeasuredRows, measured_rows
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import Prediction, predict_all
from kernrec.recommender.estimate.shortlist import SHORTLIST, quick_costs
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence, MeasuredAnswer
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray


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
    rows: Array
    """Rows of the space, ascending, without configs that failed in measurements."""
    unprofiled: tuple[MeasuredAnswer, ...] = ()
    """Measurements at the first point of configs without a profile, which cannot be compared with the others."""

    @classmethod
    def of(
        cls, table: StaticTable, problem: Problem, points: Sequence[OperatingPoint], evidence: Evidence
    ) -> "RunnableConfigs":
        """Return the runnable configs of a table, without those that failed according to the database."""
        on_problem = table.space.at(problem)
        measured = measured_rows(table.space, on_problem, table.gpu, evidence, points)
        first = measured[0]
        if first is NOTHING:
            return cls(table, on_problem, measured, table.runnable(on_problem))
        everywhere = first.rows
        if any(len(other.rows) for other in measured[1:]):
            everywhere = np.unique(np.concatenate([m.rows for m in measured]))
        rows = table.runnable(on_problem, everywhere)
        unprofiled = [m for row, m in zip(first.rows, first.measured, strict=True) if row not in rows]
        if len(first.failed):
            rows = np.setdiff1d(rows, first.failed, assume_unique=True)
        return cls(table, on_problem, measured, rows, tuple(unprofiled))

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

    prediction: Prediction
    """The analytical model's nominal costs of `estimated`; missing if no config can run any problem."""
    part: slice
    """Slice of `SpaceCosts.limited` that belongs to the kernel."""

    def __init__(
        self, space: Space, table: StaticTable, problems: Sequence[Problem], points: Sequence[OperatingPoint]
    ) -> None:
        self.table = table
        self.on_problems: OnProblems
        if len(problems) == 1:
            runnable = RunnableConfigs.of(table, problems[0], points, space.evidence)
            self.on_problems, self.runnable, self.rows = runnable.on_problem, [runnable], runnable.rows
            self.starts = [0, len(self.rows)]
        else:
            self.on_problems = many = ManyProblems(table.space, problems)
            self.rows = (many.valid & table.able).ravel().nonzero()[0]
            self.starts = self.rows.searchsorted(np.arange(len(problems) + 1) * len(table.space)).tolist()
            configs, nothing = many.configs(self.rows), (NOTHING,) * len(points)
            self.runnable = [
                RunnableConfigs(table, alone, nothing, configs[start:end])
                for alone, (start, end) in zip(many.each, pairwise(self.starts), strict=True)
            ]
        self.estimated, self.ends, self.heuristics = self.rows, self.starts, list[int | None]([None] * len(problems))
        if len(self.rows):
            self._choose(space.whole)

    def _choose(self, whole: bool) -> None:
        """Select the rows to estimate: promising and measured ones, and the occupancy heuristic's pick.

        Set `estimated`, `ends` and `heuristics`. `ends` contains the start of each problem's estimated rows, then the
        total.
        `heuristics` contains the position of the heuristic's pick for each problem, None if no config can run the
        problem.
        """
        score = self.table.geometry(self.on_problems, 0).occupancy_score.take(self.on_problems.configs(self.rows))
        picks = [
            start + int(score[start:end].argmax()) if start < end else None for start, end in pairwise(self.starts)
        ]
        counts = np.diff(self.starts)
        if not whole and counts.max() > SHORTLIST:
            large = np.repeat(counts > SHORTLIST, counts)
            some = self.rows if large.all() else self.rows[large]
            starts = list(accumulate(counts[counts > SHORTLIST].tolist(), initial=0))
            chosen = ~large
            chosen[large] = promising_of_each(quick_costs(self.table, self.on_problems, some), starts, SHORTLIST)
            chosen[[pick for pick in picks if pick is not None]] = True
            for measured in self.runnable[0].measured:
                chosen[measured.at(self.rows)[0]] = True
            self.estimated = self.rows[chosen]
            places = chosen.cumsum()
            self.ends = [0 if start == 0 else int(places[start - 1]) for start in self.starts]
            picks = [None if pick is None else int(places[pick]) - 1 for pick in picks]
        self.heuristics = [None if p is None else p - start for p, start in zip(picks, self.ends[:-1], strict=True)]


class SpaceCosts:
    """Costs of the configs of all kernels on all problems; C candidates, kernel after kernel."""

    limited: LimitedCosts
    """Latency, power and energy, (points, C); missing if there is no candidate."""

    def __init__(self, space: Space, problems: Sequence[Problem], points: Sequence[OperatingPoint]) -> None:
        self.points = points
        self.kernels = [KernelCosts(space, table, problems, points) for table in space.tables]
        """Costs of each table's kernel, in order."""
        self.costed = [kernel for kernel in self.kernels if len(kernel.rows)]
        """Kernels with at least one candidate."""
        predictions, self._nominal = predict_all(
            [(each.table, each.on_problems, each.estimated) for each in self.costed]
        )
        start = 0
        for kernel, prediction in zip(self.costed, predictions, strict=True):
            kernel.prediction, kernel.part = prediction, slice(start, start + len(kernel.estimated))
            start = kernel.part.stop
        if start:
            costs = np.empty((LIMITED, len(points), start))
            # Candidates that are not swept have infinite costs at the other points.
            costs[:4, 1:] = np.inf
            costs[-1, 1:] = CAPPED
            self.limited = LimitedCosts(costs, self._nominal[4])
            self._limit(np.arange(start), slice(0, 1))

    def sweep(self, swept: Sequence[Array | None]) -> None:
        """Fill in the costs at all operating points except the first.

        Args:
            swept: for each of `costed`, the positions of the candidates to estimate; None for all.
        """
        positions = [
            np.arange(kernel.part.start, kernel.part.stop) if some is None else some + kernel.part.start
            for some, kernel in zip(swept, self.costed, strict=True)
        ]
        self._limit(np.concatenate(positions), slice(1, None))

    def _limit(self, positions: Array, some: slice) -> None:
        power = self.costed[0].table.power
        power.limit_some(self._nominal, positions, self.points[some], self.limited.costs[:, some])


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
    """Return which candidates of each problem are `promising`, bool (C,).

    Args:
        costs: latency and energy, (C,) each.
        starts: position of each problem's first candidate, then C.
        count: maximum number of candidates per problem.
    """
    chosen = np.zeros(len(costs[0]), dtype=bool)
    for start, end in pairwise(starts):
        if end - start <= count:
            chosen[start:end] = True
        else:
            chosen[start + promising(costs[0][start:end], costs[1][start:end], count)] = True
    return chosen
