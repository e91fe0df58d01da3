"""How often the config with the most resident warps is also the one expected to be best, kernel by kernel.

    python tools/compare_occupancy.py [--configs 60] [--gpus rtx4090,a100,t4] [--no-library]

For each kernel of datasets/kernels a random sample of its configs is analyzed (the whole space with --configs 0); for
each kernel of the library, all that its spec leaves of the first layer of a workload set that it can run. Printed is
what the occupancy heuristic's choice costs against the best of the same kernel, in latency and energy, its rank in
latency, and the rank correlation of occupancy with either; at the end, in how many cases the choice is within 5 % of
the best. All of it is predicted, on no GPU.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernrec.gpu import GPU, find_gpu
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, Space, all_kernels
from kernrec.op import Problem
from kernrec.op.workload import workload, workloads
from kernrec.profile.profile_user_kernel import ProfileFailure, ProfileTarget, profile_configs
from kernrec.recommender.candidate_set import CandidateSet, candidate_set
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import Database, Evidence, ProfileRow

FOLDER = Path(__file__).resolve().parents[1] / "datasets" / "kernels"
CLOSE = 0.05


@dataclass(frozen=True)
class Agreement:
    """The heuristic's choice against the best of `configs`: costs above it as fractions, its rank in latency, and the
    rank correlation of occupancy with speed and with frugality.
    """

    kernel: str
    problem: str
    gpu: str
    configs: int
    slower: float
    more_energy: float
    rank: int
    speed: float
    frugality: float

    def __str__(self) -> str:
        return (
            f"{self.kernel:26} {self.gpu:18} {self.configs:7}  {self.slower:+9.0%}  {self.more_energy:+11.0%}"
            f"  {self.rank:6} of {self.configs:<5} {self.speed:+15.2f}  {self.frugality:+14.2f}  {self.problem}"
        )


def main() -> int:
    """Prints a line for each kernel and GPU, and what they come to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configs", type=int, default=60, help="configs of each kernel of datasets/kernels; 0: all")
    parser.add_argument("--gpus", default="rtx4090,a100,t4")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-library", action="store_true", help="only the kernels of datasets/kernels")
    arguments = parser.parse_args()
    print(
        f"{'kernel':26} {'GPU':18} configs  slower by  more energy  rank (time)  rho occupancy~speed  ~frugality"
        "  problem"
    )
    agreements = []
    gpus = [find_gpu(name) for name in arguments.gpus.split(",")]
    for agreement in cases(gpus, arguments.configs, arguments.processes, not arguments.no_library):
        agreements.append(agreement)
        print(agreement, flush=True)
    for what in ("slower", "more_energy"):
        values = np.array([getattr(agreement, what) for agreement in agreements])
        print(
            f"{what.replace('_', ' ')}: within {CLOSE:.0%} of the best in {(values <= CLOSE).sum()} of {len(values)}"
            f" cases, median {np.median(values):+.0%}, most {values.max():+.0%}"
        )
    speed, frugality = (np.median([getattr(a, name) for a in agreements]) for name in ("speed", "frugality"))
    print(f"median rank correlation of occupancy: {speed:+.2f} with speed, {frugality:+.2f} with frugality")
    return 0


def cases(gpus: list[GPU], configs: int, processes: int, library: bool) -> Iterator[Agreement]:
    """Every kernel on every GPU that it runs on."""
    for path in sorted(FOLDER.glob("*.json")):
        kernel, _ = load_t1(path)
        for gpu in gpus:
            yield agreement_of(sampled(kernel, gpu, configs, processes))
    context = Context([])
    for kernel in all_kernels() if library else ():
        for gpu in gpus:
            if candidates := first_layer(kernel, gpu, context):
                yield agreement_of(candidates)


def sampled(kernel: Kernel, gpu: GPU, count: int, processes: int) -> CandidateSet:
    """A random sample of a user's kernel's configs, analyzed on its own problem."""
    problem = kernel.definition.problem()
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows.tolist()
    chosen = random.Random(kernel.name).sample(rows, min(count, len(rows)) if count else len(rows))
    profile_rows: list[ProfileRow] = []
    target = ProfileTarget(problem, gpu.sm, FOLDER)
    for result in profile_configs(kernel, [space.config(row) for row in chosen], target, processes):
        if not isinstance(result, ProfileFailure):
            profile_rows += result[1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sample.duckdb")
        with Database.open(path, read_only=False, create=True) as database:
            database.add_profiles(profile_rows)
            profiles = database.profiles(kernel.name, kernel.hash, gpu.sm)
    return estimated(StaticTable.of(kernel, problem, gpu, profiles), problem)


def estimated(table: StaticTable, problem: Problem) -> CandidateSet:
    """Every config of a kernel with its predicted costs."""
    return candidate_set([table], problem, [DEFAULT_POINT], Evidence(), whole_space=True)


def first_layer(kernel: Kernel, gpu: GPU, context: Context) -> CandidateSet | None:
    """A kernel of the library on the first layer of any workload set that it can run; None where there is none."""
    dtype, layout = kernel.dtypes[0], kernel.layouts[0]
    if not kernel.runs_on(dtype, gpu.sm):
        return None
    for problem in layers(kernel, dtype, layout):
        candidates = estimated(context.kernel_table(kernel, problem, gpu), problem)
        if candidates.kernels:  # some of its configs run this one
            return candidates
    return None


def layers(kernel: Kernel, dtype: str, layout: str) -> Iterator[Problem]:
    """What networks ask of a kernel's op."""
    for name in workloads():
        for layer in workload(name).layers_of(kernel.op, dtype, layout):
            yield layer.problem


def agreement_of(candidates: CandidateSet) -> Agreement:
    """Occupancy against the estimates."""
    kernel = candidates.kernels[0]
    latency, energy, pick = candidates.latency_s[0], candidates.energy_j[0], kernel.heuristic
    table = kernel.table
    occupancy = np.array([table.occupancy(kernel.runnable.on_problem, int(row)) for row in kernel.rows])
    return Agreement(
        kernel=table.kernel.name,
        problem=candidates.problem.key,
        gpu=candidates.gpu.name,
        configs=len(latency),
        slower=float(latency[pick] / latency.min() - 1),
        more_energy=float(energy[pick] / energy.min() - 1),
        rank=int((latency < latency[pick]).sum()) + 1,
        speed=correlation(occupancy, -latency),
        frugality=correlation(occupancy, -energy),
    )


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation; 0 where one side is constant."""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, index, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[index]  # ties share their mean rank

    a, b = ranks(first), ranks(second)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


if __name__ == "__main__":
    sys.exit(main())
