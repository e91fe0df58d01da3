"""How much the shortlist of a query loses against estimating the whole space, on random problems.

For each problem: latency and energy of the best of the shortlist over those of the best of all configs.
"""

import random

import numpy as np
from benchmarks.query import shapes
from front import Table

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.rank import candidate_set
from kernrec.store import Evidence

GPUS = ("t4", "a100", "rtx3090", "rtx4090", "h200", "b200", "rtx5070")


def run(problems: int = 500) -> None:
    """Print the worst loss and the share of problems without one, for each op and cost."""
    draw, recommender, table = random.Random(2), Recommender([]), Table()
    for op in ("matmul", "conv2d"):
        losses = []
        for dims in shapes(op, problems):
            problem, gpu = find_op(op).problem(None, None, **dims), find_gpu(draw.choice(GPUS))
            tables = recommender.context.tables(problem, gpu)
            short, full = (
                candidate_set(tables, problem, [DEFAULT_POINT], Evidence(), whole_space=whole)
                for whole in (False, True)
            )
            losses.append([short.latency_s.min() / full.latency_s.min(), short.energy_j.min() / full.energy_j.min()])
        for cost, loss in zip(("latency", "energy"), np.array(losses).T, strict=True):
            none = f"{(loss <= 1.0 + 1e-9).sum()} of {problems}"
            table.row({"op": op, "cost": cost, "worst": f"{loss.max():.4f}", "without loss": none})
