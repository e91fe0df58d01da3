"""Convert profiles from a sample of blocks (`kernrec.profile.sample_profile`) to the form that a static table needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.gpu import GPU, l1_bytes, occupancy
from kernrec.kernel import Expression, ProblemSpace
from kernrec.model.analytical.demand import Demand, smooth_max
from kernrec.model.analytical.dram_traffic import Footprint, Rereads, covered
from kernrec.model.analytical.microarchitecture import microarchitecture
from kernrec.store import ProfileTable
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_SECTOR_BYTES = 32.0
_SECTORS_PER_REQUEST = 4  # A warp's access to local memory moves one word per lane.
_L1_LATENCY_CLK = 33.0
"""Latency of a load that hits in L1, in clock cycles. It is 32 to 34 on GPUs from Turing to Hopper
(RRZE-HPC/gpu-benches, gpu-latency; for an RTX 2070, sjfeng1999/gpu-arch-microbenchmark)."""
_ROW_BYTES = 123.0
"""Bytes that DRAM can move in the time between two row activations.

The value follows from the kernel `add_strided` in textbook_rtx3060_rtx3070ti.csv, at 4096 x 4096. With accesses to 64
consecutive bytes, the kernel reaches 0.62 and 0.65 of the bandwidth of a copy.

A bank can activate a row while other banks move data. So an access takes the longer of activation and transfer, not
the sum. Recorded matmuls confirm the maximum (inductor_mm_h100.parquet, 8 x 129792 x 4096, rows along k). Accesses of
128 bytes take 1.02 to 1.13 times as long as accesses of 512 bytes, but a sum would predict 1.46 times. Accesses of 64
bytes take 1.70 to 1.92 times as long.
"""
_NEAR_TURN_CLK = 1.25
"""Clock cycles between atomic operations in L2 on two different sectors within 512 bytes.

The value is fitted to histograms with 512 bins of 4 bytes, which reach 47 G additions per second on GPUs from an RTX
3060 to an RTX 3080. Histograms of other sizes are assumed to need the same time per 512 bytes.
"""
_L2_OF_WRITES = 0.25
"""Fraction of L2 that is assumed to hold the data written last."""


@dataclass(frozen=True)
class SampledLaunch:
    """Results of the emulated blocks of one launch. Arrays have one element per compiled variant."""

    requested: ProfileTable
    """Profiles that count all requested sectors, including hits in L1."""
    table: ProfileTable
    """Profiles that exclude hits in L1."""
    rounds: Array
    """Time that a block waits for DRAM, L2 and L1, divided by the DRAM latency."""
    every_round: Array
    """Number of times that a block waits for memory or a cache."""
    overlapped: Array
    """Fraction of the waits during which other warps of the block have work."""
    busy: Array
    """Fraction of the grid's blocks that have work. The profiles describe an average block with work."""
    longest: Array
    """Ratio of the work of the longest block to the work of an average block."""
    cache_bytes: Array

    def rereads(self, variants: Array) -> Rereads | None:
        """Return the bytes that a block of each variant loads more than once, or None if not known."""
        names = [m for m in self.requested.metrics if m.startswith("again.")]
        sizes = sorted(int(size) for m in names if (size := m.removeprefix("again.")).isdigit())
        if len(sizes) < 2:
            return None
        loads = [m for m in self.requested.metrics if m.startswith("global.") and m.endswith(".read_sectors")]
        loaded = _SECTOR_BYTES * sum((self.requested.column(m) for m in loads), np.zeros(len(self.cache_bytes)))
        # Clip, because profiles may be from an untrusted source.
        shares = (np.clip(self.requested.column(f"again.{size}"), 0.0, 1.0) for size in sizes)
        far = tuple((loaded * share).take(variants) for share in shares)
        return Rereads(far, 1024.0 * sizes[0], self.cache_bytes.take(variants))

    def dram_slowdown(self, variants: Array, grid: Sequence[Array], concurrent_blocks: Array, l2_bytes: float) -> Array:
        """Return the DRAM time of the accesses, divided by the DRAM time of one contiguous access of equal size.

        Accesses are slower if they move few consecutive bytes. Adjacent accesses of concurrent blocks count as one.

        Args:
            variants: rows of the profiles.
            grid: extents of the grid along x, y and z, one element per variant.
            concurrent_blocks: number of blocks that run concurrently on the GPU, one element per variant.
            l2_bytes: size of L2 in bytes.
        """
        blocks = grid[0] * grid[1] * grid[2]
        stretched: Array | float = 0.0
        moved: Array | float = 0.0
        for kind in ("read", "write"):
            names = [m for m in self.table.metrics if m.startswith("touch.") and m.endswith("." + kind)]
            own_bytes = _SECTOR_BYTES * sum((self.table.column(m).take(variants) for m in names), 0.0)
            run = np.maximum(self.table.column(f"run.{kind}").take(variants), 1.0)
            reach = concurrent_blocks
            if kind == "write":
                reach = np.maximum(reach, _L2_OF_WRITES * l2_bytes / np.maximum(own_bytes, 1.0))
            order = [(axis, extent) for axis, extent in zip("xyz", grid, strict=True)]
            broken = np.ones(len(variants))
            for axis, cover in zip("xyz", covered(order, np.minimum(reach, blocks)), strict=True):
                joined = self.table.column(f"run.{kind}.{axis}").take(variants)
                broken = np.minimum(broken, 1.0 - joined * (1.0 - 1.0 / np.maximum(cover, 1.0)))
            opening = np.where(run > 1.0, _ROW_BYTES * broken / run, 0.0)
            stretched = stretched + own_bytes * smooth_max(np.stack([np.ones(len(variants)), opening]))
            moved = moved + own_bytes
        return np.asarray(np.where(moved > 0.0, stretched / np.maximum(moved, 1.0), 1.0))

    def local_dram_bytes(self, variants: Array, concurrent_blocks: Array, l2_bytes: float) -> Array:
        """Return the bytes of local memory that a block of each variant moves between L2 and DRAM."""
        stacks = self.table.column("local.bytes").take(variants) * concurrent_blocks
        moved = _SECTOR_BYTES * self.table.column("local.l2_sectors").take(variants)
        return np.asarray(moved * np.clip(1.0 - l2_bytes / np.maximum(stacks, 1.0), 0.0, 1.0))

    def serial_clk(self, variants: Array, blocks: Array) -> Array:
        """Return the clock cycles that L2 needs for the atomic operations on the most contended address."""
        counted = (self.table.column(m) for m in self.table.metrics if m.endswith("atomic_turns"))
        turns = sum(counted, np.zeros(len(self.table.variant_keys)))
        same_sector, near = (
            np.maximum(
                self.table.column(f"atomic.own{ending}").take(variants),
                self.table.column(f"atomic.meet{ending}").take(variants) * blocks,
            )
            for ending in ("", ".512")
        )
        # Operations on nearby addresses also count, because the same L2 slices execute them.
        meeting = same_sector + _NEAR_TURN_CLK * np.maximum(near - same_sector, 0.0)
        clk: Array = turns.take(variants) * meeting
        return clk


def read_sample(
    index: int, table: ProfileTable, variants: Array, on_problem: ProblemSpace, gpu: GPU, warm: bool
) -> SampledLaunch:
    """Return the results of the emulated blocks of one launch.

    Args:
        index: index of the launch.
        table: profiles of the sampled blocks.
        variants: row of `table` for each config, or -1 if the config has no profile.
        on_problem: config space of the kernel on the problem that was sampled.
        warm: whether L2 holds as much of the launch's data as fits when the launch starts.
    """
    launch = on_problem.space.kernel.launches[index]
    rows = np.flatnonzero(variants >= 0)

    def by_variant(expression: Expression) -> Array:
        spread = np.broadcast_to(np.asarray(on_problem.column(expression)), len(variants))
        values = np.zeros(len(table.variant_keys), dtype=np.int64)
        values[variants[rows]] = spread[rows]
        return values

    shared = by_variant(launch.shared) + table.static_smem_bytes
    threads = by_variant(launch.threads)
    grid = [by_variant(extent) for extent in launch.grid]
    busy = 1.0 - table.column("idle")
    longest = np.maximum(table.column("longest"), 1.0)
    # A small grid does not fill the SMs.
    present = np.ceil(np.prod(grid, axis=0) * busy / gpu.sms).astype(np.int64)
    resident = np.maximum(np.minimum(occupancy(gpu.limits, threads, table.registers, shared).blocks, present), 1)
    cache = l1_bytes(gpu.limits, resident, shared) / resident
    held, held_wait = held_by_l1(table, cache)
    counts = table.counts.copy()
    whole, in_wave = (np.zeros(len(counts)) for _ in range(2))
    grid = busy_grid(grid, busy)
    blocks = np.prod(grid, axis=0)
    wave = np.minimum(resident * gpu.sms, blocks)
    order = list(zip("xyz", grid, strict=True))
    cover = covered(order, wave)
    for name in _read_buffers(table):
        metric = f"global.{name}.read_sectors"
        if metric in table.metrics:
            counts[:, table.metrics.index(metric), 0] *= 1.0 - held
    every = np.arange(len(counts))
    sizes: dict[str, Array | float] = dict.fromkeys(_read_buffers(table), np.inf)
    sizes |= {name: float(tensor.bytes) for name, tensor in on_problem.problem.tensors.items()}
    for footprint in footprints(table, every, sizes, frozenset()):
        if not footprint.written:
            whole += footprint.whole(grid, blocks) / _SECTOR_BYTES
            in_wave += footprint.together(cover, wave) / _SECTOR_BYTES
    # Blocks that read the same data at the same time all wait for DRAM, although DRAM reads the data once. Later blocks
    # wait only for L2 if L2 still holds the data. If L2 is warm, the first blocks also wait only for L2.
    figures = microarchitecture(gpu)
    again = 1.0 if warm else np.clip(1.0 - whole / np.maximum(in_wave * (blocks / wave), 1.0), 0.0, 1.0)
    past_l2 = 1.0 - again * np.minimum(gpu.l2_bytes / np.maximum(whole * _SECTOR_BYTES, 1.0), 1.0)
    far = past_l2 + (1.0 - past_l2) * (figures.l2_latency_clk / figures.dram_latency_clk)
    near = _L1_LATENCY_CLK / figures.dram_latency_clk
    rounds = table.column("rounds")
    answered = _with_local_memory(replace(table, counts=counts), threads, resident, cache * resident)
    overlapped = np.clip(table.column("overlapped"), 0.0, 1.0)  # Clip, because profiles may be untrusted.
    waits = rounds * ((1.0 - held_wait) * far + held_wait * near)
    return SampledLaunch(table, answered, waits, rounds, overlapped, busy, longest, cache)


def busy_grid(grid: Sequence[Array], busy: Array) -> list[Array]:
    """Return the extents of the grid, along each axis, without its idle blocks.

    `busy` is the fraction of blocks that have work. Idle blocks are assumed to lie along the first axis.
    """
    return [grid[0] * busy, *(extent.astype(np.float64) for extent in grid[1:])]


def uneven(demand: Demand, sample: SampledLaunch) -> Demand:
    """Count demand per loop iteration instead of per block, for variants in `sample` with unequal blocks."""
    # An iteration of these variants is a wait for memory. `StaticTable.trips` gives the longest block more iterations.
    differ = (sample.longest > 1.0) & (sample.rounds > 0.0)
    if not differ.any():
        return demand
    block, loop = (rates.copy() for rates in demand.rates)
    loop[:, differ] = block[:, differ] / sample.rounds[differ]
    block[:, differ] = 0.0
    return Demand((block, loop))


def _with_local_memory(table: ProfileTable, threads: Array, resident: Array, cache: Array) -> ProfileTable:
    """Add the cost of register spills and local memory to profiles.

    L1 writes all stores through to L2 (Khairy et al., "Accel-Sim", ISCA 2020, for Volta). Loads reach L2 only if the
    stacks of the resident threads do not fit in L1.
    """
    warps = np.ceil(threads / 32.0)
    # A byte per lane fills one 32-byte sector per warp.
    spilled = table.spill_bytes * warps * table.column("crowded.runs")
    in_memory = table.stack_bytes > 0
    loaded = spilled / 2.0 + table.column("local.read_sectors") * in_memory
    stored = spilled / 2.0 + table.column("local.write_sectors") * in_memory
    sectors = loaded + stored
    if not sectors.any():
        return table
    stack = np.maximum(table.stack_bytes, table.spill_bytes / 2.0) * threads
    lost = np.clip(1.0 - cache / np.maximum(stack * resident, 1.0), 0.0, 1.0)
    added = {
        "issue": spilled / _SECTORS_PER_REQUEST,
        "issue.ld_local": spilled / _SECTORS_PER_REQUEST,
        "l1.wavefronts": sectors / _SECTORS_PER_REQUEST,
        "local.l2_sectors": stored + loaded * lost,
        "local.bytes": stack,
    }
    metrics = (*table.metrics, *(metric for metric in added if metric not in table.metrics))
    counts = np.zeros((len(table.counts), len(metrics), table.counts.shape[2]))
    counts[:, : len(table.metrics)] = table.counts
    for metric, value in added.items():
        counts[:, metrics.index(metric), 0] += value
    return replace(table, metrics=metrics, counts=counts)


def footprints(
    table: ProfileTable, variants: Array, tensor_bytes: Mapping[str, Array | float], in_l2: frozenset[str]
) -> list[Footprint]:
    """Return the bytes of each tensor that the blocks of each variant read and write.

    `in_l2` contains the names of tensors that are in L2 when the launch starts, as far as L2 is large enough.
    """
    touched = []
    for written, what in ((False, "read"), (True, "write")):
        for name, size in tensor_bytes.items():
            metric = f"touch.{name}.{what}"
            if metric in table.metrics:
                x, y, z = (table.column(f"{metric}.{axis}").take(variants) for axis in "xyz")
                sectors = table.column(metric).take(variants)
                # The metric `wave.<buffer>.<n>` describes the sectors that n consecutive blocks read together.
                counts = [m.removeprefix(f"wave.{name}.") for m in table.metrics if not written]
                window = sorted(int(count) for count in counts if count.isdigit())
                in_window = tuple(table.column(f"wave.{name}.{n}").take(variants) for n in window)
                stored: Array = np.full(len(variants), np.inf)
                if written and f"touch.{name}.read" not in table.metrics:
                    stored = table.column(f"global.{name}.write_bytes").take(variants)
                shares = (x, y, z), size, written, name in in_l2, in_window, stored
                touched.append(Footprint(sectors * _SECTOR_BYTES, *shares))
    return touched


def _read_buffers(table: ProfileTable) -> list[str]:
    return [m.removeprefix("touch.").removesuffix(".read") for m in table.metrics if m.endswith(".read")]


def held_by_l1(table: ProfileTable, cache: Array) -> tuple[Array, Array]:
    """Return the fraction of requested sectors that hit in L1, and the fraction of loads whose sectors all hit.

    `cache` is the size of L1 per block in bytes.
    """
    sizes = sorted(int(size) for m in table.metrics if (size := m.removeprefix("reuse.")).isdigit())
    if not sizes:  # The block loads nothing.
        return np.zeros(len(cache)), np.zeros(len(cache))
    held, held_wait = (
        _interpolate([table.column(f"{what}.{size}") for size in sizes], cache / (1024.0 * sizes[0]))
        for what in ("reuse", "reuse.wait")
    )
    return held, held_wait


def _interpolate(shares: Sequence[Array], size: Array) -> Array:
    """Interpolate the fractions `shares`, which are for the sizes 1, 2, 4 and so on. The fraction for 0.5 is 0."""
    table = np.stack([np.zeros(len(size)), *shares])
    position = np.clip(np.log2(np.maximum(size, 0.5)) + 1.0, 0.0, len(shares))
    low = np.minimum(position.astype(np.int64), len(shares) - 1)
    part, columns = position - low, np.arange(len(size))
    return np.asarray(table[low, columns] * (1.0 - part) + table[low + 1, columns] * part)
