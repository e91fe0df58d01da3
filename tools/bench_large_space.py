"""How soon the analysis of a large space has a front as good as the whole space's: hotspot, some 80,000 configs.

    python tools/bench_large_space.py --sources FOLDER [--processes 2] [--limit 600] [--sample 300]

The kernel is benchmark_hub's (`tools/recorded_sets.py` says where from; --sources names the folder), its space without
the tunables of loop unrolling and launch bounds that multiply it, and with the shared memory that a block may have. The
front of all configs would take a day. So the reference is the best of all that were profiled and of a random sample of
the space (--sample), which is profiled after the search and not in its time; a better config that neither has seen is
not noticed. Times are by the clock, with an empty cache. The analysis is ended at --limit and judged as it is then.
Exits 1 where the front was not within 5 % of the reference after 600 s, 0 without the sources.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from recorded_sets import SETS, load_recorded_kernel

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, Space
from kernrec.kernel.expression import parse
from kernrec.kernel.spec import Tunable
from kernrec.op import Problem
from kernrec.profile.profile_user_kernel import Outcome, ProfileFailure, profile_configs
from kernrec.profile.sample_profile import ProfileTarget
from kernrec.recommender import Query, Recommender
from kernrec.recommender.analyze_kernel import ProfilingOptions, analyze
from kernrec.recommender.pareto import pareto_front

AIM_S, AIM = 600.0, 0.05
FIXED = {"blocks_per_sm": (0,)}
SHARED = (
    "(block_size_x * tile_size_x + 2 * temporal_tiling_factor) * (block_size_y * tile_size_y"
    " + 2 * temporal_tiling_factor) * (2 + sh_power) * 4 <= 49152"
)
Array = np.ndarray


class TimeUpError(Exception):
    """The analysis has taken as long as it may."""


class Timed:
    """Profiles configs as the analysis does by itself, and keeps when each was done."""

    def __init__(self, processes: int, limit_s: float) -> None:
        self._processes, self._limit_s = processes, limit_s
        self._start = time.perf_counter()
        self.done: list[tuple[float, Config]] = []
        self.failed = 0

    def __call__(self, kernel: Kernel, configs: Sequence[Config], target: ProfileTarget) -> Iterator[Outcome]:
        """Outcomes, until the time is up."""
        for outcome in profile_configs(kernel, configs, target, self._processes):
            now_s = time.perf_counter() - self._start
            if isinstance(outcome, ProfileFailure):
                self.failed += 1
            else:
                self.done += [(now_s, config) for config in outcome[0]]
            yield outcome
            if now_s > self._limit_s:
                raise TimeUpError


def main() -> int:
    """Print what the front was worth over time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, help="folder with the repositories of recorded kernels")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=AIM_S, help="seconds")
    parser.add_argument("--sample", type=int, default=300, help="random configs to compare with")
    arguments = parser.parse_args()
    try:
        if arguments.sources is None:
            raise UsageError("--sources names a folder with the kernel")
        kernel = hotspot(arguments.sources)
    except UsageError as error:
        print(f"nothing measured: {error}")
        return 0
    gpu, problem = find_gpu("rtx-a4000"), kernel.definition.problem()
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows
    print(f"hotspot: {len(rows)} configs, {arguments.processes} processes, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KERNREC_CACHE"] = folder
        database = Path(folder, "own.duckdb")
        timed = Timed(arguments.processes, arguments.limit)
        start, cpu = time.perf_counter(), cpu_s()
        left: list[tuple[float, int, int]] = []
        options = ProfilingOptions(
            processes=arguments.processes,
            profiles=timed,
            progress=lambda done, total: left.append((time.perf_counter() - start, done, total)),
            first_front=lambda answer, count: print(
                f"{time.perf_counter() - start:6.0f} s  first front, {count} configs", flush=True
            ),
        )
        try:
            analysis = analyze(kernel, problem, gpu, database, None, options)
            print(f"{analysis.seconds:6.0f} s  ended: {analysis.left_out} configs left out")
        except TimeUpError:
            maybe = max(0, left[-1][2] - left[-1][1])
            print(f"{time.perf_counter() - start:6.0f} s  stopped here; at most {maybe} configs might still be better")
        took_s = time.perf_counter() - start
        print(f"        {len(timed.done)} profiled, {timed.failed} failed, {cpu_s() - cpu:.0f} s of CPU")
        for then_s, done, total in left[:: max(1, len(left) // 6)]:
            if total:
                stated = then_s / done * (total - done)
                print(f"{then_s:6.0f} s  stated at most {stated:.0f} s left; it was {took_s - then_s:.0f} s")
        if arguments.sample:
            drawn = np.random.default_rng(7).choice(rows, arguments.sample, replace=False)
            only = [space.config(row) for row in drawn.tolist()]
            sampled = ProfilingOptions(processes=arguments.processes, only=only)
            more = analyze(kernel, problem, gpu, database, None, sampled).profiled
            print(f"        sample: {more} more configs profiled")
        costs = predicted(kernel, problem, gpu, database)
        return judge(timed, costs)


def hotspot(sources: Path) -> Kernel:
    """The recorded kernel with fewer tunables, and a bound for its shared memory."""
    kernel = load_recorded_kernel(next(recorded for recorded in SETS if recorded.name == "hotspot"), sources)

    def fewer(tunable: Tunable) -> Tunable:
        return replace(tunable, values=FIXED.get(tunable.name, tunable.values))

    shared = parse(SHARED)
    return replace(kernel, tunables=tuple(map(fewer, kernel.tunables)), constraints=(*kernel.constraints, shared))


def predicted(kernel: Kernel, problem: Problem, gpu: GPU, database: Path) -> dict[tuple[int, ...], tuple[float, float]]:
    """(time, energy) of each profiled config that can run, by its values."""
    (candidates,) = Recommender([database]).kernel_candidates(kernel, problem, gpu, Query()).kernels
    latency, energy = candidates.costs.latency.value[0].tolist(), candidates.costs.energy.value[0].tolist()
    values = [tuple(candidates.config(position).values()) for position in range(len(latency))]
    return dict(zip(values, zip(latency, energy, strict=True), strict=True))


def judge(timed: Timed, costs: dict[tuple[int, ...], tuple[float, float]]) -> int:
    """Print how far the front was from the reference over time; 1 where it came within the aim too late."""
    everything = np.array(list(costs.values()))
    front = everything[pareto_front(*everything.T)]
    seen = [(then_s, costs[tuple(c.values())]) for then_s, c in timed.done if tuple(c.values()) in costs]
    times, values = np.array([then_s for then_s, _ in seen]), np.array([value for _, value in seen])
    reached = None
    print(
        f"reference: {len(everything)} configs, {len(front)} on the front; the fastest {front[:, 0].min() * 1e6:.1f} us"
    )
    for count in sorted({*np.unique(np.geomspace(10, len(seen), 60).astype(int)).tolist(), len(seen)}):
        # by how much each point of the reference's front is missed by the best of those seen
        worse = (values[:count, None, :] / front[None]).max(axis=2).min(axis=0).max() - 1.0
        if reached is None and worse <= AIM:
            reached = times[count - 1]
            print(f"within {AIM:.0%} after {reached:.0f} s, {count} configs that run")
    print(f"at the end {worse:.1%} from it")
    return int(reached is None or reached > AIM_S)


def cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
