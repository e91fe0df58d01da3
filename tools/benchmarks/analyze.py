"""How long the analysis of a user's kernel takes, cold and warm, and how much memory.

A random sample of the kernel's configs is compiled with an empty cache and emulated; stencil2d gets blocks of every
eighth width where more configs are asked for than it has (`--configs 5000` is the whole). The time of 5,000 configs is
that of the sample scaled up: by the clock, and by CPU time spread over the processes, which is what an idle machine
would take. Then everything is asked again. Of a sample the whole space is answered for, from a database in which its
profiles stand for all. Memory is the largest resident set of this process and of its largest child; there are one
compiling and one emulating child for each process asked for. Exits 1 where the scaled time or the memory is over its
aim.
"""

import json
import os
import random
import resource
import tempfile
from pathlib import Path

from front import ROOT

from kernrec.gpu import find_gpu
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, Space
from kernrec.op import Problem
from kernrec.recommender.analyze.kernel import Analysis
from kernrec.recommender.analyze.kernel import analyze as analyze_kernel
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.store import Database

from .timing import peak_mb, spent

FOLDER = ROOT / "datasets" / "kernels"
SIZE, COLD_S, WARM_S, MOST_MB = 5000, 1200.0, 10.0, 1500.0


def run(kernel: str = "stencil2d", configs: int = 100, processes: int = 2, gpu: str = "rtx4090") -> int:
    """Print the figures of a kernel of datasets/kernels."""
    loaded, _ = load_t1(FOLDER / f"{kernel}.json")
    card, problem = find_gpu(gpu), loaded.definition.problem()
    space = Space(loaded, card.sm, card.limits, problem.dtype, problem.layout)
    if kernel == "stencil2d" and len(space.at(problem).rows) < configs:
        loaded = finer()
        problem = loaded.definition.problem()
        space = Space(loaded, card.sm, card.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows.tolist()
    only = [space.config(row) for row in sorted(random.Random(1).sample(rows, min(configs, len(rows))))]
    answers: list[Analysis] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERNREC_CACHE"] = folder  # nothing compiled before counts
        path = Path(folder, "own.duckdb")

        def ask(options: ProfilingOptions) -> None:
            answers.append(analyze_kernel(loaded, problem, card, path, None, options))

        cold = spent(lambda: ask(ProfilingOptions(processes=processes, only=only)))
        whole = len(only) >= SIZE
        if not whole:
            spread(loaded, problem, space, path)
        warm = spent(lambda: ask(ProfilingOptions(processes=processes, only=only if whole else None)))
    scale, (first, again) = SIZE / len(only), answers
    idle_s, answered = cold.cpu / processes * scale, again.cached + len(again.failures)
    own, child = peak_mb(), peak_mb(resource.RUSAGE_CHILDREN)
    memory = own + 2 * processes * child
    print(f"{loaded.name}: {len(only)} of {len(rows)} configs, {processes} processes")
    print(f"{len(os.sched_getaffinity(0))} CPUs at a load of {os.getloadavg()[0]:.1f}")
    print(f"cold: {first.seconds:.1f} s by the clock, {cold.cpu:.1f} s of CPU ({cold.cpu / len(only):.3f} s a config)")
    print(f"  for {SIZE} configs: {first.seconds * scale / 60:.1f} min, on idle CPUs {idle_s / 60:.1f} min")
    print(f"  {first.profiled} profiled, {len(first.failures)} failed")
    print(f"warm: {warm.clock:.2f} s, {warm.cpu:.2f} s of CPU for {answered} configs")
    print(f"memory: {own:.0f} MB, the largest child {child:.0f} MB, together at most {memory:.0f} MB")
    print(f"aims: {COLD_S / 60:.0f} min, {WARM_S:.0f} s for {SIZE} configs, {MOST_MB:.0f} MB")
    return int(idle_s > COLD_S or warm.clock * SIZE / answered > WARM_S or memory > MOST_MB)


def finer() -> Kernel:
    """stencil2d with every multiple of eight as the width of a block: over 5,000 configs."""
    data = json.loads((FOLDER / "stencil2d.json").read_text(encoding="utf-8"))
    data["ConfigurationSpace"]["TuningParameters"][0]["Values"] = "list(range(8, 129, 8))"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stencil2d.json")
        path.write_text(json.dumps(data), encoding="utf-8")
        return load_t1(path, FOLDER / "stencil2d.cu")[0]


def spread(kernel: Kernel, problem: Problem, space: Space, path: Path) -> None:
    """Give every config of the space one of the profiles in a database, so that all have one."""
    with Database.open(path, read_only=False) as database:
        rows = [row for row in database.rows("profile") if row["kernel"] == kernel.name]
        profiled = {row["code_key"] for row in rows}
        for row in rows:
            del row["profile_id"]
        keys = [key for key in space.configs_on(problem).keys if key not in profiled]
        database.add("profile", [{**rows[i % len(rows)], "code_key": key} for i, key in enumerate(keys)])
