"""The analytic prior of time: what a launch should take on a GPU that nobody measured it on.

    SM clocks   rounds of concurrent blocks, each the longer of
                  - what its pipes are busy for (issue, FMA, integer, special, shared memory, L1), with the arithmetic
                    between tensor instructions that no other warp's hide, and
                  - the latency of one block: its instructions in order, barriers, and loads too late to hide;
                and the tail, what the longest block takes beyond an average one
    core time   the slowest of SM clocks and L2 bandwidth, at the core clock
    DRAM time   bytes past L2 over the bandwidth that a copy reaches
    latency     core and DRAM time joined by a smooth maximum, plus launch overhead

Power, and the clock that a power limit leaves, are `model.power`'s. Everything is elementwise over candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.prior.demand import BARRIERS, BETWEEN, CORE_J, ISSUE, ISSUE_PER_CLK, PIPES, SECTORS, Demand
from kernrec.model.prior.microarchitecture import microarchitecture

Array = np.ndarray

LAUNCH_S = 2.5e-6
"""What each launch costs besides its work: 2 to 3 us on every generation (fitted to the small shapes of the anchor
conv2d_f32_ansor.csv)."""
START_S = 2.5e-6
"""What the first launch of an op costs beyond that: an idle stream, a cold instruction cache and cold address
translation (fitted to the smallest shapes of the anchor matmul_f16_rtx3090.csv, which were timed launch by launch)."""

_BARRIER_CLK = 24
"""Clocks a warp loses at a block-wide barrier beyond its own instructions (assumption)."""
_BLOCK_CLK = 900
"""Clocks to start a block, compute its addresses and drain its last stores (fitted to the same anchor)."""
_WARP_CPI = 2.5
"""Clocks per instruction of one warp alone on its scheduler: what other warps would fill. An f32 addition takes 4
clocks where it needs the one before, on the A100 2 where it does not (Abdelkhalik et al., arXiv 2208.11174, on
dependent and independent instructions); elsewhere a scheduler's lanes take one a clock. Where unrolled arithmetic lies
between is an assumption: all anchors and both recorded convolutions prefer anything up to 4 to the 1.6 that stood here
before, causal attention of few warps does not."""
_WARP_CLK = ISSUE_PER_CLK * _WARP_CPI  # per clock of `issue`, which is counted for all schedulers together

INTERVAL = 2.0
"""Half-width of the prior's 90 % interval as a factor; from its spread against the anchors (`tools/check_prior.py`)."""

RESOURCES = (*PIPES, "latency", "L2", "DRAM", "launch")
"""What can be the bottleneck of a launch (`LaunchTime.bottleneck`)."""


@dataclass(frozen=True)
class LaunchWork:
    """One launch of C candidates on one problem; arrays (C,).

    codes: their columns in the demand. terms: total blocks and trips over the grid, in the demand's order. depth: trips
    of the block that runs longest. concurrent: blocks that fit on an SM. warps: per block. prefetch: trips whose loads
    are in flight ahead. dram_bytes: past L2.
    """

    codes: Array
    terms: tuple[Array, ...]
    depth: tuple[Array, ...]
    concurrent: Array
    warps: Array
    prefetch: Array
    dram_bytes: Array


@dataclass(frozen=True)
class LaunchTime:
    """Time of one launch at the boost clock, by what bounds it; seconds and joules, arrays (C,).

    core_s scales with the core clock, dram_s does not; launch overhead is not included. core_j: joules of the
    core clock domain at nominal voltage. pipe_clk (P, C), busy_s, latency_s, l2_s: components, for the bottleneck.
    """

    core_s: Array
    dram_s: Array
    core_j: Array
    pipe_clk: Array
    busy_s: Array
    latency_s: Array
    l2_s: Array

    def pipe_s(self, rows: Array) -> Array:
        """Time that each pipe of these candidates is busy, (P, rows): its share of the busiest one's time."""
        clk = self.pipe_clk.take(rows, axis=1)
        return clk * (self.busy_s.take(rows) / np.maximum(clk.max(axis=0), 1e-30))

    def bottleneck(self, row: int) -> str:
        """The resource that takes longest for one candidate."""
        parts = self.parts(row)
        return max(parts, key=lambda name: parts[name])

    def parts(self, row: int) -> dict[str, float]:
        """Seconds that each resource of `RESOURCES` is busy, or waited for, for one candidate."""
        pipes = self.pipe_clk[:, row].tolist()
        share_s = float(self.busy_s[row]) / max(*pipes, 1e-30)
        parts = {name: share_s * clk for name, clk in zip(PIPES, pipes, strict=True)}
        waits = {"latency": self.latency_s, "L2": self.l2_s, "DRAM": self.dram_s}
        return parts | {name: float(column[row]) for name, column in waits.items()} | {"launch": START_S + LAUNCH_S}


def alone_clk(rates: Array, warps: Array, codes: Array) -> Array:
    """Clocks that one term of a demand adds to a block that has an SM for itself; waits for memory not included."""
    return rates[ISSUE].take(codes) * (_WARP_CLK / warps) + rates[BARRIERS].take(codes) * _BARRIER_CLK


def join(works: Sequence[LaunchWork]) -> LaunchWork:
    """Several launches one after the other, as if they were candidates of one; what a launch lacks in terms is zero."""
    if len(works) == 1:
        return works[0]
    most = max(len(work.terms) for work in works)

    def each(fields: list[tuple[Array, ...]], count: int) -> tuple[Array, ...]:
        padded = [(*f, *[np.zeros(len(w.codes))] * (count - len(f))) for f, w in zip(fields, works, strict=True)]
        return tuple([np.concatenate(parts) for parts in zip(*padded, strict=True)])

    return LaunchWork(
        codes=np.concatenate([w.codes for w in works]),
        terms=each([w.terms for w in works], most),
        depth=each([w.depth for w in works], most - 1),
        concurrent=np.concatenate([w.concurrent for w in works]),
        warps=np.concatenate([w.warps for w in works]),
        prefetch=np.concatenate([w.prefetch for w in works]),
        dram_bytes=np.concatenate([w.dram_bytes for w in works]),
    )


def launch_time(gpu: GPU, demand: Demand, work: LaunchWork) -> LaunchTime:
    """Time of launches at the boost clock."""
    figures = microarchitecture(gpu)
    clock = gpu.boost_clock_hz
    blocks, warps = work.terms[0], work.warps
    each = 1.0 / blocks
    total = demand.rates[0].take(work.codes, axis=1) * blocks
    issue_clk = _WARP_CLK / warps
    # Trips of an average block; those of the longest block beyond them, and its clocks in them.
    trips: Array | float = 0.0
    longer: Array | float = 0.0
    longer_clk: Array | float = 0.0
    # A demand may hold loops that none of these launches has.
    for rates, count, depth in zip(demand.rates[1:], work.terms[1:], work.depth, strict=False):
        rate = rates.take(work.codes, axis=1)
        total += rate * count
        average = count * each
        beyond = depth - average
        trips = trips + average
        longer = longer + beyond
        longer_clk = longer_clk + (rate[ISSUE] * issue_clk + rate[BARRIERS] * _BARRIER_CLK) * beyond

    # SM pipes: clocks of one average block, joined by a smooth maximum. Warps that are in different phases use
    # different pipes, so that two of equal time take 2**(1/8) = 1.09 times one of them: recorded spaces prefer that
    # to the 1.19 of core and DRAM.
    pipe_clk = total[: len(PIPES)] * each
    peak = pipe_clk.max(axis=0)
    share = pipe_clk / peak
    share *= share
    share *= share
    share *= share
    block_clk = peak * np.sqrt(np.sqrt(np.sqrt(share.sum(axis=0))))
    # An average block alone: its instructions in order, barriers, and loads that prefetching does not hide.
    alone = pipe_clk[ISSUE] * issue_clk + total[BARRIERS] * (each * _BARRIER_CLK)
    memory_clk = figures.dram_latency_clk
    ahead = work.prefetch
    wait_clk = memory_clk / np.maximum(ahead, 1)
    late = np.maximum(trips * wait_clk - np.where(ahead == 0, 0.0, alone), 0.0)
    latency_clk = alone + late + (memory_clk + _BLOCK_CLK)
    # Rounds: an SM finishes `concurrent` blocks in the longer of their pipe time and one block's latency.
    per_sm = np.ceil(blocks / gpu.sms)
    together = np.minimum(work.concurrent, per_sm)
    full = np.floor(per_sm / together)
    rest = per_sm - full * together
    busy = _occupied(together, block_clk, warps)
    busy_rest = _occupied(rest, block_clk, warps)
    # Of the arithmetic between tensor instructions, one warp's a scheduler runs while its tensor cores stand still.
    between = total[BETWEEN] * (4.0 * each / warps)
    sm_clk = full * _smooth_max(busy + between, latency_clk) + (rest > 0) * np.maximum(busy_rest + between, latency_clk)
    sm_clk += np.maximum(longer_clk, longer * wait_clk)  # the tail: the others are done
    l2_s = total[SECTORS] * (32.0 / (figures.l2_bytes_per_clk_sm * gpu.sms * clock))
    return LaunchTime(
        core_s=_smooth_max(sm_clk / clock, l2_s),
        dram_s=work.dram_bytes * (1.0 / (gpu.memory_bandwidth * figures.dram_efficiency)),
        core_j=total[CORE_J],
        pipe_clk=pipe_clk,
        busy_s=(full * busy + busy_rest) / clock,
        latency_s=(full + (rest > 0)) * latency_clk / clock,
        l2_s=l2_s,
    )


def _occupied(blocks: Array, block_clk: Array, warps: Array) -> Array:
    """Clocks that `blocks` blocks keep an SM's pipes busy; warps spread unevenly over four schedulers cost."""
    resident = blocks * warps
    return blocks * block_clk * (np.ceil(resident * 0.25) * 4.0 / np.maximum(resident, 1.0))


def _smooth_max(a: Array, b: Array) -> Array:
    """`power.combine` without leaving the range of floats: (a**4 + b**4)**(1/4)."""
    high = np.maximum(a, b)
    ratio = np.minimum(a, b) / high
    ratio *= ratio
    ratio *= ratio
    ratio += 1.0
    return high * np.sqrt(np.sqrt(ratio, out=ratio), out=ratio)
