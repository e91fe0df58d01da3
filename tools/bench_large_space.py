"""How soon the analysis of a large space has a front as good as the whole space's: hotspot, some 70,000 configs.

    python tools/bench_large_space.py --sources FOLDER [--processes 2] [--limit 600] [--sample 300] [--keep FOLDER]

The kernel is benchmark_hub's (`tools/recorded_sets.py` says where from; --sources names the folder), its space without
the tunable of launch bounds, which multiplies it, and with the shared memory that a block may have. Its doubles are
made floats: the unit of doubles would hold up all configs alike, so that nearly any of them is good. The front of all
configs would take hours. So of those that the analysis left out a random sample is profiled after it, not in its time:
how many of them belong on its front, and how many are better than all of it by over 5 %, bounds how many of all the
others are. The front is then compared, over time, with the best of all that were profiled, the sample too.

The analysis is ended at --limit and judged as it is then. Its cache is empty at the beginning. Times are by the clock,
and by the processor: on a machine that does nothing else the clock shows between the processor's time over the number
of processes, and that of the main process and the others' share one after the other. Exits 1 where the front was not
within 5 % of the reference after 600 s by the clock, 0 without the sources.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from recorded_sets import SETS, load_recorded_kernel

from kernrec.compile.pool import Processors, processors_of
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
SURE = 0.99
FIXED = {"blocks_per_sm": (0,)}
SHARED = (
    "(block_size_x * tile_size_x + 2 * temporal_tiling_factor) * (block_size_y * tile_size_y"
    " + 2 * temporal_tiling_factor) * (2 + sh_power) * 4 <= 49152"
)
Cost = tuple[float, float]
"""Predicted time in s and energy in J."""


class TimeUpError(Exception):
    """The analysis has taken as long as it may."""


@dataclass(frozen=True)
class Spent:
    """Time that was spent, in s."""

    clock_s: float
    """By the clock."""
    own_s: float
    """Of the processor, by this process."""
    others_s: float
    """Of the processor, by the processes that it started."""

    @classmethod
    def now(cls) -> "Spent":
        """Since some time in the past; of the processes that run now and of those that have ended."""
        own_s, others_s = processor_s()
        return cls(time.perf_counter(), own_s, others_s)

    def since(self, start: "Spent") -> "Spent":
        """From another moment to this one."""
        return Spent(self.clock_s - start.clock_s, self.own_s - start.own_s, self.others_s - start.others_s)

    def text(self, processes: int) -> str:
        """In words; `processes`: that the others are, at a time."""
        least, most = (self.own_s + self.others_s) / processes, self.own_s + self.others_s / processes
        total = self.own_s + self.others_s
        return f"{self.clock_s:.0f} s by the clock, {total:.0f} s of CPU ({least:.0f} to {most:.0f} s if free)"


class Timed:
    """Profiles configs as the analysis does by itself, and keeps when each was done."""

    def __init__(self, processors: Processors, limit_s: float) -> None:
        self._processors, self._limit_s = processors, limit_s
        self.start = Spent.now()
        self.done: list[tuple[Spent, Config]] = []
        self.failed: list[Config] = []

    def __call__(self, kernel: Kernel, configs: Sequence[Config], target: ProfileTarget) -> Iterator[Outcome]:
        """Outcomes, until the time is up."""
        for outcome in profile_configs(kernel, configs, target, self._processors):
            now = Spent.now().since(self.start)
            if isinstance(outcome, ProfileFailure):
                self.failed.append(outcome.config)
            else:
                self.done += [(now, config) for config in outcome[0]]
            yield outcome
            if now.clock_s > self._limit_s:
                raise TimeUpError


def main() -> int:
    """Print what the front was worth over time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, help="folder with the repositories of recorded kernels")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=AIM_S, help="seconds")
    parser.add_argument("--sample", type=int, default=300, help="random ones of the configs left out")
    parser.add_argument("--keep", type=Path, help="empty folder for the database and the cache, which stay")
    arguments = parser.parse_args()
    try:
        if arguments.sources is None:
            raise UsageError("--sources names a folder with the kernel")
        kernel = hotspot(arguments.sources)
    except UsageError as error:
        print(f"nothing measured: {error}")
        return 0
    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        parser.error(f"{arguments.keep} is not empty")
    gpu, problem = find_gpu("rtx-a4000"), kernel.definition.problem()
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows
    print(f"hotspot: {len(rows)} configs, {arguments.processes} processes, load {os.getloadavg()[0]:.1f}", flush=True)
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["KERNREC_CACHE"] = str(folder)
        database = folder / "own.duckdb"
        timed = searched(kernel, problem, gpu, database, arguments.processes, arguments.limit)
        tried = {tuple(config.values()) for config in [*(config for _, config in timed.done), *timed.failed]}
        left = [config for config in map(space.config, rows.tolist()) if tuple(config.values()) not in tried]
        drawn = np.random.default_rng(7).permutation(len(left))[: arguments.sample]
        only = [left[place] for place in drawn.tolist()]
        if only:
            sampled = ProfilingOptions(processes=arguments.processes, only=only)
            analyze(kernel, problem, gpu, database, None, sampled)
        costs = predicted(kernel, problem, gpu, database)
        judge_sample(timed, only, len(left), costs)
        return judge(timed, costs, arguments.processes)


def searched(kernel: Kernel, problem: Problem, gpu: GPU, database: Path, processes: int, limit_s: float) -> Timed:
    """Run the analysis; what it profiled, and when."""
    left: list[tuple[float, int, int]] = []
    with processors_of(processes) as processors:
        timed = Timed(processors, limit_s)

        def spent() -> Spent:
            return Spent.now().since(timed.start)

        options = ProfilingOptions(
            processes=processes,
            profiles=timed,
            progress=lambda done, total: left.append((spent().clock_s, done, total)),
            first_front=lambda answer, count: print(
                f"first front: {count} configs, {spent().text(processes)}", flush=True
            ),
        )
        with suppress(TimeUpError):
            analysis = analyze(kernel, problem, gpu, database, None, options)
            print(f"ended by itself: {analysis.left_out} configs left out")
        took = spent()
    print(f"{len(timed.done)} profiled, {len(timed.failed)} failed, {took.text(processes)}", flush=True)
    for then_s, done, total in left[:: max(1, len(left) // 6)]:
        if total:
            print(f"{then_s:6.0f} s  {done} done, at most {max(0, total - done)} more that might be better")
    return timed


def hotspot(sources: Path) -> Kernel:
    """The recorded kernel with fewer tunables, a bound for its shared memory, and floats alone."""
    kernel = load_recorded_kernel(next(recorded for recorded in SETS if recorded.name == "hotspot"), sources)

    def fewer(tunable: Tunable) -> Tunable:
        return replace(tunable, values=FIXED.get(tunable.name, tunable.values))

    shared, source = parse(SHARED), kernel.source.replace("2.0*", "2.0f*")
    return replace(
        kernel, source=source, tunables=tuple(map(fewer, kernel.tunables)), constraints=(*kernel.constraints, shared)
    )


def predicted(kernel: Kernel, problem: Problem, gpu: GPU, database: Path) -> dict[tuple[int, ...], Cost]:
    """(time, energy) of each profiled config that can run, by its values."""
    (candidates,) = Recommender([database]).kernel_candidates(kernel, problem, gpu, Query()).kernels
    latency, energy = candidates.costs.latency.value[0].tolist(), candidates.costs.energy.value[0].tolist()
    values = [tuple(candidates.config(position).values()) for position in range(len(latency))]
    return dict(zip(values, zip(latency, energy, strict=True), strict=True))


def judge_sample(timed: Timed, only: Sequence[Config], left: int, costs: dict[tuple[int, ...], Cost]) -> None:
    """Print how many of a random sample of the configs left out belong on the front of those tried.

    Args:
        timed: what was tried.
        only: the sample.
        left: configs that were left out.
        costs: as of `predicted`.
    """
    values = np.array([costs[key] for _, config in timed.done if (key := tuple(config.values())) in costs])
    front = values[pareto_front(*values.T)]
    drawn = [costs[key] for config in only if (key := tuple(config.values())) in costs]
    # What a config of the front exceeds another config by, at least, in the worse of time and energy.
    misses = [float((front / np.array(cost)).max(axis=1).min()) - 1.0 for cost in drawn]
    for what, by in (("belong on the front", 0.0), (f"are better than all of it by over {AIM:.0%}", AIM)):
        count = sum(miss > by for miss in misses)
        most = upper_bound(count, len(only))
        print(f"of {len(only)} of the {left} left out {count} {what}: at {SURE:.0%} at most {most:.1%} of them")


def upper_bound(count: int, drawn: int) -> float:
    """The largest share of which at most `count` of `drawn` are seen with a probability of 1 - `SURE` (Clopper and
    Pearson, "The use of confidence or fiducial limits", Biometrika 1934)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        seen = sum(math.comb(drawn, n) * middle**n * (1.0 - middle) ** (drawn - n) for n in range(count + 1))
        low, high = (middle, high) if seen > 1.0 - SURE else (low, middle)
    return high


def judge(timed: Timed, costs: dict[tuple[int, ...], Cost], processes: int) -> int:
    """Print how far the front was from the reference over time; 1 where it came within the aim too late."""
    everything = np.array(list(costs.values()))
    front = everything[pareto_front(*everything.T)]
    seen = [(then, costs[tuple(c.values())]) for then, c in timed.done if tuple(c.values()) in costs]
    values = np.array([value for _, value in seen])
    print(f"reference: {len(everything)} configs that run, {len(front)} on the front")
    # By how much each point of the reference's front is missed by the best of those seen, after each config.
    ratios = np.maximum.reduce(values[:, None, :] / front[None], axis=2)
    worse = np.minimum.accumulate(ratios, axis=0).max(axis=1) - 1.0
    reached = None
    for aim in (0.5, 0.2, 0.1, AIM, 0.02, 0.0):
        within = np.flatnonzero(worse <= aim + 1e-9)
        if not len(within):
            print(f"never within {aim:.0%}")
            continue
        then, number = seen[int(within[0])][0], int(within[0]) + 1
        fastest_us = values[:number, 0].min() * 1e6
        print(f"within {aim:.0%}: {number} configs, {then.text(processes)}; the fastest {fastest_us:.1f} us")
        reached = then.clock_s if aim == AIM else reached
    print(f"at the end {worse[-1]:.1%} from it; the fastest {values[:, 0].min() * 1e6:.1f} us")
    return int(reached is None or reached > AIM_S)


def processor_s() -> tuple[float, float]:
    """Processor time of this process, and of those that it started and their children; the latter on Linux only."""
    user, system, *_ = os.times()
    unit, fields = os.sysconf("SC_CLK_TCK"), dict[int, list[bytes]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # Its name, in parentheses, may hold anything.
            fields[int(path.parent.name)] = path.read_bytes().rpartition(b")")[2].split()
    ours, waiting = {os.getpid()}, [os.getpid()]
    while waiting:
        parent = waiting.pop()
        children = [process for process, some in fields.items() if int(some[1]) == parent and process not in ours]
        ours.update(children)
        waiting += children
    # Fields 14 to 17 of proc(5): user and system time, and those of the children that have ended.
    total = sum(sum(map(int, fields[process][11:15])) for process in ours if process in fields) / unit
    return user + system, max(0.0, total - user - system)


if __name__ == "__main__":
    sys.exit(main())
