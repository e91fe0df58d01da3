"""How often the config with the most resident warps is also the one expected to be best, kernel by kernel.

For each kernel of datasets/kernels a random sample of its configs is analyzed (the whole space with --configs 0); for
each kernel of the library, all that its spec leaves of the first layer of a workload set that it can run. Printed is
what the occupancy heuristic's choice costs against the best of the same kernel, in latency and energy, its rank in
latency, and the rank correlation of occupancy with either; at the end, in how many cases the choice is within 5 % of
the best. All of it is predicted, on no GPU.
"""

import random
from collections.abc import Iterator

import numpy as np
from front import ROOT, Table

from kernrec.gpu import GPU, find_gpu
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, Space, all_kernels
from kernrec.op import Problem
from kernrec.op.workload import workload, workloads
from kernrec.profile.profile_target import ProfileFailure, ProfileTarget
from kernrec.profile.profile_user_kernel import profile_configs
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.context import Context
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.recommender.rank import candidate_set
from kernrec.store import Database, Evidence, ProfileRow
from kernrec.training.scores import NEAR, rank_correlation

FOLDER = ROOT / "datasets" / "kernels"


def run(configs: int = 60, gpus: str = "rtx4090,a100,t4", processes: int = 2, library: bool = True) -> None:
    """Print a line for each kernel and GPU, and what they come to."""
    table, slower, more_energy, rhos = Table(), [], [], []
    for candidates in cases([find_gpu(name) for name in gpus.split(",")], configs, processes, library):
        kernel, latency, energy = candidates.kernels[0], candidates.latency_s[0], candidates.energy_j[0]
        pick, count = kernel.heuristic, len(latency)
        warps = np.array([kernel.table.occupancy(kernel.runnable.on_problem, int(row)) for row in kernel.rows])
        slower.append(float(latency[pick] / latency.min() - 1))
        more_energy.append(float(energy[pick] / energy.min() - 1))
        rhos.append((rank_correlation(warps, -latency), rank_correlation(warps, -energy)))
        table.row({
            "kernel": kernel.table.kernel.name, "GPU": candidates.gpu.name, "configs": count,
            "slower by": f"{slower[-1]:+.0%}", "more energy": f"{more_energy[-1]:+.0%}",
            "rank (time)": f"{(latency < latency[pick]).sum() + 1} of {count}",
            "rho with speed": f"{rhos[-1][0]:+.2f}", "with frugality": f"{rhos[-1][1]:+.2f}",
            "problem": candidates.problem.key,
        })  # fmt: skip
    for name, excess in (("slower", np.array(slower)), ("more energy", np.array(more_energy))):
        print(
            f"{name}: within {NEAR:.0%} of the best in {(excess <= NEAR).sum()} of {len(excess)} cases,"
            f" median {np.median(excess):+.0%}, most {excess.max():+.0%}"
        )
    speed, frugality = np.median(rhos, axis=0)
    print(f"median rank correlation of occupancy: {speed:+.2f} with speed, {frugality:+.2f} with frugality")


def cases(gpus: list[GPU], configs: int, processes: int, library: bool) -> Iterator[CandidateSet]:
    """Every kernel on every GPU that it runs on, with predicted costs."""
    for path in sorted(FOLDER.glob("*.json")):
        kernel, _ = load_t1(path)
        for gpu in gpus:
            yield sampled(kernel, gpu, configs, processes)
    context = Context([])
    for kernel in all_kernels() if library else ():
        for gpu in gpus:
            if candidates := first_layer(kernel, gpu, context):
                yield candidates


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
    with Database.memory() as database:
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
    for name in workloads():
        for layer in workload(name).layers_of(kernel.op, dtype, layout):
            candidates = estimated(context.kernel_table(kernel, layer.problem, gpu), layer.problem)
            if candidates.kernels:  # some of its configs run this one
                return candidates
    return None
