"""How much the shortlist of a query loses against estimating the whole space, on random problems.

    python tools/check_shortlist.py [--problems 500]

For each problem: latency and energy of the best of the shortlist over those of the best of all configs.
"""

import argparse
import random
import sys

from bench_query import shapes

from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Recommender
from kernrec.recommender.candidate_set import candidate_set
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.store import Evidence

GPUS = ("t4", "a100", "rtx3090", "rtx4090", "h200", "b200", "rtx5070")


def main() -> int:
    """Prints the worst and the share of problems without loss, for each op."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=500, help="problems per op")
    count = parser.parse_args().problems
    draw = random.Random(2)
    recommender = Recommender([])
    for op in ("matmul", "conv2d"):
        losses = [loss(recommender, op, draw.choice(GPUS), dims) for dims in shapes(op, count)]
        for cost, values in zip(("latency", "energy"), zip(*losses, strict=True), strict=True):
            none = sum(value <= 1.0 + 1e-9 for value in values)
            print(f"{op:8} {cost:8} worst {max(values):.4f}, no loss on {none} of {count} problems")
    return 0


def loss(recommender: Recommender, op: str, name: str, dims: dict[str, int]) -> tuple[float, float]:
    """Best latency and energy of the shortlist over the best of all."""
    problem, gpu = find_op(op).problem(None, None, **dims), find_gpu(name)
    tables = recommender.context.tables(problem, gpu)
    short, full = (
        candidate_set(tables, problem, [DEFAULT_POINT], Evidence(), whole_space=whole) for whole in (False, True)
    )
    return (
        float(short.latency_s.min() / full.latency_s.min()),
        float(short.energy_j.min() / full.energy_j.min()),
    )


if __name__ == "__main__":
    sys.exit(main())
