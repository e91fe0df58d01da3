"""The prior's arithmetic of a launch: DRAM traffic, time, and the clock that a power limit leaves.

One source in two forms. Compiled (`core.pxd` has the types, `hatch_build.py` builds it), the loops run over launches,
and every name stands for a number. As plain Python, an axis of length one is put in front of the launches: the same
loops then run once, and every name stands for an array of all launches. So conditions on a launch are `select`, and
branches are for what holds of all of them. Callers are in `launch_time`, `dram_traffic` and `power`, which say what the
terms mean; `kernrec.util.compiled` chooses the form.

Rows of quantities are those of `demand.QUANTITIES`.
"""

from typing import Any

from kernrec.model.prior.elementwise import ceil, floor, gathered, maximum, minimum, select, some, sqrt, twin

PIPES = 9
"""The first rows of a demand: the clocks of each pipe."""
F64, SHARED, PORT, SECTORS, BARRIERS, CORE_J = 4, 7, 9, 10, 11, 12
BETWEEN, BETWEEN_GROUPS, ALONE, IN_TURN = 13, 14, 15, 16
"""Rows of these quantities. Shared memory and L1, the last of the pipes, are in the row of their port, too."""

BLOCKS, CONCURRENT, WARPS, PREFETCH, DRAM_BYTES, DRAM_SLOWDOWN, SERIAL_CLK = 0, 1, 2, 3, 4, 5, 6
WAIT_ROUNDS, OVERLAPPED, LONE_WAITS, LOOPS = 7, 8, 9, 10
"""Rows of `launch_time.LaunchWork`; from `LOOPS` on two rows for each loop, its trips over all blocks and those of the
block that runs longest."""

TIMES, RESOURCE = 8, 7
"""Rows of `launch_time.LaunchTime.rows`, of which the last is the position in `launch_time.RESOURCES` of what takes
longest."""
LAUNCH_S = 2.5e-6
"""Overhead of each launch: 2 to 3 us on every generation (fitted to the small shapes of the anchor
conv2d_f32_ansor.csv)."""
START_S = 2.5e-6
"""Additional overhead of the first launch of an op: an idle stream, a cold instruction cache and cold address
translation (fitted to the smallest shapes of the anchor matmul_f16_rtx3090.csv, which were timed launch by launch)."""
TWINS = 1024
"""Launches that are remembered while equal ones are looked for: a power of two."""

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
SCHEDULERS = 4.0
"""Of an SM of any catalogued GPU."""
BLOCK_CLK = 900.0
"""Clocks to start a block, compute its addresses and drain its last stores, of kernels that load ahead (fitted to the
anchor conv2d_f32_ansor.csv)."""
START_CLK = 300.0
"""Clocks to start a block and to hand its place to the next one, of kernels whose waits for memory were all counted."""

SQUARINGS = 2
OVERLAP = 2**SQUARINGS
"""Exponent p of the smooth maximum of parts that overlap, `(core_s**p + memory_s**p)**(1/p)`: two equal parts take
2**(1/4) = 1.19 times one of them. It is a power of two, so that squares and square roots compute it."""

NONE = float("nan")
CAPPED = 3.0
"""The number of `regime` of a launch whose clock the power limit lowers."""
PARTS, ROUNDS = 4, 5
"""Parts into which a round of the search for a clock divides the range that is left, and rounds."""
CLOCKS = 1024
"""`PARTS**ROUNDS`, the clocks of a table: 1/1024 of its range is finer than the 15 MHz steps of real GPUs."""
LEAST_SPARE_W = 1e-20
"""Divisor in place of the spare power if a limit leaves no power for events."""
RESTING = 0.75
"""Largest share of its power limit that a GPU is taken to draw while its clock pauses (judged): a GPU that waits long
lowers its memory's clock, too. Few GPUs need this bound: an RTX 3090 accepts 100 W, and its board and memory alone draw
104 W at full memory clock."""


class Card:
    """The figures of a GPU that decide about a launch."""

    def __init__(
        self,
        clock_hz: float,
        sms: float,
        l2_bytes: float,
        dram_byte_s: float,
        memory_clk: float,
        l2_clk_per_sector: float,
        l2_latency_clk: float,
        few_f64: bool,
        core_time: float,
        dram_time: float,
    ) -> None:
        """At the boost clock.

        Args:
            dram_byte_s: seconds of DRAM for a byte.
            memory_clk: latency of a load from DRAM.
            few_f64: whether an SM has fewer f64 lanes than schedulers.
            core_time: by what a calibration multiplies times of the core's clock domain; dram_time: those of DRAM.
        """
        self.clock_hz = clock_hz
        self.sms = sms
        self.l2_bytes = l2_bytes
        self.dram_byte_s = dram_byte_s
        self.memory_clk = memory_clk
        self.l2_clk_per_sector = l2_clk_per_sector
        self.l2_latency_clk = l2_latency_clk
        self.few_f64 = few_f64
        self.core_time = core_time
        self.dram_time = dram_time


class Rates:
    """The demand of a launch's variants."""

    def __init__(self, rates: Any, total: Any, seen: Any, grouped: bool, stretched: bool) -> None:
        """Of `demand.Demand`.

        Args:
            rates: (variants, terms, quantities), without the last quantity where none is `stretched`.
            total: room for the quantities of a launch.
            seen: room for the numbers of launches, (`TWINS`,).
        """
        self.rates = rates
        self.total = total
        self.seen = seen
        self.grouped = grouped
        self.stretched = stretched


class LaunchPlan:
    """A launch of configs on any problem: where a flat program has its figures, and the tensors that it moves."""

    def __init__(
        self, registers: Any, loops: int, steps: int, variant: Any, reads: Any, axes: Any, writes: Any, scratch: Any,
        room: Any,
    ) -> None:  # fmt: skip
        """Of a launch of a space's configs.

        Args:
            registers: register and index of blocks, tiles that they visit (-1: as many), waits of the block that runs
                longest, trips and depth of each loop, the extent of each step, and the elements of each tensor, -1
                where the bytes of each problem are the size.
            steps: of the grid's order, at least one; of an order of none the only extent is 1 (-1).
            variant: of every config of the space in the demand, (configs,).
            reads, axes, writes, scratch: of `dram_traffic`.
            room: for two numbers of each step, and one of each tensor.
        """
        self.registers = registers
        self.loops = loops
        self.steps = steps
        self.variant = variant
        self.reads = reads
        self.axes = axes
        self.writes = writes
        self.scratch = scratch
        self.room = room


def launch_times(demand: Rates, card: Card, loops: int, variants: Any, work: Any, pipe_clk: Any, times: Any) -> None:
    """Fills `pipe_clk` (`PIPES`, N) and `times` (`TIMES`, N), the rows of `LaunchTime`.

    Compiled, a launch of the same variant and work as an earlier one gets the figures of that one: of a kernel's
    configs as many as two in three differ in nothing that counts for some problem.

    Args:
        loops: how many loops the launches have.
        variants: of each launch in the demand, (N,).
        work: the rows of `LaunchWork`, (rows, N).
    """
    rates, total, stretched, grouped = demand.rates, demand.total, demand.stretched, demand.grouped
    clock_hz, sms, memory_clk, few_f64 = card.clock_hz, card.sms, card.memory_clk, card.few_f64
    quantities = rates.shape[2]
    for i in range(len(variants)):
        earlier = twin(demand.seen, variants, work, i)
        if earlier >= 0:
            for q in range(PIPES):
                pipe_clk[q, i] = pipe_clk[q, earlier]
            for row in range(TIMES):
                times[row, i] = times[row, earlier]
            continue
        variant, blocks, warp_count = variants[i], work[BLOCKS, i], work[WARPS, i]
        each = 1.0 / blocks
        barrier_clk = maximum(BARRIER_CLK, BARRIER_WARP_CLK * warp_count)
        # Sums over the loops: quantities over the whole grid, and what the longest block does beyond an average one.
        for q in range(quantities):
            total[q] = rates[variant, 0, q] * blocks
        trips, longer, longer_clk, first_clk = 0.0, 0.0, 0.0, 0.0
        for loop in range(1, loops + 1):
            count = work[LOOPS + 2 * (loop - 1), i]
            for q in range(quantities):
                total[q] = total[q] + rates[variant, loop, q] * count
            average = count * each
            beyond = work[LOOPS + 2 * (loop - 1) + 1, i] - average
            trips = trips + average
            longer = longer + beyond
            if grouped:
                first_clk = first_clk + rates[variant, loop, BETWEEN_GROUPS] * minimum(average, 1.0)
            longer_clk = (
                longer_clk
                + (rates[variant, loop, ALONE] / warp_count + rates[variant, loop, BARRIERS] * barrier_clk) * beyond
            )
        # The pipes of an average block, combined by a smooth maximum. Warps in different phases use different pipes, so
        # two pipes of equal time take 2**(1/8) = 1.09 times the time of one; recorded spaces fit that better than the
        # 1.19 of core and DRAM.
        for q in range(PIPES):
            pipe_clk[q, i] = total[q] * each
        barriers = total[BARRIERS] * each
        barriers_clk = barriers * (BARRIER_WARP_CLK * warp_count)
        peak = total[0] * each
        for q in range(1, SHARED):
            peak = maximum(peak, total[q] * each)
        peak = maximum(peak, total[PORT] * each)
        shares = eighth_power(total[0] * each / peak)
        for q in range(1, SHARED):
            shares = shares + eighth_power(total[q] * each / peak)
        shares = shares + eighth_power(total[PORT] * each / peak)
        block_clk = maximum(peak * eighth_root(shares), barriers_clk)
        # The clocks of the pipes that each scheduler has for itself.
        by_scheduler, shared_f64 = block_clk, 0.0
        if few_f64:
            shared_f64 = eighth_power(total[F64] * each / peak)
            by_scheduler = maximum(peak * eighth_root(maximum(shares - shared_f64, 0.0)), barriers_clk)
        # Users of the pipes: the block where barriers hold its warps together, else each warp.
        overlapped, ahead = work[OVERLAPPED, i], work[PREFETCH, i]
        together_share = minimum(barriers / maximum(work[WAIT_ROUNDS, i], 1.0), 1.0)
        together_share = select(overlapped == overlapped, 1.0 - overlapped, together_share)
        own_clk = block_clk * (together_share + (1.0 - together_share) / warp_count)
        # Latency of an average block: its instructions in order, barriers, and loads that prefetching does not hide.
        alone = maximum(total[ALONE] * (each / warp_count) + barriers * barrier_clk, own_clk)
        wait_clk = memory_clk / maximum(ahead, 1.0)
        none_ahead = ahead == 0.0
        late = maximum(trips * wait_clk - select(none_ahead, 0.0, alone), 0.0)
        start_clk = select(none_ahead, START_CLK, memory_clk + BLOCK_CLK)
        wait = alone - own_clk + late + start_clk
        dram_s = work[DRAM_BYTES, i] * work[DRAM_SLOWDOWN, i] * card.dram_byte_s
        # Rounds: an SM finishes `concurrent` blocks in the pipe time of one and the longer of the others' and its
        # waits.
        per_sm = ceil(blocks / sms)
        together = minimum(work[CONCURRENT, i], per_sm)
        full = floor(per_sm / together)
        rest = per_sm - full * together
        uneven = select(rest > 0.0, 1.0, 0.0)
        busy = occupied(together, block_clk, by_scheduler, shared_f64, warp_count)
        busy_rest = occupied(rest, block_clk, by_scheduler, shared_f64, warp_count)
        # While a scheduler runs one warp's arithmetic between tensor instructions, its tensor core idles.
        between = total[BETWEEN] * (4.0 * each / warp_count)
        if grouped:
            # Before its first tiles have come, a block of warpgroups has nothing to do, and then no product hides
            # weights.
            exposed = GROUPS_SHARE * (total[BETWEEN_GROUPS] * each) + (1.0 - GROUPS_SHARE) * first_clk + start_clk
            between = select(first_clk > 0.0, between + exposed, between)
        least = busy + between
        least_rest = maximum(busy_rest + between, own_clk)
        sm_clk = full * round_clk(own_clk, wait, least) + uneven * round_clk(own_clk, wait, least_rest)
        in_turn_s = 0.0
        if stretched:
            in_turn_clk = total[IN_TURN] * each
            in_turn = own_clk + maximum(in_turn_clk - block_clk, 0.0) * together_share
            longest = maximum(alone, in_turn)
            exposed = exposed_clk(longest, wait - (alone - own_clk), dram_s * (clock_hz * sms) * each)
            wait = wait + (longest - alone) + select(in_turn_clk > 0.0, exposed * together_share, 0.0)
            in_turns = full * round_clk(own_clk, wait, least) + uneven * round_clk(own_clk, wait, least_rest)
            in_turn_s = (in_turns - sm_clk) / clock_hz
            sm_clk = in_turns
        sm_clk = sm_clk + maximum(longer_clk, longer * wait_clk)  # the tail, when all other blocks are done
        sm_clk = sm_clk + work[LONE_WAITS, i] * card.l2_latency_clk
        l2_s = maximum(total[SECTORS] * card.l2_clk_per_sector, work[SERIAL_CLK, i]) * (1.0 / clock_hz)
        slower = card.core_time
        times[0, i] = smooth_maximum(sm_clk / clock_hz, l2_s) * slower
        times[1, i] = dram_s * card.dram_time
        times[2, i] = total[CORE_J]
        times[3, i] = (full * busy + busy_rest) / clock_hz * slower
        times[4, i] = (full + uneven) * (own_clk + wait) / clock_hz * slower
        times[5, i] = l2_s * slower
        times[6, i] = in_turn_s * slower
        most: Any = pipe_clk[0, i]
        resource: Any = 0.0
        for q in range(1, PIPES):
            resource = select(pipe_clk[q, i] > most, q, resource)
            most = maximum(most, pipe_clk[q, i])
        most = select(most > 0.0, times[3, i], 0.0)  # the pipes are busy as long as the busiest of them
        resource = select(times[4, i] > most, PIPES, resource)
        most = maximum(times[4, i], most)
        resource = select(times[5, i] > most, PIPES + 1, resource)
        most = maximum(times[5, i], most)
        resource = select(times[1, i] > most, PIPES + 2, resource)
        most = maximum(times[1, i], most)
        times[RESOURCE, i] = select(most < START_S + LAUNCH_S, PIPES + 3, resource)


def eighth_power(value: Any) -> Any:
    squared = value * value
    fourth = squared * squared
    return fourth * fourth


def eighth_root(value: Any) -> Any:
    return sqrt(sqrt(sqrt(value)))


def occupied(blocks: Any, block_clk: Any, by_scheduler: Any, shared_f64: Any, warps: Any) -> Any:
    """Clocks that `blocks` blocks keep an SM's pipes busy; an uneven number of warps per scheduler costs time.

    Not so in a pipe that all schedulers share, as two f64 lanes are (`shared_f64` is above 0 where something uses
    them): however many warps are on an SM, recorded hotspot on an RTX A4000 takes 20 clocks for each of their f64
    instructions. `by_scheduler` is the time of a block in all other pipes.
    """
    resident = blocks * warps
    uneven = ceil(resident * (1.0 / SCHEDULERS)) * SCHEDULERS / maximum(resident, 1.0)
    return select(shared_f64 > 0.0, blocks * maximum(block_clk, by_scheduler * uneven), blocks * block_clk * uneven)


def round_clk(own: Any, wait: Any, busy: Any) -> Any:
    """Clocks of a round: K = busy / own that use the pipes in turn, for `own` clocks each, and wait in between.

    By mean value analysis one of K finds (K - 1) / K of the queue that all of them make; of the one in service half is
    left, for service takes as long each time:

        response = own (1 + (K - 1) / K (queue - use / 2)),   queue = K response / round,   use = K own / round

    with round = response + wait: a quadratic equation. A round is never shorter than `busy`, nor than own + wait, and
    that is it where K = 1 (Lazowska et al., chapter 6, approximate mean value analysis; Reiser, "A Queueing Network
    Analysis of Computer Communication Networks with Window Flow Control", 1979, for what is left in service).
    """
    longer = busy - wait - own
    return maximum(busy, 0.5 * (busy + wait + sqrt(longer * longer + own * (own + 2.0 * wait))))


def exposed_clk(alone: Any, waited: Any, dram_clk: Any) -> Any:
    """Clocks that a block with an SM for itself waits for DRAM beyond the latency of its loads.

    It does nothing else while its loads come, so the two add up: `alone` and the longer of `waited`, its latency, and
    `dram_clk`, in which DRAM moves what it reads and writes at the SM's share of the bandwidth. The smooth maximum of
    all with DRAM, which comes last, is to be that sum.
    """
    total = alone + maximum(waited, dram_clk)
    rest = maximum(1.0 - overlap_power(dram_clk / total), 0.0)
    return maximum(total * overlap_root(rest) - alone - waited, 0.0)


def smooth_maximum(a: Any, b: Any) -> Any:
    """The smooth maximum `(a**OVERLAP + b**OVERLAP)**(1/OVERLAP)`, without overflow or underflow."""
    high = maximum(a, b)
    return high * overlap_root(overlap_power(minimum(a, b) / high) + 1.0)


def dram_traffic(
    blocks: Any,
    concurrent: Any,
    extents: Any,
    sizes: Any,
    reads: Any,
    axes: Any,
    writes: Any,
    scratch: Any,
    l2_bytes: float,
    room: Any,
    moved: Any,
) -> None:
    """Fills `moved` (N,), the bytes of `dram_traffic.dram_bytes`.

    Args:
        extents: of each step of the grid's order, fastest-varying first, (steps, N); at least one.
        sizes: bytes of each tensor, (tensors, N).
        reads: numbers of the tensors that are read.
        axes: of each of these, whether a step selects its tiles, (reads, steps).
        writes: numbers of the tensors that are written.
        scratch: whether a tensor lives between launches only, (tensors,).
        room: for two numbers of each step, and one of each tensor.
    """
    steps = extents.shape[0]
    for i in range(len(blocks)):
        for step in range(steps):
            room[step] = extents[step, i]
        for tensor in range(sizes.shape[0]):
            room[2 * steps + tensor] = sizes[tensor, i]
        moved[i] = moved_bytes(blocks[i], concurrent[i], steps, room, reads, axes, writes, scratch, l2_bytes)


def moved_bytes(
    blocks: Any,
    concurrent: Any,
    steps: int,
    room: Any,
    reads: Any,
    axes: Any,
    writes: Any,
    scratch: Any,
    l2_bytes: float,
) -> Any:
    """The bytes of `dram_traffic` of one launch; room: the extents of its steps, room for their shares, its sizes."""
    last, first_size = steps - 1, 2 * steps
    working_set = 0.0
    for tensor in range(len(scratch)):
        working_set = working_set + room[first_size + tensor]
    miss = maximum(1.0 - l2_bytes / working_set, 0.0)
    wave = minimum(concurrent, blocks)
    waves = blocks / wave
    # The share of each step that a wave covers.
    for step in range(last):
        room[steps + step] = minimum(wave, room[step]) / room[step]
        wave = rest_of_wave(wave, room[step])
    room[steps + last] = minimum(wave, room[last]) / room[last]
    total = 0.0
    for number in range(len(reads)):
        loads = waves  # how often the tensor is loaded, over all waves
        for step in range(steps):
            if axes[number, step]:
                loads = loads * room[steps + step]
        again = miss * maximum(loads - 1.0, 0.0)
        if scratch[reads[number]]:
            total = total + room[first_size + reads[number]] * (miss + again)
        else:
            total = total + room[first_size + reads[number]] * (1.0 + again)
    for number in range(len(writes)):
        if scratch[writes[number]]:
            total = total + room[first_size + writes[number]] * miss
        else:
            total = total + room[first_size + writes[number]]
    return total


def rest_of_wave(wave: Any, extent: Any) -> Any:
    """How far a wave reaches along the steps that follow one of this extent."""
    return maximum(wave / extent, 1.0)


def launch_costs(
    plan: LaunchPlan,
    demand: Rates,
    card: Card,
    values: Any,
    indexes: Any,
    rows: Any,
    geometry: Any,
    sizes: Any,
    first: int,
    last: int,
    variants: Any,
    work: Any,
    places: Any,
    byte_j: float,
    pipe_clk: Any,
    times: Any,
    nominal: Any,
    longest: Any,
) -> None:
    """One launch of configs from a program, all that follows from it: `launch_work` of the last problem that some are
    on, `launch_times` and `add_launch` of all."""
    launch_work(plan, card, values, indexes, rows, geometry, sizes, first, last, variants, work)
    launch_times(demand, card, plan.loops, variants, work, pipe_clk, times)
    add_launch(places, times, work, byte_j, nominal, longest)


def launch_work(
    plan: LaunchPlan,
    card: Card,
    values: Any,
    indexes: Any,
    rows: Any,
    geometry: Any,
    sizes: Any,
    first: int,
    last: int,
    variants: Any,
    work: Any,
) -> None:
    """Fills `variants` (N,) and `work` (rows, N), `launch_time.LaunchWork` of one launch of configs, from a program.

    Args:
        values, indexes: of the program on a problem (`kernrec.kernel.program`).
        rows: of the configs in their space, (N,).
        geometry: blocks on an SM, warps and prefetch of every config of the space, (3, configs).
        sizes: bytes of each tensor, or of its elements, (tensors,).
        first, last: the configs on this problem are from the first to before the last one.
    """
    registers, room, steps = plan.registers, plan.room, plan.steps
    for i in range(first, last):
        row = rows[i]
        variants[i] = plan.variant[row]
        blocks = gathered(values, registers[0], indexes, registers[1], row)
        work[BLOCKS, i] = blocks
        work[CONCURRENT, i] = geometry[0, row]
        work[WARPS, i] = geometry[1, row]
        work[PREFETCH, i] = geometry[2, row]
        work[LONE_WAITS, i] = gathered(values, registers[4], indexes, registers[5], row)
        place, total = 6, 0.0
        for loop in range(plan.loops):
            trips = gathered(values, registers[place], indexes, registers[place + 1], row)
            total = total + trips
            work[LOOPS + 2 * loop, i] = trips
            work[LOOPS + 2 * loop + 1, i] = gathered(values, registers[place + 2], indexes, registers[place + 3], row)
            place = place + 4
        work[DRAM_SLOWDOWN, i] = 1.0
        work[SERIAL_CLK, i] = 0.0
        work[WAIT_ROUNDS, i] = total / blocks
        work[OVERLAPPED, i] = NONE
        visits, together = blocks, geometry[0, row] * card.sms
        if registers[2] >= 0:
            visits, together = gathered(values, registers[2], indexes, registers[3], row), minimum(together, blocks)
        for step in range(steps):
            room[step] = 1.0
            if registers[place] >= 0:
                room[step] = gathered(values, registers[place], indexes, registers[place + 1], row)
            place = place + 2
        for tensor in range(len(plan.scratch)):
            room[2 * steps + tensor] = sizes[tensor]
            if registers[place] >= 0:
                elements = gathered(values, registers[place], indexes, registers[place + 1], row)
                room[2 * steps + tensor] = elements * sizes[tensor]
            place = place + 2
        work[DRAM_BYTES, i] = moved_bytes(
            visits, together, steps, room, plan.reads, plan.axes, plan.writes, plan.scratch, card.l2_bytes
        )


def add_launch(places: Any, times: Any, work: Any, byte_j: float, nominal: Any, longest: Any) -> None:
    """Adds one launch of configs to their costs before any power limit.

    Args:
        places: of the configs in `nominal`, each once, (N,).
        times, work: of `launch_times`.
        byte_j: joules of DRAM for a byte.
        nominal: the fields of `NominalCosts` as rows, (5, C), changed in place.
        longest: of the longest launch of each config so far, seconds of core or DRAM and its `RESOURCE`, (2, C),
            changed in place.
    """
    for i in range(len(places)):
        place = places[i]
        nominal[0, place] += times[0, i]
        nominal[1, place] += times[1, i]
        nominal[2, place] += LAUNCH_S
        nominal[3, place] += times[2, i]
        nominal[4, place] += work[DRAM_BYTES, i] * byte_j
        part_s = maximum(times[0, i], times[1, i])
        longest[1, place] = select(part_s > longest[0, place], times[RESOURCE, i], longest[1, place])
        longest[0, place] = maximum(part_s, longest[0, place])


def quick_costs(
    plan: LaunchPlan,
    card: Card,
    values: Any,
    indexes: Any,
    rows: Any,
    geometry: Any,
    rates: Any,
    start_clk: float,
    first: int,
    last: int,
    places: Any,
    clocks: Any,
    joules: Any,
) -> None:
    """Adds the clocks and joules of the core of one launch of configs, roughly: without DRAM.

    Args:
        values, indexes, rows, geometry: of `launch_work`.
        rates: `LaunchGeometry.quick`, (terms, 3, configs).
        start_clk: clocks of each launch beside its work.
        first, last: of `launch_work`, too.
        places: of the configs in `clocks` and `joules`, each once, (N,).
    """
    registers, sms, memory_clk = plan.registers, card.sms, card.memory_clk
    for i in range(first, last):
        row, place = rows[i], places[i]
        blocks = gathered(values, registers[0], indexes, registers[1], row)
        busiest, alone, dynamic, trips = rates[0, 0, row], rates[0, 1, row], rates[0, 2, row] * blocks, 0.0
        for loop in range(plan.loops):
            register = 6 + 4 * loop
            depth = gathered(values, registers[register + 2], indexes, registers[register + 3], row)
            trips = trips + depth
            busiest = busiest + rates[loop + 1, 0, row] * depth
            alone = alone + rates[loop + 1, 1, row] * depth
            dynamic = dynamic + rates[loop + 1, 2, row] * gathered(
                values, registers[register], indexes, registers[register + 1], row
            )
        waits = trips * (memory_clk / maximum(geometry[2, row], 1.0))
        per_sm = ceil(blocks / sms)
        rounds = ceil(per_sm / geometry[0, row])
        clocks[place] = (
            clocks[place] + start_clk + maximum(per_sm * busiest, rounds * (maximum(alone, waits) + memory_clk))
        )
        joules[place] = joules[place] + dynamic


def limited_costs(
    launches: Any,
    places: Any,
    limits_w: Any,
    each: int,
    highest: Any,
    highest_hz: Any,
    first: Any,
    table: Any,
    table_hz: Any,
    search: Any,
    costs: Any,
) -> None:
    """Fills `costs` (7, P, N) at `places`: latency_s, power_w, energy_j, clock_hz, static_j, core_j, and the number of
    `regime`. As Python the points are the last axis, that of the launches is the one before.

    Args:
        launches: the fields of `NominalCosts` as rows, (5, N).
        places: of the launches that are wanted, (M,).
        limits_w: the power limit of each point and launch, (P, N), or of each point, (P, 1).
        each: 1 where each launch has a limit of its own, else 0.
        highest: at the highest clock of each point, (4, P): clock over the boost clock, power of board and leakage (W),
            power of the clock tree at nominal voltage (W), square of the core voltage over that at the boost clock.
        highest_hz: that clock, (P,).
        first: where the clocks of each point begin in the tables, (P,).
        table: the rows of `highest` at the clocks below, (4, clocks).
        table_hz: these clocks, ascending from each of `first`, (clocks,).
        search: the table's columns of the search, (3, clocks): boost clock over the clock to the power of `OVERLAP`,
            power without events (W), square of the core voltage over that at the boost clock.
    """
    for p in range(len(highest_hz)):
        for i in range(len(places)):
            place = places[i]
            core_s, dram_s, fixed_s, core_j, dram_j = (
                launches[0, place], launches[1, place], launches[2, place], launches[3, place], launches[4, place],
            )  # fmt: skip
            dram = overlap_power(dram_s)
            tree_w, volts_squared, clock_hz = highest[2, p], highest[3, p], highest_hz[p]
            latency = overlap_root(overlap_power(core_s / highest[0, p]) + dram) + fixed_s
            static_j = highest[1, p] * latency
            clocked_j = (tree_w * latency + core_j) * volts_squared
            energy = static_j + clocked_j + dram_j
            power = energy / latency
            over = power > limits_w[p, place * each]
            if some(over):
                # Each round tries a few clocks of the range that is left: a launch draws more power the higher its
                # clock.
                clock, core, step = first[p], overlap_power(core_s), CLOCKS
                for _ in range(ROUNDS):
                    step = step // PARTS
                    within = 0
                    for trial in range(1, PARTS):
                        tried = clock + trial * step
                        # The events fit under the limit where the launch takes long enough; no root says so. Without
                        # any spare power the launch, however long, does not.
                        spare_w = limits_w[p, place * each] - search[1, tried]
                        divisor_w = maximum(spare_w, LEAST_SPARE_W)
                        enough_s = maximum((search[2, tried] * core_j + dram_j) / divisor_w - fixed_s, 0.0)
                        fits = search[0, tried] * core + dram >= overlap_power(enough_s)
                        within = within + fits * (spare_w > 0.0)
                    clock = clock + within * step
                slow = overlap_root(overlap_power(core_s / table[0, clock]) + dram) + fixed_s
                latency = select(over, slow, latency)
                static_j = select(over, table[1, clock] * slow, static_j)
                clocked_j = select(over, (table[2, clock] * slow + core_j) * table[3, clock], clocked_j)
                clock_hz = select(over, table_hz[clock], clock_hz)
                energy = static_j + clocked_j + dram_j
                power = energy / latency
                # Beyond what the lowest clock saves, the GPU pauses its clock between pulses, in which only the board
                # and leakage draw power: for as long as the mean power then is the limit.
                limit_w = limits_w[p, place * each]
                pausing = power > limit_w
                resting_w = minimum(table[1, clock], RESTING * limit_w)
                paused_s = maximum(energy - limit_w * latency, 0.0) / (limit_w - resting_w)
                latency = select(pausing, latency + paused_s, latency)
                static_j = select(pausing, static_j + resting_w * paused_s, static_j)
                energy = select(pausing, limit_w * latency, energy)
                power = select(pausing, limit_w, power)
            costs[0, p, place] = latency
            costs[1, p, place] = power
            costs[2, p, place] = energy
            costs[3, p, place] = clock_hz
            costs[4, p, place] = static_j
            costs[5, p, place] = clocked_j
            costs[6, p, place] = regime(core_s, dram_s, fixed_s, over)


def regime(core_s: Any, dram_s: Any, fixed_s: Any, capped: Any) -> Any:
    """Position in `spread.REGIMES` of what bounds a launch; capped: whether the power limit lowers its clock."""
    bound = select(fixed_s > maximum(core_s, dram_s), 2.0, select(dram_s > core_s, 1.0, 0.0))
    return select(capped, CAPPED, bound)


def overlap_power(value: Any) -> Any:
    """`value**OVERLAP`. Squaring takes a twentieth of the time of a general power."""
    for _ in range(SQUARINGS):
        value = value * value
    return value


def overlap_root(value: Any) -> Any:
    """`value**(1/OVERLAP)`."""
    for _ in range(SQUARINGS):
        value = sqrt(value)
    return value
