"""The analytic prior of time: the expected time of a launch on a GPU, without any measurement.

    SM clocks   rounds of concurrent blocks, each taking
                  - the time its pipes are busy (issue, FMA, integer, special, shared memory, L1, barriers), plus the
                    arithmetic between tensor instructions that other warps do not hide, and
                  - what is left of the latency of one block when others keep the pipes busy meanwhile: its
                    instructions in order, barriers, exposed load latency, stretches of its code that need
                    different pipes, and DRAM's time for its bytes beyond that latency;
                plus the tail: the time of the longest block beyond an average one, and its waits for other blocks
    core time   the slower of SM clocks and L2 (its bandwidth, and atomic operations that meet)
    DRAM time   bytes between L2 and DRAM over the bandwidth that this pattern of access reaches
    latency     core and DRAM time combined by a smooth maximum, plus launch overhead

Overlap: a block (or, in a kernel without barriers, a warp) either waits or uses the pipes, never both. With K of
them on an SM a round takes at least P + max((K - 1) P, Z), where P is the pipe time of one and Z the time that it waits
(machine repairman problem; Lazowska et al., "Quantitative System Performance", chapter 5), and more by the time that
they are in each other's way (`_round_clk`). A lone block with barriers takes P + Z. Where loads are issued ahead
(`LaunchWork.prefetch`), Z is only what exceeds the arithmetic.

Power, and the clock that a power limit allows, are in `kernrec.model.prior.power`. All computations are elementwise
over candidates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.gpu import GPU
from kernrec.model.prior.demand import (
    ALONE,
    BARRIERS,
    BETWEEN,
    BETWEEN_GROUPS,
    CORE_J,
    IN_TURN,
    PIPES,
    PORT,
    SECTORS,
    Demand,
)
from kernrec.model.prior.microarchitecture import l2_bytes_per_clk, microarchitecture
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray
Floats = NDArray[np.float64]

LAUNCH_S = 2.5e-6
"""Overhead of each launch: 2 to 3 us on every generation (fitted to the small shapes of the anchor
conv2d_f32_ansor.csv)."""
START_S = 2.5e-6
"""Additional overhead of the first launch of an op: an idle stream, a cold instruction cache and cold address
translation (fitted to the smallest shapes of the anchor matmul_f16_rtx3090.csv, which were timed launch by launch)."""

GROUPS_SHARE = 0.5
"""Share of the arithmetic between products of warpgroups (the weights of attention) that no other product hides,
however many of them take turns at the tensor cores; of the first tile of a block nothing is hidden. Chosen in view of
what was published of FlashAttention-3 (arXiv 2407.08608, figure 5) and recorded of it on an H200, at head sizes of 64,
128 and 256. With the time of one warp in all, as between instructions of warps, narrow heads come out 1.2 to 1.5 times
too fast."""

BARRIER_CLK = 22.0
"""Clocks that a warp that arrives last loses at a block-wide barrier, beyond its own instructions."""
BARRIER_WARP_CLK = 2.1
"""Clocks of an SM for each warp that arrives at a barrier. Both figures: Zhang et al., "A Study of Single and
Multi-device Synchronization Methods in Nvidia GPUs" (arXiv 2004.05371), V100: 22 cycles, 0.475 warps a cycle."""
_SCHEDULERS = 4  # of an SM of any catalogued GPU
_F64 = PIPES.index("f64")
_SHARED = PIPES.index("shared memory")  # it and L1, the last of the pipes, are in the row of their port, too
_BLOCK_CLK = 900
"""Clocks to start a block, compute its addresses and drain its last stores, of kernels that load ahead (fitted to the
anchor conv2d_f32_ansor.csv)."""
_START_CLK = 300.0
"""Clocks to start a block and to hand its place to the next one, of kernels whose waits for memory were all counted."""

INTERVAL = 2.0
"""Half-width of the prior's 90 % interval, as a factor: its spread against the anchors (`tools/evidence anchors`)."""

RESOURCES = (*PIPES, "latency", "L2", "DRAM", "launch")
"""The possible bottlenecks of a launch (`LaunchTime.bottleneck`)."""


@dataclass(frozen=True)
class LaunchWork:
    """The work of one launch of C candidates on one problem; arrays (C,)."""

    variants: Array
    """The candidates' columns in the demand."""
    terms: tuple[Array, ...]
    """Blocks of the grid, then trips of each loop over all blocks, in the order of the demand's terms."""
    depth: tuple[Array, ...]
    """Trips of each loop in the block that runs longest."""
    concurrent: Array
    """Blocks that fit on an SM at the same time."""
    warps: Array
    prefetch: Array
    """Trips ahead of which loads are issued."""
    dram_bytes: Array
    dram_slowdown: Array | float
    """Factor by which the pattern of access lengthens their time: 1 for streams."""
    serial_clk: Array | float
    """Clocks of L2 for the atomic operations that meet at the busiest sector; a number stands for none (0)."""
    rounds: Array
    """How often an average block waits for memory, caches included: between how many waits barriers fall."""
    overlapped: Array | float
    """Share of these waits beside which other warps of the block have work, no barrier being between; NaN: all but as
    many as it has barriers."""
    waits: Array | float = 0.0
    """How often the block that runs longest waits for L2 with nothing to do meanwhile, beside its loops; a number
    stands for none (0)."""


@dataclass(frozen=True)
class LaunchTime:
    """Time of one launch at the boost clock, without launch overhead, by what bounds it; arrays (C,)."""

    core_s: Array
    """Seconds bound by the core clock domain; they scale with the core clock."""
    dram_s: Array
    """Seconds bound by DRAM; they do not."""
    core_j: Array
    """Joules of core events at nominal voltage."""
    pipe_clk: Array
    """Clocks of each pipe for an average block, (P, C)."""
    busy_s: Array
    latency_s: Array
    """Seconds of the latency of all waves of blocks."""
    l2_s: Array
    """Seconds that L2 bandwidth takes, or atomic operations there."""
    dram_bytes: Array
    in_turn_s: Array | float = 0.0
    """Seconds of `core_s` that pass because a block waits for DRAM, or fills one pipe, while too few other blocks are
    there to use what its code needs elsewhere."""

    def pipe_s(self, rows: Array) -> Floats:
        """Seconds that each pipe is busy for these candidates, (P, rows), in proportion to the busiest pipe's."""
        clk: Floats = self.pipe_clk.take(rows, axis=1)
        pipe_s: Floats = clk * (self.busy_s.take(rows) / np.maximum(clk.max(axis=0), 1e-30))
        return pipe_s

    def bottleneck(self, row: int) -> str:
        """The resource of `RESOURCES` that takes longest for one candidate."""
        parts = self.parts(row)
        return max(parts, key=parts.__getitem__)

    def parts(self, row: int) -> dict[str, float]:
        """Seconds that one candidate keeps each resource of `RESOURCES` busy, or waits for it."""
        pipes = self.pipe_clk[:, row].tolist()
        share_s = float(self.busy_s[row]) / max(*pipes, 1e-30)
        parts = {name: share_s * clk for name, clk in zip(PIPES, pipes, strict=True)}
        waits = {"latency": self.latency_s, "L2": self.l2_s, "DRAM": self.dram_s}
        return parts | {name: float(column[row]) for name, column in waits.items()} | {"launch": START_S + LAUNCH_S}


def alone_clk(rates: Floats, warps: Floats, variants: Array) -> Floats:
    """Clocks that one term of a demand adds to a block that has an SM for itself, without waits for memory."""
    clk: Floats = rates[ALONE].take(variants) / warps + rates[BARRIERS].take(variants) * _barrier_clk(warps)
    return clk


def _barrier_clk(warps: Floats) -> Floats:
    """Clocks of a barrier for a block of so many warps that has an SM for itself."""
    return np.maximum(BARRIER_CLK, BARRIER_WARP_CLK * warps)


def join(works: Sequence[LaunchWork]) -> LaunchWork:
    """Concatenate several launches as if they were candidates of one launch; missing terms are zero."""
    if len(works) == 1:
        return works[0]
    most = max(len(work.terms) for work in works)

    def each(fields: list[tuple[Array, ...]], count: int) -> tuple[Array, ...]:
        padded = [(*f, *[np.zeros(len(w.variants))] * (count - len(f))) for f, w in zip(fields, works, strict=True)]
        return tuple([np.concatenate(parts) for parts in zip(*padded, strict=True)])

    columns: dict[str, Any] = {
        name: np.concatenate([getattr(work, name) for work in works])
        for name in ("variants", "concurrent", "warps", "prefetch", "dram_bytes", "rounds")
    }
    for name in ("dram_slowdown", "serial_clk", "overlapped", "waits"):
        columns[name] = _side_by_side(works, name)
    terms, depth = each([w.terms for w in works], most), each([w.depth for w in works], most - 1)
    return LaunchWork(terms=terms, depth=depth, **columns)


def _side_by_side(works: Sequence[LaunchWork], name: str) -> Array | float:
    """A field of several launches; one number where it is the same for all."""
    values = [getattr(work, name) for work in works]
    if not any(isinstance(value, np.ndarray) for value in values) and len(set(values)) == 1:
        return float(values[0])
    return np.concatenate([np.broadcast_to(v, w.variants.shape) for v, w in zip(values, works, strict=True)])


def launch_time(gpu: GPU, demand: Demand, work: LaunchWork) -> LaunchTime:
    """The time of launches at the boost clock; demand: of the kernel's variants on the GPU."""
    figures = microarchitecture(gpu)
    clock = gpu.boost_clock_hz
    blocks, warps = work.terms[0], work.warps
    each = 1.0 / blocks
    barrier_clk = _barrier_clk(warps)
    total, trips, longer, longer_clk, first_clk = _of_loops(demand, work, each, barrier_clk)
    pipe_clk = total[: len(PIPES)] * each
    barriers = total[BARRIERS] * each
    used_clk = np.concatenate((pipe_clk[:_SHARED], total[PORT : PORT + 1] * each))
    block_clk, by_scheduler = _block_clk(gpu, used_clk, barriers * (BARRIER_WARP_CLK * warps))
    # Users of the pipes: the block where barriers hold its warps together, else each warp.
    ahead = work.prefetch
    together_share = np.minimum(barriers / np.maximum(work.rounds, 1.0), 1.0)
    if isinstance(work.overlapped, np.ndarray):
        together_share = np.where(np.isnan(work.overlapped), together_share, 1.0 - work.overlapped)
    own_clk = block_clk * (together_share + (1.0 - together_share) / warps)
    # Latency of an average block: its instructions in order, barriers, and loads that prefetching does not hide.
    alone = np.maximum(total[ALONE] * (each / warps) + barriers * barrier_clk, own_clk)
    memory_clk = figures.dram_latency_clk
    wait_clk = memory_clk / np.maximum(ahead, 1)
    none_ahead = ahead == 0
    late = np.maximum(trips * wait_clk - np.where(none_ahead, 0.0, alone), 0.0)
    start_clk = np.where(none_ahead, _START_CLK, memory_clk + _BLOCK_CLK)
    wait = alone - own_clk + late + start_clk
    dram_s = work.dram_bytes * work.dram_slowdown * (1.0 / (gpu.memory_bandwidth * figures.dram_efficiency))
    # Rounds: an SM finishes `concurrent` blocks in the pipe time of one and the longer of the others' and its waits.
    per_sm = np.ceil(blocks / gpu.sms)
    together = np.minimum(work.concurrent, per_sm)
    full = np.floor(per_sm / together)
    rest = per_sm - full * together
    uneven = rest > 0
    busy = _occupied(together, block_clk, by_scheduler, warps)
    busy_rest = _occupied(rest, block_clk, by_scheduler, warps)
    # While a scheduler runs one warp's arithmetic between tensor instructions, its tensor core idles.
    between = total[BETWEEN] * (4.0 * each / warps)
    if demand.grouped and (grouped := total[BETWEEN_GROUPS] * each).any():
        # Before its first tiles have come, a block of warpgroups has nothing to do, and then no product hides weights.
        exposed = GROUPS_SHARE * grouped + (1.0 - GROUPS_SHARE) * first_clk + start_clk
        between = np.where(first_clk > 0, between + exposed, between)
    least, least_rest = busy + between, np.maximum(busy_rest + between, own_clk)
    sm_clk = full * _round_clk(own_clk, wait, least) + uneven * _round_clk(own_clk, wait, least_rest)
    in_turn_s: Array | float = 0.0
    if demand.stretched:
        in_turn_clk = total[IN_TURN] * each
        in_turn = own_clk + np.maximum(in_turn_clk - block_clk, 0.0) * together_share
        longest = np.maximum(alone, in_turn)
        exposed = _exposed_clk(longest, wait - (alone - own_clk), dram_s * (clock * gpu.sms) * each)
        wait = wait + (longest - alone) + np.where(in_turn_clk > 0.0, exposed * together_share, 0.0)
        at_once = sm_clk
        sm_clk = full * _round_clk(own_clk, wait, least) + uneven * _round_clk(own_clk, wait, least_rest)
        in_turn_s = (sm_clk - at_once) / clock
    sm_clk += np.maximum(longer_clk, longer * wait_clk)  # the tail, when all other blocks are done
    if isinstance(work.waits, np.ndarray):
        sm_clk += work.waits * figures.l2_latency_clk
    l2_clk = total[SECTORS] * (32.0 / l2_bytes_per_clk(gpu))
    if isinstance(work.serial_clk, np.ndarray):
        l2_clk = np.maximum(l2_clk, work.serial_clk)
    l2_s = l2_clk * (1.0 / clock)
    return LaunchTime(
        core_s=_smooth_max(sm_clk / clock, l2_s),
        dram_s=dram_s,
        core_j=total[CORE_J],
        pipe_clk=pipe_clk,
        busy_s=(full * busy + busy_rest) / clock,
        latency_s=(full + uneven) * (own_clk + wait) / clock,
        l2_s=l2_s,
        dram_bytes=work.dram_bytes,
        in_turn_s=in_turn_s,
    )


def _of_loops(
    demand: Demand, work: LaunchWork, each: Array, barrier_clk: Array
) -> tuple[Array, Array | float, Array | float, Array | float, Array | float]:
    """Sums over the loops, with one block's share `each` of the grid.

    Returns:
        The quantities of the demand over the whole grid; trips of an average block; the additional trips of the longest
        block, and their clocks; clocks between the first products of warpgroups.
    """
    total = demand.filled_rates[0].take(work.variants, axis=1) * work.terms[0]
    trips: Array | float = 0.0
    longer: Array | float = 0.0
    longer_clk: Array | float = 0.0
    first_clk: Array | float = 0.0
    # A demand may have loops that none of these launches executes.
    for rates, count, depth in zip(demand.filled_rates[1:], work.terms[1:], work.depth, strict=False):
        rate = rates.take(work.variants, axis=1)
        total += rate * count
        average = count * each
        beyond = depth - average
        trips = trips + average
        longer = longer + beyond
        if demand.grouped:
            first_clk = first_clk + rate[BETWEEN_GROUPS] * np.minimum(average, 1.0)
        longer_clk = longer_clk + (rate[ALONE] / work.warps + rate[BARRIERS] * barrier_clk) * beyond
    return total, trips, longer, longer_clk, first_clk


def _block_clk(gpu: GPU, used_clk: Array, barriers_clk: Array) -> tuple[Array, Array]:
    """(clocks that an average block uses the pipes of an SM, the same of the pipes that each scheduler has).

    The clocks of the pipes are combined by a smooth maximum. Warps in different phases use different pipes, so two
    pipes of equal time take 2**(1/8) = 1.09 times the time of one; recorded spaces fit that better than the 1.19 of
    core and DRAM.
    """
    peak = used_clk.max(axis=0)
    share = used_clk / peak
    share *= share
    share *= share
    share *= share
    shares = share.sum(axis=0)
    block_clk = by_scheduler = np.maximum(peak * np.sqrt(np.sqrt(np.sqrt(shares))), barriers_clk)
    if gpu.fma_per_clk_sm["f64"] < _SCHEDULERS and share[_F64].any():
        shares = np.maximum(shares - share[_F64], 0.0)
        by_scheduler = np.maximum(peak * np.sqrt(np.sqrt(np.sqrt(shares))), barriers_clk)
    return block_clk, by_scheduler


def _exposed_clk(alone: Floats, waited: Floats, dram_clk: Floats) -> Floats:
    """Clocks that a block with an SM for itself waits for DRAM beyond the latency of its loads.

    It does nothing else while its loads come, so the two add up: `alone` and the longer of `waited`, its latency, and
    `dram_clk`, in which DRAM moves what it reads and writes at the SM's share of the bandwidth. The smooth maximum of
    all with DRAM, which comes last, is to be that sum.
    """
    total = alone + np.maximum(waited, dram_clk)
    share = dram_clk / total
    share *= share
    clk: Floats = np.maximum(total * np.sqrt(np.sqrt(np.maximum(1.0 - share * share, 0.0))) - alone - waited, 0.0)
    return clk


def _occupied(blocks: Floats, block_clk: Floats, by_scheduler: Floats, warps: Floats) -> Floats:
    """Clocks that `blocks` blocks keep an SM's pipes busy; an uneven number of warps per scheduler costs time.

    Not so in a pipe that all schedulers share, as two f64 lanes are: however many warps are on an SM, recorded hotspot
    on an RTX A4000 takes 20 clocks for each of their f64 instructions. `by_scheduler` is the time of a block in all
    other pipes.
    """
    resident = blocks * warps
    uneven = np.ceil(resident * (1.0 / _SCHEDULERS)) * _SCHEDULERS / np.maximum(resident, 1.0)
    if by_scheduler is block_clk:
        return blocks * block_clk * uneven
    return blocks * np.maximum(block_clk, by_scheduler * uneven)


def _round_clk(own: Floats, wait: Floats, busy: Floats) -> Floats:
    """Clocks of a round: K = busy / own that use the pipes in turn, for `own` clocks each, and wait in between.

    By mean value analysis one of K finds (K - 1) / K of the queue that all of them make; of the one in service half is
    left, for service takes as long each time:

        response = own (1 + (K - 1) / K (queue - use / 2)),   queue = K response / round,   use = K own / round

    with round = response + wait: a quadratic equation. A round is never shorter than `busy`, nor than own + wait, and
    that is it where K = 1 (Lazowska et al., chapter 6, approximate mean value analysis; Reiser, "A Queueing Network
    Analysis of Computer Communication Networks with Window Flow Control", 1979, for what is left in service).
    """
    longer = busy - wait - own
    return np.maximum(busy, 0.5 * (busy + wait + np.sqrt(longer * longer + own * (own + 2.0 * wait))))


def _smooth_max(a: Floats, b: Floats) -> Floats:
    """The smooth maximum of `launch_costs.OVERLAP`, (a**4 + b**4)**(1/4), without overflow or underflow."""
    high = np.maximum(a, b)
    ratio = np.minimum(a, b) / high
    ratio *= ratio
    ratio *= ratio
    ratio += 1.0
    return high * np.sqrt(np.sqrt(ratio, out=ratio), out=ratio)
