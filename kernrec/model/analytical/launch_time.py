"""Predict the time of a launch on a GPU without measurements: the analytical model of time.

    SM clocks   rounds of concurrent blocks, each taking
                  - the time its pipes are busy (issue, FMA, integer, special, shared memory, L1, barriers), plus the
                    arithmetic between tensor instructions that other warps do not hide, and
                  - the part of a block's latency that other blocks do not hide: its instructions in order, barriers,
                    exposed load latency, stretches of its code that need different pipes, and DRAM's time for its
                    bytes beyond that latency;
                plus the tail: the time of the longest block beyond an average block, and its waits for other blocks
    core time   the slower of SM clocks and L2 (its bandwidth, and atomic operations that meet)
    DRAM time   bytes between L2 and DRAM over the bandwidth that this access pattern reaches
    latency     core and DRAM time combined by a smooth maximum, plus launch overhead

Overlap: a block (or, in a kernel without barriers, a warp) either waits or uses the pipes, never both. With K of them
on an SM, a round takes at least P + max((K - 1) P, Z). P is the pipe time of one block, Z its waiting time (machine
repairman problem; Lazowska et al., "Quantitative System Performance", chapter 5). Blocks also delay each
other (`round_clk`). A lone block with barriers takes P + Z. If loads are issued ahead (`PREFETCH`), Z is only the
excess over the arithmetic.

`kernrec.model.analytical.power` models power and the clock under a power limit. `engine/query` contains the arithmetic
of both modules.
"""

from collections.abc import Sequence
from typing import Any

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
    RESOURCE,
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
"""Possible bottlenecks of a launch (`LaunchTime.bottleneck`)."""


@dataclass(frozen=True, eq=False)
class LaunchWork:
    """Work of N launches on one problem."""

    variants: Array
    """Columns of the launches in the demand, int64 (N,)."""
    rows: Floats
    """Figures of the launches by row of `constants`, (rows, N): `BLOCKS` of the grid; `CONCURRENT`, blocks that fit on
    an SM at the same time; `WARPS` of a block; `PREFETCH`, trips ahead of which loads are issued; `DRAM_BYTES`, and
    `DRAM_SLOWDOWN`, the factor of the access pattern on their time (1 for streams); `SERIAL_CLK`, clocks of L2 for
    atomic operations on the busiest sector; `WAIT_ROUNDS`, the waits of an average block for memory, including caches,
    between which barriers fall; `OVERLAPPED`, the fraction of these waits during which other warps of the block have
    work, because there is no barrier between (NaN: all except as many as barriers); `LONE_WAITS`, the waits of the
    longest block for L2 with nothing else to do, excluding its loops; from `LOOPS` on for each loop its trips over all
    blocks and in the longest block, in the order of the demand's terms.
    """

    @classmethod
    def empty(cls, count: int, loops: int) -> "LaunchWork":
        """Return work for `count` launches, to be filled. Loops that a launch lacks make no trips."""
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
        """Create work from its rows.

        Args:
            terms: Number of blocks in the grid, then trips of each loop.
            depth: The same terms for the longest block only.
        """
        work = cls.empty(len(variants), len(depth))
        traffic = dram_bytes, dram_slowdown, serial_clk
        figures = terms[0], concurrent, warps, prefetch, *traffic, rounds, overlapped, waits
        loops = [figure for loop in zip(terms[1:], depth, strict=True) for figure in loop]
        work.variants[:] = variants
        for row, figure in zip(work.rows, (*figures, *loops), strict=True):
            row[:] = figure
        return work


@dataclass(frozen=True, eq=False)
class LaunchTime:
    """Time of one launch at the boost clock, without launch overhead, by bottleneck; arrays (C,)."""

    pipe_clk: Floats
    """Clocks of each pipe for an average block, (P, C)."""
    rows: Floats
    """Other figures, (`TIMES`, C)."""
    dram_bytes: Floats

    @property
    def core_s(self) -> Floats:
        """Return the seconds bound by the core clock domain, which scale with the core clock."""
        return np.asarray(self.rows[0])

    @property
    def dram_s(self) -> Floats:
        """Return the seconds bound by DRAM, which do not scale with the core clock."""
        return np.asarray(self.rows[1])

    @property
    def core_j(self) -> Floats:
        """Return the joules of core events at nominal voltage."""
        return np.asarray(self.rows[2])

    @property
    def busy_s(self) -> Floats:
        """Return the seconds that the pipes are busy."""
        return np.asarray(self.rows[3])

    @property
    def latency_s(self) -> Floats:
        """Return the seconds of latency of all waves of blocks."""
        return np.asarray(self.rows[4])

    @property
    def l2_s(self) -> Floats:
        """Return the seconds needed for L2 bandwidth, or for atomic operations in L2."""
        return np.asarray(self.rows[5])

    @property
    def in_turn_s(self) -> Floats:
        """Return the seconds of `core_s` in which a block waits for DRAM or fills one pipe, and too few other blocks
        use the other pipes.
        """
        return np.asarray(self.rows[6])

    def bottleneck(self, row: int) -> str:
        """Return the resource in `RESOURCES` that takes longest for one candidate."""
        return RESOURCES[int(self.rows[RESOURCE, row])]

    def parts(self, row: int) -> dict[str, float]:
        """Return the seconds that one candidate keeps each resource of `RESOURCES` busy, or waits for it."""
        pipes = self.pipe_clk[:, row].tolist()
        _, dram_s, _, busy_s, latency_s, l2_s, *_ = self.rows[:, row].tolist()
        share_s = busy_s / max(*pipes, 1e-30)
        seconds = [*[share_s * clk for clk in pipes], latency_s, l2_s, dram_s, START_S + LAUNCH_S]
        return dict(zip(RESOURCES, seconds, strict=True))


def alone_clk(rates: Floats, warps: Floats, variants: Array) -> Floats:
    """Return the clocks that one term of a demand adds to a block that is alone on an SM, without waits for memory."""
    clk: Floats = rates[ALONE].take(variants) / warps + rates[BARRIERS].take(variants) * _barrier_clk(warps)
    return clk


def _barrier_clk(warps: Floats) -> Floats:
    return np.maximum(BARRIER_CLK, BARRIER_WARP_CLK * warps)


def device(gpu: GPU, core_time: float = 1.0, dram_time: float = 1.0) -> Any:
    """Return a GPU in the engine's form.

    Args:
        core_time: Calibration factor for times of the core clock domain.
        dram_time: Calibration factor for times of DRAM.
    """
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
    """Return the time of launches at the boost clock.

    Args:
        demand: Demand of the kernel's variants on the GPU.
    """
    return time_of_work(device(gpu), demand, work)


def time_of_work(on_device: Any, demand: Demand, work: LaunchWork) -> LaunchTime:
    """Return the time of launches on a `device`."""
    count = len(work.variants)
    pipe_clk, times = np.empty((len(PIPES), count)), np.empty((TIMES, count))
    # The demand may contain loops that no launch executes, and launches may have loops that the demand lacks.
    loops = min(len(demand.rates) - 1, (len(work.rows) - LOOPS) // 2)
    query.launch_times(demand.in_engine, on_device, loops, work.variants, work.rows, pipe_clk, times)
    return LaunchTime(pipe_clk, times, work.rows[DRAM_BYTES])


_LANES = 32


def epilogue(gpu: GPU, power: PowerModel, problem: Problem) -> tuple[float, float, float] | None:
    """Return the cost of a problem's epilogue on a GPU; None if the problem has none.

    Returns:
        Seconds of the core clock domain at the boost clock, joules of the core at nominal voltage, and DRAM bytes.
    """
    work = problem.definition.finishing(problem.sizes)
    if not work:
        return None
    tensors = problem.tensors
    warps = sum(tensors[name].elements for name in problem.definition.outputs) / _LANES
    issued = {name: count for name, count in work.items() if name.startswith("issue.")}
    counts = work | {"issue": sum(issued.values())}
    coefficients = np.array([[[count] for count in counts.values()]])
    rates = demand(gpu, power, tuple(counts), ("block",), coefficients).rates[0][:, 0]
    busiest_clk = float(rates[: len(PIPES)].max())
    l2_clk = float(rates[SECTORS]) * 32.0 * gpu.sms / l2_bytes_per_clk(gpu)
    core_s = warps * max(busiest_clk, l2_clk) / (gpu.sms * gpu.boost_clock_hz)
    dram_bytes = float(sum(tensors[name].bytes for name in tensors if f"global.{name}.read_sectors" in work))
    return core_s, warps * float(rates[CORE_J]), dram_bytes
