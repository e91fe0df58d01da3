"""The estimates of one kernel's configs on many problems at once, as single answers have them one by one."""

from collections.abc import Sequence

import numpy as np

from kernrec.kernel.many_problems import ManyProblems
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.op import Problem
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.estimate.prediction import nominal_costs
from kernrec.recommender.estimate.shortlist import SHORTLIST, quick_costs
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.recommender.estimate.tables import Tables
from kernrec.util.light_dataclass import dataclass

ROWS = 1 << 15
"""Configs times problems that are laid side by side: more take longer, because columns leave the processor's cache."""


@dataclass(frozen=True, eq=False)
class ManyEstimates:
    """The candidates of one kernel on many problems, problem after problem; arrays (N,) unless said otherwise."""

    starts: Array
    """Where the candidates of each problem begin, and where those of the last one end; (problems + 1,)."""
    rows: Array
    """Row of the space."""
    latency_s: Array
    """At each operating point, (points, N); infinite where it is not estimated."""
    energy_j: Array
    power_w: Array


def estimate_many(
    table: StaticTable, problems: Sequence[Problem], points: Sequence[OperatingPoint], swept: int
) -> ManyEstimates | None:
    """The prior's estimates of a kernel's configs on problems.

    Args:
        table: of the kernel.
        problems: of one op, in the dtype and layout of the table; at most `ROWS` over the configs of the table.
        points: operating points.
        swept: candidates of a problem that are estimated at other points than the first.

    Returns:
        None where the kernel has to be asked problem by problem.
    """
    if (repeated := table.repeated(len(problems), problems[0])) is None:
        return None
    on_problems, width = ManyProblems(table.space, problems), len(table.space)
    rows = (on_problems.valid & table.profiled_and_fitting(problems[0])).ravel().nonzero()[0]
    rows = _shortlisted(repeated, on_problems, rows)
    starts = rows.searchsorted(np.arange(len(problems) + 1) * width)
    nominal, *_ = nominal_costs(Tables((repeated,)), [(0, on_problems, rows)])
    columns = np.full((3, len(points), len(rows)), np.inf)
    where: Array | slice = slice(None)
    for number, point in enumerate(points):
        costs = NominalCosts(*nominal[:, where])
        limited = table.power.apply_power_limit(costs, point.power_limit_w, point.clock_hz)
        columns[:, number, where] = limited.latency_s, limited.energy_j, limited.power_w
        if number == 0 and len(points) > 1:
            where = _promising(columns[:2, 0], starts, swept)
    return ManyEstimates(starts, rows % width, *columns)


def _shortlisted(table: StaticTable, on_problems: ManyProblems, rows: Array) -> Array:
    """The shortlist of each problem with too many configs, and what the occupancy heuristic picks of all of them."""
    starts = rows.searchsorted(np.arange(len(on_problems.problems) + 1) * len(on_problems.space))
    if not (np.diff(starts) > SHORTLIST).any():
        return rows
    costs = quick_costs(table, on_problems, rows)
    kept = np.zeros(len(rows), dtype=bool)
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if last - first <= SHORTLIST:
            kept[first:last] = True
            continue
        for cost in costs:
            kept[first + cost[first:last].argpartition(SHORTLIST // 2)[: SHORTLIST // 2]] = True
        kept[rows.searchsorted(table.occupancy_choice(on_problems, rows[first:last]))] = True
    return rows[kept]


def _promising(costs: Array, starts: Array, count: int) -> Array:
    """Positions of the candidates of each problem with the least latency and energy, half of `count` for each."""
    kept = np.zeros(costs.shape[1], dtype=bool)
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if last - first <= count:
            kept[first:last] = True
            continue
        for cost in costs:
            kept[first + cost[first:last].argpartition(count // 2)[: count // 2]] = True
    return kept.nonzero()[0]
