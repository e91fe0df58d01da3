"""How long training takes, and how well the intervals hold, on simulated rows.

    python tools/bench_training.py [--rows 200000] [--threads 2]

The rows are simulated, and stand for nothing but their number and their columns: random facts of candidates, and a
device that takes 1.4 times the prior's latency, a fifth more for each stage, with 5 % of noise. Prints the time of
`train` with its cross-validation (aim: 2 minutes for 200,000 rows on 2 cores), and the coverage on fresh problems.
Exits 1 when an aim is missed.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "model"))
from groups import simulated_groups  # type: ignore[import-not-found]

from kernrec.model import scores
from kernrec.model.dataset import Dataset
from kernrec.model.learner import Settings, train

AIM_S = 120.0
ROWS_A_PROBLEM = 500


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    problems = max(given.rows // ROWS_A_PROBLEM, 10)
    data = Dataset(tuple(simulated_groups(problems, ROWS_A_PROBLEM, noise=0.05)))
    print(f"simulated: {len(data)} rows of {problems} problems, {data.matrix.shape[1]} features")
    start, busy = time.perf_counter(), time.process_time()
    model = train(data, Settings(threads=given.threads))
    seconds, processor_s = time.perf_counter() - start, time.process_time() - busy
    trees = {head: forest.trees for head, forest in model.forests.items()}
    print(f"train: {seconds:.1f} s ({processor_s:.1f} s of processor) with {given.threads} threads; trees {trees}")
    inside, widths = [], []
    for group in simulated_groups(40, 100, noise=0.05, seed=1):
        ratios, distance = model.log_ratio(model.rows(group.facts))
        low, high = model.intervals["latency"]["*"].around(group.facts.latency_s * np.exp(ratios["latency"]), distance)
        inside.append(scores.coverage(group.latency_s, low, high))
        widths.append(scores.mean_width(low, high))
    print(f"90 % interval on 40 fresh simulated problems: coverage {np.mean(inside):.3f}, width {np.mean(widths):.3f}")
    return int(seconds > AIM_S)


if __name__ == "__main__":
    sys.exit(main())
