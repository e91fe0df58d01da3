"""Predict the time of a launch on a GPU without measurements: the analytical model of time.

    SM clocks   An SM executes its blocks in rounds of concurrent blocks. The time of a round has two parts:
                  - the time that the pipes are busy (issue, FMA, integer, special, shared memory, L1, barriers), plus
                    the arithmetic between tensor instructions that other warps do not hide;
                  - the part of a block's latency that other blocks do not hide: dependent instructions, barriers,
                    exposed load latency, pipes that idle while the block uses another pipe, and the time that DRAM
                    needs for the block's bytes beyond the load latency.
                The last round also includes the extra work and waits of the longest block.
    core time   smooth maximum of the times of the SMs and of L2 (bandwidth, or atomic operations on one sector)
    DRAM time   bytes between L2 and DRAM, divided by the bandwidth that this access pattern reaches
    latency     smooth maximum of core time and DRAM time, plus launch overhead

Overlap: at any time, a block either waits or uses the pipes. Let K blocks run on an SM at the same time, with the pipe
time P and the waiting time Z each. A round then takes at least P + max((K - 1) P, Z) (machine repairman problem;
Lazowska et al., "Quantitative System Performance", chapter 5). Blocks also delay each other (`round_clk` in
`engine/query`). In a kernel without barriers, warps take the place of blocks. In a kernel that prefetches its loads
(`PREFETCH`), Z is only the part of the waiting time that exceeds the arithmetic.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernrec.gpu import GPU
from kernrec.model.analytical.demand import ALONE, BARRIERS, CORE_J, PIPES, SECTORS, Demand, demand
from kernrec.model.analytical.microarchitecture import (
    BARRIER_CLK,
    BARRIER_WARP_CLK,
    DRAM_BYTES,
    LAUNCH_S,
    LOOPS,
    SCHEDULERS,
    START_S,
    TIMES,
    l2_bytes_per_clk,
    microarchitecture,
)
from kernrec.model.analytical.power import PowerModel
from kernrec.op import Problem
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray
Floats = NDArray[np.float64]

RESOURCES = (*PIPES, "latency", "L2", "DRAM", "launch")
"""Possible bottlenecks of a launch (`LaunchTime.resource`)."""


@dataclass(frozen=True, eq=False)
class LaunchWork:
    """Work of N launches of a kernel on one problem, such as numbers of blocks and loop iterations."""

    variants: Array
    """Index of each launch's code variant in `Demand.rates`, int64 (N,)."""
    rows: Floats
    """Figures of the launches, (rows, N). The row indices are constants in `analytical.microarchitecture`.

    - `BLOCKS`: Number of blocks in the grid.
    - `CONCURRENT`: Number of blocks that fit on an SM at the same time.
    - `WARPS`: Number of warps of a block.
    - `PREFETCH`: Number of loop trips by which loads are issued ahead of their use.
    - `DRAM_BYTES`: Bytes moved between L2 and DRAM.
    - `DRAM_SLOWDOWN`: Factor by which the access pattern slows down DRAM traffic (1 for streams).
    - `SERIAL_CLK`: Clocks that L2 needs for atomic operations on the busiest sector.
    - `WAIT_ROUNDS`: Number of times that an average block waits for memory, including caches.
    - `OVERLAPPED`: Fraction of `WAIT_ROUNDS` during which other warps of the block work. NaN if the
      fraction was not sampled. All warps are then assumed to wait together once per barrier.
    - `LONE_WAITS`: Number of waits for L2, outside of loops, that add to the time of the longest block.
    - `LOOPS` and following: Two rows for each loop: the trips of all blocks, and the trips of the longest block.
    """

    @classmethod
    def empty(cls, count: int, loops: int) -> "LaunchWork":
        """Create an object for `count` launches with `loops` loops, in which all numbers are 0."""
        return cls(np.empty(count, dtype=np.int64), np.zeros((LOOPS + 2 * loops, count)))

    @classmethod
    def of(
        cls,
        variants: Array,
        terms: Sequence[Array],
        depth: Sequence[Array],
        *,
        concurrent: Array,
        warps: Array,
        prefetch: Array,
        dram_bytes: Array,
        dram_slowdown: Array | float = 1.0,
        serial_clk: Array | float = 0.0,
        rounds: Array,
        overlapped: Array | float = np.nan,
        waits: Array | float = 0.0,
    ) -> "LaunchWork":
        """Create the work of N launches. Arguments that are not listed here are rows of `LaunchWork.rows`.

        Args:
            variants: Index of each launch's code variant.
            terms: Arrays of shape (N,): number of blocks, then the total trips of each loop in all blocks.
            depth: Arrays of shape (N,): trips of each loop in the longest block.
        """
        work = cls.empty(len(variants), len(depth))
        traffic = dram_bytes, dram_slowdown, serial_clk
        figures = terms[0], concurrent, warps, prefetch, *traffic, rounds, overlapped, waits
        loops = [figure for loop in zip(terms[1:], depth, strict=True) for figure in loop]
        work.variants[:] = variants
        for row, figure in zip(work.rows, (*figures, *loops), strict=True):
            row[:] = figure
        return work


class LaunchTime(NamedTuple):
    """Time of C launches at the boost clock without launch overhead, and how busy each resource is. Arrays are (C,)."""

    pipe_clk: Floats
    """Clocks for which an average block uses each pipe of `PIPES`, array of shape (pipes, C)."""
    core_s: Floats
    """Seconds of core time: the part of the time that scales inversely with the core clock."""
    dram_s: Floats
    """Seconds of DRAM time. DRAM time does not depend on the core clock."""
    core_j: Floats
    """Dynamic energy of the core in joules at nominal voltage."""
    busy_s: Floats
    """Seconds that the pipes are busy."""
    latency_s: Floats
    """Seconds that blocks wait for memory, barriers or results of instructions."""
    l2_s: Floats
    """Seconds that L2 is busy."""
    in_turn_s: Floats
    """Seconds of core time in which a block waits for DRAM, or for one pipe while other pipes idle."""
    resource: Floats
    """Index in `RESOURCES` of each launch's bottleneck."""
    dram_bytes: Floats

    def parts(self, row: int) -> dict[str, float]:
        """Return the seconds that one launch uses or waits for each resource, keyed by resource. `row` is the launch's
        index."""
        pipes = self.pipe_clk[:, row].tolist()
        share_s = float(self.busy_s[row]) / max(*pipes, 1e-30)
        waits = (float(each[row]) for each in (self.latency_s, self.l2_s, self.dram_s))
        return dict(zip(RESOURCES, [*[share_s * clk for clk in pipes], *waits, START_S + LAUNCH_S], strict=True))


def alone_clk(rates: Floats, warps: Floats, variants: Array) -> Floats:
    """Return the clocks of a block that is alone on an SM, without waits for memory.

    Args:
        rates: One array of `Demand.rates`, for a block or for a trip of a loop.
        warps: Number of warps of each block.
        variants: Code variant of each block.
    """
    barrier_clk = np.maximum(BARRIER_CLK, BARRIER_WARP_CLK * warps)
    clk: Floats = rates[ALONE].take(variants) / warps + rates[BARRIERS].take(variants) * barrier_clk
    return clk


def device(gpu: GPU, core_time: float = 1.0, dram_time: float = 1.0) -> Any:
    """Convert a GPU to an engine object. `core_time` and `dram_time` are multipliers of a `Calibration`."""
    figures = microarchitecture(gpu)
    return query.Device(
        gpu.boost_clock_hz,
        float(gpu.sms),
        float(gpu.l2_bytes),
        1.0 / (gpu.memory_bandwidth * figures.dram_efficiency),
        figures.dram_latency_clk,
        32.0 / l2_bytes_per_clk(gpu),
        figures.l2_latency_clk,
        gpu.fma_per_clk_sm["f64"] < SCHEDULERS,
        core_time,
        dram_time,
    )


def launch_time(gpu: GPU, demand: Demand, work: LaunchWork) -> LaunchTime:
    """Return the time of launches on a GPU at the boost clock, without calibration."""
    count = len(work.variants)
    pipe_clk, times = np.empty((len(PIPES), count)), np.empty((TIMES, count))
    # `demand` and `work` may have different numbers of loops, so use only the loops in both.
    loops = min(len(demand.rates) - 1, (len(work.rows) - LOOPS) // 2)
    query.launch_times(demand.by_variant, device(gpu), loops, work.variants, work.rows, pipe_clk, times)
    return LaunchTime._make([pipe_clk, *times, work.rows[DRAM_BYTES]])


_LANES = 32


def epilogue(gpu: GPU, power: PowerModel, problem: Problem) -> tuple[float, float, float] | None:
    """Return what a problem's epilogue adds to a launch: (core seconds at the boost clock, core joules at nominal
    voltage, DRAM bytes). Return None if the problem has no epilogue."""
    work = problem.definition.finishing(problem.sizes)
    if not work:
        return None
    tensors = problem.tensors
    warps = sum(tensors[name].elements for name in problem.definition.outputs) / _LANES
    issued = {name: count for name, count in work.items() if name.startswith("issue.")}
    counts = work | {"issue": sum(issued.values())}
    coefficients = np.array([[[count] for count in counts.values()]])
    rates = demand(gpu, power, tuple(counts), coefficients).rates[0][:, 0]
    busiest_clk = float(rates[: len(PIPES)].max())
    l2_clk = float(rates[SECTORS]) * 32.0 * gpu.sms / l2_bytes_per_clk(gpu)
    core_s = warps * max(busiest_clk, l2_clk) / (gpu.sms * gpu.boost_clock_hz)
    dram_bytes = float(sum(tensors[name].bytes for name in tensors if f"global.{name}.read_sectors" in work))
    return core_s, warps * float(rates[CORE_J]), dram_bytes
