"""How long the analysis of a user's kernel takes, cold and warm, and how much memory.

    python tools/bench_analyze.py [--kernel stencil2d] [--configs 100] [--processes 2] [--gpu rtx4090]
    python tools/bench_analyze.py --configs 5000          # the whole, stencil2d with more sizes of block

A random sample of the kernel's configs is compiled with an empty cache and emulated; stencil2d gets blocks of every
eighth width where more configs are asked for than it has. The time of 5,000 configs is that of the sample scaled up: by
the clock, and by CPU time spread over the processes, which is what an idle machine would take. Then everything is asked
again. Of a sample the whole space is answered for, from a database in which its profiles stand for all. Memory is the
largest resident set of this process and of its largest child; there are one compiling and one emulating child for each
process asked for.
"""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from kernrec.gpu import find_gpu
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, Space
from kernrec.op import Problem
from kernrec.recommender.analyze_kernel import ProfilingOptions, analyze
from kernrec.store import Database

FOLDER = Path(__file__).resolve().parents[1] / "datasets" / "kernels"
SIZE, COLD_S, WARM_S, BYTES = 5000, 1200.0, 10.0, 1.5e9


def main() -> int:
    """Prints the figures; 1 when the scaled time or the memory is over its aim."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernel", default="stencil2d", help="a kernel of datasets/kernels")
    parser.add_argument("--configs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gpu", default="rtx4090")
    arguments = parser.parse_args()
    kernel, _ = load_t1(FOLDER / f"{arguments.kernel}.json")
    gpu, problem = find_gpu(arguments.gpu), kernel.definition.problem()
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows.tolist()
    if len(rows) < arguments.configs and arguments.kernel == "stencil2d":
        kernel = finer()
        problem = kernel.definition.problem()
        space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
        rows = space.at(problem).rows.tolist()
    chosen = set(random.Random(1).sample(rows, min(arguments.configs, len(rows))))
    only = [space.config(row) for row in sorted(chosen)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERNREC_CACHE"] = folder  # nothing compiled before counts
        path = Path(folder, "own.duckdb")
        before = cpu_s()
        cold = analyze(kernel, problem, gpu, path, None, ProfilingOptions(processes=arguments.processes, only=only))
        spent = cpu_s() - before
        whole = len(only) >= SIZE
        if not whole:
            spread(kernel, problem, space, path)
        start, before = time.perf_counter(), cpu_s()
        options = ProfilingOptions(processes=arguments.processes, only=only if whole else None)
        warm = analyze(kernel, problem, gpu, path, None, options)
        warm_s, warm_cpu_s = time.perf_counter() - start, cpu_s() - before
    scale = SIZE / len(only)
    idle_s = spent / arguments.processes * scale
    own, child = (resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    memory = own + 2 * arguments.processes * child
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{kernel.name}: {len(only)} of {len(rows)} configs, {arguments.processes} processes")
    print(f"{cpus} CPUs at a load of {load:.1f}")
    print(f"cold: {cold.seconds:.1f} s by the clock, {spent:.1f} s of CPU ({spent / len(only):.3f} s a config)")
    print(f"  for {SIZE} configs: {cold.seconds * scale / 60:.1f} min, on idle CPUs {idle_s / 60:.1f} min")
    print(f"  {cold.profiled} profiled, {len(cold.failures)} failed")
    answered = warm.cached + len(warm.failures)
    print(f"warm: {warm_s:.2f} s, {warm_cpu_s:.2f} s of CPU for {answered} configs")
    print(f"memory: {own / 1e6:.0f} MB, the largest child {child / 1e6:.0f} MB, together at most {memory / 1e6:.0f} MB")
    print(f"aims: {COLD_S / 60:.0f} min, {WARM_S:.0f} s for {SIZE} configs, {BYTES / 1e6:.0f} MB")
    return int(idle_s > COLD_S or warm_s * SIZE / answered > WARM_S or memory > BYTES)


def finer() -> Kernel:
    """stencil2d with every multiple of eight as the width of a block: over 5,000 configs."""
    data = json.loads((FOLDER / "stencil2d.json").read_text(encoding="utf-8"))
    data["ConfigurationSpace"]["TuningParameters"][0]["Values"] = "list(range(8, 129, 8))"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stencil2d.json")
        path.write_text(json.dumps(data), encoding="utf-8")
        return load_t1(path, FOLDER / "stencil2d.cu")[0]


def spread(kernel: Kernel, problem: Problem, space: Space, path: Path) -> None:
    """Gives every config of the space one of the profiles in a database, so that all are known."""
    with Database.open(path, read_only=False) as database:
        rows = [row for row in database.rows("profile") if row["kernel"] == kernel.name]
        known = {row["code_key"] for row in rows}
        for row in rows:
            del row["profile_id"]
        keys = [key for key in space.configs_on(problem).keys if key not in known]
        database.add("profile", [{**rows[i % len(rows)], "code_key": key} for i, key in enumerate(keys)])


def cpu_s() -> float:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


if __name__ == "__main__":
    sys.exit(main())
