"""How soon the analysis of a large space has a front as good as the whole space's: hotspot, some 70,000 configs.

The kernel is benchmark_hub's (--sources names a folder with it), its space without the tunable of launch bounds, which
multiplies it, and with the shared memory that a block may have. Its doubles are made floats: the unit of doubles would
hold up all configs alike, so that nearly any of them is good. The front of all configs would take hours. So of those
that the analysis left out a random sample is profiled after it, not in its time: how many of them belong on its front,
and how many are better than all of it by over 5 %, bounds how many of all the others are. The front is then compared,
over time, with the best of all that were profiled, the sample too.

The analysis is ended at --limit seconds and judged as it is then. Its cache is empty at the beginning; --keep is an
empty folder for database and cache, which stay. Times are by the clock, and by the processor: on a machine that does
nothing else the clock shows between the processor's time over the number of processes, and that of the main process and
the others' share one after the other. Exits 1 where the front was not within 5 % of the reference after 600 s by the
clock.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from evidence.recorded_sets import SETS
from front import Sources

from kernrec.compile.pool import Processors, processors_of
from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Config, Kernel, Space
from kernrec.kernel.expression import parse
from kernrec.kernel.spec import Tunable
from kernrec.op import Problem
from kernrec.profile.profile_target import ProfileFailure, ProfileTarget
from kernrec.profile.profile_user_kernel import Outcome, profile_configs
from kernrec.recommender import Query, Recommender
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.pareto import pareto_front

from .timing import all_cpu_s

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
    own_s: float
    """Of the processor, by this process."""
    others_s: float
    """Of the processor, by the processes that it started."""

    @classmethod
    def now(cls) -> "Spent":
        """Since some time in the past; of the processes that run now and of those that have ended."""
        own_s, others_s = all_cpu_s()
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


def run(
    sources: Sources = None, processes: int = 2, limit: float = AIM_S, sample: int = 300, keep: Path | None = None
) -> int:
    """Print what the front was worth over time; `sample`: random ones of the configs left out."""
    kernel = hotspot(sources)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep} is not empty")
    gpu, problem = find_gpu("rtx-a4000"), kernel.definition.problem()
    space = Space(kernel, gpu.sm, gpu.limits, problem.dtype, problem.layout)
    rows = space.at(problem).rows
    print(f"hotspot: {len(rows)} configs, {processes} processes, load {os.getloadavg()[0]:.1f}", flush=True)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["KERNREC_CACHE"] = str(folder)
        database = folder / "own.duckdb"
        timed = searched(kernel, problem, gpu, database, processes, limit)
        tried = {tuple(config.values()) for config in [*(config for _, config in timed.done), *timed.failed]}
        left = [config for config in map(space.config, rows.tolist()) if tuple(config.values()) not in tried]
        drawn = np.random.default_rng(7).permutation(len(left))[:sample]
        only = [left[place] for place in drawn.tolist()]
        if only:
            analyze(kernel, problem, gpu, database, None, ProfilingOptions(processes=processes, only=only))
        costs = predicted(kernel, problem, gpu, database)
        judge_sample(timed, only, len(left), costs)
        return judge(timed, costs, processes)


def searched(kernel: Kernel, problem: Problem, gpu: GPU, database: Path, processes: int, limit_s: float) -> Timed:
    """Run the analysis; the configs that it profiled, and when."""
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


def hotspot(sources: Path | None) -> Kernel:
    """The recorded kernel with fewer tunables, a bound for its shared memory, and floats alone."""
    kernel = SETS["hotspot"].kernel(sources)

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
    # By how much, at least, a config of the front exceeds another config in the worse of time and energy.
    misses = [float((front / np.array(cost)).max(axis=1).min()) - 1.0 for cost in drawn]
    for verdict, by in (("belong on the front", 0.0), (f"are better than all of it by over {AIM:.0%}", AIM)):
        count = sum(miss > by for miss in misses)
        most = upper_bound(count, len(only))
        print(f"of {len(only)} of the {left} left out {count} {verdict}: at {SURE:.0%} at most {most:.1%} of them")


def upper_bound(count: int, drawn: int) -> float:
    """The largest share of which at most `count` of `drawn` are seen with a probability of 1 - `SURE` (Clopper and
    Pearson, "The use of confidence or fiducial limits", Biometrika 1934)."""
    from scipy.stats import beta

    return 1.0 if count == drawn else float(beta.ppf(SURE, count + 1, drawn - count))


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
