"""Estimate the costs of configs on problems at operating points with the analytical model.

    SpaceCosts(space, problems, points)     for a single problem, pass a list with one element

Every answer starts with `SpaceCosts`, which evaluates static tables. `kernrec.recommender.rank` corrects it with
trained models and replaces predictions with measurements.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter

import numpy as np

from kernrec.kernel import ProblemSpace
from kernrec.model.prior.launch_costs import LimitedCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.measured_rows import NOTHING, measured_rows
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import Part, Prediction, costs_in_engine, finishing
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Evidence
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray
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
