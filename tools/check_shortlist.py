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
    short: list[tuple[float, float]] = []
    full: list[tuple[float, float]] = []
    for group in recommender.candidates_for(problem, gpu):
        at = group.space.at(problem)
        rows = group.rows(at)
        if not len(rows):
            continue
        for chosen, found in ((group.shortlist(at, rows), short), (rows, full)):
            limited = group.apply_power_limit(group.predict(problem, at, chosen))
            found.append((float(limited.latency_s.min()), float(limited.energy_j.min())))
    return (
        min(s for s, _ in short) / min(s for s, _ in full),
        min(j for _, j in short) / min(j for _, j in full),
    )


if __name__ == "__main__":
    sys.exit(main())
