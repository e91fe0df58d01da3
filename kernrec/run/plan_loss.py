"""The loss of a plan: the objective of the variant that it names, against that of the best config of each shape."""

from random import Random

import numpy as np

from kernrec.errors import UsageError
from kernrec.op import Problem
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.run.plan import Plan, Variant
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class PlanLoss:
    """How far the objective is above that of the best config, over random shapes; fractions, by prediction."""

    mean: float
    p95: float
    worst: float
    shapes: int
    """How many shapes were drawn."""
    uncovered: int
    """Those that the variant of their range cannot run: the engine is asked about them, and nothing is lost."""
    ranges: int

    def __str__(self) -> str:
        unplanned = f"; {self.uncovered} fit no range and are asked about one by one" if self.uncovered else ""
        return (
            f"{self.ranges} ranges lose {self.mean * 100:.1f} % on average against the best config of each shape,"
            f" {self.p95 * 100:.1f} % at the 95th percentile, {self.worst * 100:.1f} % at worst, by prediction over"
            f" {self.shapes} random shapes{unplanned}"
        )


def plan_loss(recommender: Recommender, plan: Plan, shapes: int = 100, seed: int = 0) -> PlanLoss:
    """The loss of a plan on `shapes` shapes drawn from its ranges, with replacement, log-uniform in each dimension."""
    if shapes < 1:
        raise UsageError(f"shapes is {shapes}; at least 1 is accepted")
    draw, losses, unplanned = Random(seed), [], 0
    for _ in range(shapes):
        values = {}
        for name, accepted in plan.shapes.ranged.items():
            wanted = accepted[0] * (accepted[-1] / accepted[0]) ** draw.random()
            values[name] = accepted[min(int(np.searchsorted(accepted, wanted)), len(accepted) - 1)]
        loss = _loss(recommender, plan, values)
        unplanned += loss is None
        losses.append(loss or 0.0)
    spread = np.array(losses)
    return PlanLoss(
        float(spread.mean()), float(np.quantile(spread, 0.95)), float(spread.max()), shapes, unplanned, len(plan.rows)
    )


def _loss(recommender: Recommender, plan: Plan, values: dict[str, int]) -> float | None:
    """The loss on one shape; None where the variant of its range does not fit."""
    problem: Problem = plan.shapes.problem(values)
    row = plan.row(values)
    if row is None or not row.variant.fits(problem, plan.gpu):
        return None
    candidates = recommender.candidates(problem, plan.gpu, (plan.query.point,))
    every = plan.query.objective.value_of(candidates.latency_s[0], candidates.energy_j[0])
    # Only what a plan may name: a kernel that it leaves out is no loss of its ranges.
    planned = {row.variant.kernel.name for row in plan.rows}
    able = own = np.inf
    for number, kernel in enumerate(candidates.kernels):
        spec = kernel.table.kernel
        if spec.triton is not None and spec.name not in planned:
            continue
        here = every[candidates.starts[number] : candidates.starts[number + 1]]
        able = min(able, float(here.min()))
        if spec.name == row.variant.kernel.name:
            among = np.flatnonzero(kernel.rows == kernel.table.space.find([row.variant.config])[0])
            own = float(here[among[0]]) if len(among) else np.inf
    if own == np.inf:  # not among the most promising, which alone are estimated
        own = _estimated(recommender, plan, problem, row.variant)
    return max(own / able - 1, 0.0)


def _estimated(recommender: Recommender, plan: Plan, problem: Problem, variant: Variant) -> float:
    """The objective of any config of a kernel."""
    candidates = recommender.kernel_candidates(variant.kernel, problem, plan.gpu, plan.query)
    limit_w = plan.query.power_limit_w
    point = 0 if limit_w is None else candidates.points.index(OperatingPoint(limit_w))
    (kernel,) = candidates.kernels
    (place,) = np.flatnonzero(kernel.rows == kernel.table.space.find([variant.config])[0])
    latency, energy = candidates.latency_s[point], candidates.energy_j[point]
    return float(plan.query.objective.value_of(latency, energy)[place])
