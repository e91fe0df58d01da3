"""Estimate time and energy of configs with the analytical model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel import ProblemSpace
from kernrec.kernel.space import arguments
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.launch_time import epilogue
from kernrec.op import Problem
from kernrec.recommender.estimate.static_table import Array, StaticTable
from kernrec.util.engine import query

Part = tuple[Any, list[Any], Array | None, Array | None, Array | None, Array | None]
"""Arguments of the engine's `Costs` for one kernel, in this order: plan, problems, rows to estimate (None for all
runnable rows), mask of runnable rows (None for the plan's mask), rows that must be estimated, and the costs of each
problem's epilogue, (problems, 4)."""


def predict(table: StaticTable, on_problem: ProblemSpace, rows: Array, limit_w: float | None = None) -> LimitedCosts:
    """Predict the costs of the configs in `rows` on one problem, at a power limit in watts (None for the TDP)."""
    nominal = NominalCosts(*costs_of_rows(table, on_problem, rows).nominal)
    return table.power.apply_power_limit(nominal, limit_w)


def costs_of_rows(table: StaticTable, on_problem: ProblemSpace, rows: Array) -> Any:
    """Return the engine's `Costs` of the configs in `rows` of a kernel's space, on one problem."""
    epilogues = None if table.kernel.sampled else finishing(table, [on_problem.problem])
    return costs_in_engine(
        [(table.plan(on_problem.problem), [arguments(on_problem.problem)], rows, None, None, epilogues)]
    )


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
