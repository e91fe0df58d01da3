"""How often the config with the most resident warps is also the one expected to be best, kernel by kernel.

    python tools/compare_occupancy.py [--configs 60] [--gpus rtx4090,a100,t4]

For each kernel of datasets/kernels a random sample of its configs is analysed (the whole space with --configs 0).
Printed is what the occupancy heuristic's choice costs against the best of the sample, in latency and energy, its rank,
and the rank correlation of occupancy with either. All of it is predicted, on no GPU.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from kernrec.compile.own import Failure, Target, sample_configs
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, Space
from kernrec.recommender.own import Ranked
from kernrec.store import Database, ProfileRow

FOLDER = Path(__file__).resolve().parents[1] / "datasets" / "kernels"


def main() -> int:
    """Prints a line for each kernel and GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configs", type=int, default=60, help="configs per kernel; 0: all")
    parser.add_argument("--gpus", default="rtx4090,a100,t4")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    print("kernel      GPU       configs  slower by  more energy  rank (time)  rho occupancy~speed  ~frugality")
    for path in sorted(FOLDER.glob("*.json")):
        kernel, _ = load_t1(path)
        for name in arguments.gpus.split(","):
            print(line(kernel, find_gpu(name), arguments.configs, arguments.processes))
    return 0


def line(kernel: Kernel, gpu: GPU, count: int, processes: int) -> str:
    """The agreement of occupancy with the estimates, as one line of the table."""
    problem = kernel.definition.problem()
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows.tolist()
    chosen = random.Random(kernel.name).sample(rows, min(count, len(rows)) if count else len(rows))
    found: list[ProfileRow] = []
    target = Target(problem, gpu.sm, FOLDER)
    for result in sample_configs(kernel, [space.config(row) for row in chosen], target, processes):
        if not isinstance(result, Failure):
            found += result[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sample.duckdb")
        with Database.open(path, read_only=False, create=True) as database:
            database.add_profiles(found)
            profiles = database.profiles(kernel.name, kernel.hash, gpu.sm)
    ranked = Ranked(kernel, problem, gpu, profiles, [])
    latency, energy = ranked.latency_s[0], ranked.energy_j[0]
    occupancy = np.array([ranked.group.occupancy(ranked.at, int(row)) for row in ranked.rows])
    pick = ranked.heuristic
    rank = int((latency < latency[pick]).sum()) + 1
    return (
        f"{kernel.name:11} {gpu.name:9} {len(latency):7}  {latency[pick] / latency.min() - 1:+9.0%}"
        f"  {energy[pick] / energy.min() - 1:+11.0%}  {rank:6} of {len(latency):<4}"
        f" {correlation(occupancy, -latency):+16.2f}  {correlation(occupancy, -energy):+14.2f}"
    )


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation; 0 where one side is constant."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, index, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[index]  # ties share their mean rank

    a, b = ranks(one), ranks(other)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


if __name__ == "__main__":
    sys.exit(main())
