"""Profile a launch by emulating a sample of its thread blocks, for kernels whose spec declares no loops and probes.

The sample has a block in the middle of the grid, its neighbor along each axis, and blocks at both ends of each axis,
where tiles may be partial:

    counts of the launch = sum over kinds (counts of the sampled block * blocks of its kind)

The sum is exact if all blocks of a kind do the same work. Every reported result states this assumption. If blocks run
many instructions, blocks at the ends that represent few blocks are not emulated, corners of the grid first. The middle
block then represents these blocks, too.

A sampled profile adds these metrics, and those of `cache_behavior`, to the emulator's counters:

    rounds              number of times that a block waits for global memory: once for concurrent loads. Of each stretch
                        of code between two barriers, only the warp with the most waits counts
    overlapped          fraction of `rounds` during which other warps of the block have work
                        (`kernrec.ptx.analysis.barrier_phases`)
    chain               clock cycles of the slowest warp between each two barriers, without waits for memory, times the
                        number of warps
    stretch.<n>.<class> machine instructions of a class in part n of the code, if the code has several parts
                        (stretches, see `kernrec.ptx.analysis.barrier_phases`)
    blocks.sampled      number of sampled blocks
    from_code           fraction of the machine instructions that were counted in machine code
                        (`kernrec.compile.block_mix`); the others are estimated from PTX
    touch.<buffer>.read distinct sectors that a block reads. For writes: touch.<buffer>.write
    touch.<buffer>.read.x  bytes that only the next block along x reads / bytes that the block reads. Also for .y and .z
    instructions        number of instructions of the code
    crowded.runs        number of times that a warp executes the code with the most live registers (likely spills)
    depends.branch, depends.load, depends.store
                        number of instructions whose condition or address depends on data
    idle                fraction of blocks without work, if blocks do unequal work (`kernrec.profile.uneven_blocks`)
    longest             instructions of the longest block / of an average block with work, if blocks do unequal work

If blocks do unequal work, a block of each run of equal blocks is sampled. Counts describe the average block with work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np

from kernrec.compile.block_mix import MachineLowering
from kernrec.compile.compiled import Compiled
from kernrec.errors import KernrecError
from kernrec.kernel.binding import bind_launches, workspaces
from kernrec.kernel.spec import Config, Kernel
from kernrec.profile.cache_behavior import atomic_metrics, reuse_metrics, run_metrics, wave_metrics
from kernrec.profile.code_facts import variable_contents
from kernrec.profile.emulated_launch import kernel_launch, with_launcher_arguments
from kernrec.profile.launch_profile import (
    BLOCK_BUDGET,
    COUNTS_VERSION,
    VERSION,
    LaunchProfile,
    Profile,
    ProfileTarget,
    entry_name,
)
from kernrec.profile.tensor_values import Tensors
from kernrec.profile.uneven_blocks import Level, idle, work_levels
from kernrec.ptx import KernelLaunch, Module, parse
from kernrec.ptx.analysis.barrier_phases import (
    as_one,
    grouped_loads,
    issued_by_stretch,
    of_slowest_warps,
    overlapped_waits,
    waits_for_loads,
)
from kernrec.ptx.analysis.dependence import data_dependences
from kernrec.ptx.analysis.issue_cost import chain_clk
from kernrec.ptx.analysis.liveness import live_by_block
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.analysis.wide_access import with_warp_aggregation, with_wide_accesses
from kernrec.ptx.execution.emulator import Emulation, check_block
from kernrec.ptx.execution.watched import SECTOR, BlockAccesses, EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import BasicBlock, Function
from kernrec.ptx.ir.special_registers import warps_of
from kernrec.ptx.state.results import Array
from kernrec.util.engine import module as engine
from kernrec.util.human import config_text
from kernrec.util.light_dataclass import dataclass

AXES = ("x", "y", "z")
TERMS = ("block", "rounds")
SAMPLING = EmulationOptions(budget=BLOCK_BUDGET, lowering=lowered)
"""Options for emulating the blocks of a sample."""
# Maximum number of instructions for emulating all blocks at the ends of a launch's grid.
_EDGE_INSTRUCTIONS = 1_000_000
_MUCH = 0.1
"""Minimum fraction of a block's reads for which a buffer needs `wave` metrics (see `cache_behavior`)."""
_EDGE_SHARE = 0.02  # Always emulate an end that represents at least this fraction of the grid's blocks.
_MOST_KINDS = 12
_CROWDED = 0.9  # Basic blocks with more than this fraction of the maximum live registers are assumed to spill.

Place = tuple[int, int, int]
"""Coordinates of a thread block or extents of a grid, x first."""


@dataclass(frozen=True)
class BlockSample:
    inner: tuple[int, ...]
    """Block in the middle of the grid, followed by its neighbor along each of `axes`.

    The middle block represents all blocks that the blocks in `ends` do not represent.
    """
    axes: tuple[int, ...]
    """Axes with several blocks: 0, 1 and 2 for x, y and z."""
    ends: Mapping[int, int]
    """Sampled blocks at the ends of the grid, each with the number of blocks that it represents."""
    not_corners: frozenset[int]
    """Blocks in `ends` that are at the end of only one axis."""
    total: int


def choose_blocks(grid: Place) -> BlockSample:
    """Choose the blocks to emulate if all blocks do equal work, except at the ends of the grid."""
    gx, gy, gz = grid

    def number(place: tuple[int, ...]) -> int:
        return place[0] + gx * (place[1] + gy * place[2])

    middle = tuple(extent // 2 for extent in grid)
    weights = [
        {0: 1} if extent == 1 else {0: 1, 1: 1} if extent == 2 else {0: 1, extent // 2: extent - 2, extent - 1: 1}
        for extent in grid
    ]
    if prod(map(len, weights)) > _MOST_KINDS:
        weights[2] = {middle[2]: gz}
    ends, not_corners = {}, set()
    for place in product(*weights):
        off_middle = sum(a != b for a, b in zip(place, middle, strict=True))
        if off_middle:
            ends[number(place)] = prod(weight[index] for weight, index in zip(weights, place, strict=True))
        if off_middle == 1:
            not_corners.add(number(place))
    inner, axes = [number(middle)], []
    for axis, extent in enumerate(grid):
        if extent > 1:
            step = 1 if middle[axis] + 1 < extent else -1
            inner.append(number(tuple(m + step * (a == axis) for a, m in enumerate(middle))))
            axes.append(axis)
    return BlockSample(tuple(inner), tuple(axes), ends, frozenset(not_corners), gx * gy * gz)


def sample_of_levels(levels: Sequence[Level], total: int) -> BlockSample:
    """Choose a block from each `Level`, a run of blocks with equal work. Begin with the run with the most work."""
    most = max(levels, key=lambda level: level.count * level.work)
    others = {level.block: level.count for level in levels if level is not most}
    beside = most.block + (1 if most.block + 1 not in others and most.block + 1 < total else -1)
    return BlockSample((most.block, beside), (0,), others, frozenset(others), total)


def profile_by_sampling(
    kernel: Kernel, config: Config, target: ProfileTarget, compiled: Compiled, tensors: Tensors
) -> list[LaunchProfile]:
    """Emulate a sample of blocks of each launch of a compiled config, and return the launches' profiles.

    Raises:
        KernrecError: a block cannot be emulated.
    """
    problem, sm = target.problem, target.sm
    module, joined = _code(compiled.ptx)
    names = {launch.entry: entry_name(module.functions, launch.entry) for launch in kernel.launches}
    dependences = {entry: data_dependences(inlined(module, name)) for entry, name in names.items()}
    needs_data = any(dependences.values())
    content = tensors.filled if needs_data else tensors.blank
    buffers = dict(content)
    for scratch in workspaces(kernel, config, problem, sm):
        buffers[scratch.name] = np.zeros(scratch.bytes, np.uint8)
    constants, device = variable_contents(kernel, module, content)
    buffers |= device
    profiles = []
    for bound in bind_launches(kernel, config, problem, sm):
        name = names[bound.entry]
        try:
            launch = with_launcher_arguments(
                kernel, problem, kernel_launch(bound, buffers, constants, name), compiled.ptx
            )
            check_block(module, launch)
            if name not in joined:
                joined[name] = _as_assembled(module, name)
            lowering = MachineLowering(compiled, sm, name)
            options = replace(SAMPLING, budget=target.budget, lowering=lowering, results=needs_data)
            counts = _sampled(joined[name], launch, options)
        except KernrecError as error:
            raise KernrecError(f"{kernel.name} {config_text(config)}: {error}") from None
        for dependence in dependences[bound.entry]:
            metric = f"depends.{dependence.kind}"
            counts[metric] = counts.get(metric, 0.0) + 1.0
        metrics = tuple(sorted(counts))
        profile = Profile(metrics, TERMS, np.array([[counts[metric], 0.0] for metric in metrics]))
        code = compiled.resources[name], profile, compiled.ptx_hash, compiled.compiler
        profiles.append(LaunchProfile(bound.index, bound.entry, *code))
    return profiles


@lru_cache(maxsize=4)
def _code(ptx: str) -> tuple[Module, dict[str, Module]]:
    """Return the parsed PTX, and a cache of its modules by kernel."""
    return parse(ptx), {}


def sampled_counts(module: Module, launch: KernelLaunch, options: EmulationOptions = SAMPLING) -> dict[str, float]:
    """Emulate a sample of a launch's blocks, and return the mean metrics per block (see the module's docstring)."""
    return _sampled(_as_assembled(module, launch.entry), launch, options)


def _as_assembled(module: Module, kernel: str) -> Module:
    """Merge memory accesses and atomic operations in a copy of the module, as the assembler does."""
    module = with_wide_accesses(module, kernel)
    return replace(module, functions=module.functions | {kernel: with_warp_aggregation(module.functions[kernel])})


def _sampled(module: Module, launch: KernelLaunch, options: EmulationOptions) -> dict[str, float]:
    x, y, z = launch.grid
    uneven = work_levels(module, launch, options)
    sample = sample_of_levels(uneven, x) if uneven else choose_blocks((x, y, z))
    # In a small grid, a neighbor of the middle block may be at an end. Count it as an end, not as an inner block.
    inner = [block for block in sample.inner if block not in sample.ends]
    options = replace(options, most_blocks=len(inner), watched=sample.inner)
    emulation = Emulation(module, launch, options)
    warps = warps_of(launch.block)
    first, runs_of_inner = _run(emulation, inner)
    middle = {metric: value / len(inner) for metric, value in first.items()}
    instructions = middle["issue"] / warps
    ends = dict(sample.ends)
    for spared in () if uneven else (sample.not_corners, frozenset()):
        if len(ends) * instructions > _EDGE_INSTRUCTIONS:
            always = {*spared, *sample.inner}
            least = _EDGE_SHARE * sample.total
            ends = {block: weight for block, weight in ends.items() if block in always or weight >= least}
    within = sample.total - sum(ends.values())
    totals = {metric: value * within for metric, value in middle.items()}
    # Executions of each basic block by each warp, summed over the blocks of the grid.
    all_runs = runs_of_inner * (within / len(inner))
    loads, clk_of_pieces = zip(*[_loads_and_clk(emulation.function, p) for p in emulation.pieces], strict=True)
    of_inner = _slowest(emulation, runs_of_inner, loads, clk_of_pieces)
    rounds, chain = (within / len(inner) * each for each in of_inner)
    # To save time, run sampled blocks together if each represents the same number of blocks of the grid.
    for weight in dict.fromkeys(ends.values()):
        counts, runs = _run(emulation, [block for block, w in ends.items() if w == weight])
        for metric, value in counts.items():
            totals[metric] = totals.get(metric, 0.0) + value * weight
        all_runs += runs * weight
        of_ends = _slowest(emulation, runs, loads, clk_of_pieces)
        rounds, chain = rounds + weight * of_ends[0], chain + weight * of_ends[1]
    waits = [float(waits_for_loads(groups, all_runs).sum()) for groups in loads]
    ran = dict(enumerate(all_runs.sum(axis=1).tolist()))
    busy = sample.total - sum(level.count for level in idle(uneven))
    crowded_runs = _crowded_runs(emulation, ran) / (warps * busy)
    overlapped = overlapped_waits(emulation.function, emulation.pieces, waits, ran)
    stretches = issued_by_stretch(emulation.function, emulation.issue, ran)
    extra = {
        "rounds": rounds / busy,
        "overlapped": overlapped,
        "chain": chain * warps / busy,
        "blocks.sampled": float(len(inner) + len(ends)),
        VERSION: float(COUNTS_VERSION),
    }
    if isinstance(options.lowering, MachineLowering):
        extra["from_code"] = _from_code(emulation, options.lowering, ran)
    accesses = emulation.accesses()
    extra |= dict(_touch_metrics(accesses, sample, written=False))
    extra |= dict(_touch_metrics(accesses, sample, written=True))
    next_is_new = [value for metric, value in extra.items() if metric.endswith(".read.x")]
    extra |= wave_metrics(module, launch, options, next_is_new, busy, _most_read(extra))
    own, *others = (accesses[block] for block in sample.inner)
    neighbors = zip(sample.axes, others, strict=True)
    extra |= dict(reuse_metrics(own.trace))
    extra |= dict(run_metrics(own.trace, {AXES[axis]: neighbor.trace for axis, neighbor in neighbors}))
    extra |= dict(atomic_metrics([accesses[block].atomics for block in dict.fromkeys(sample.inner)]))
    if uneven:
        mean = totals["issue"] / busy
        extra |= {"longest": max(level.work for level in uneven) / mean, "idle": 1.0 - busy / sample.total}
        # Only the accesses of the middle block are known. Scale them to the work of the average block.
        share = mean / max(middle["issue"], 1.0)
        touched = [m for m in extra if m.startswith("touch.") and m.endswith((".read", ".write"))]
        extra |= {metric: extra[metric] * share for metric in touched}
    if len(stretches) > 1:
        for number, stretch in enumerate(stretches):
            extra |= {f"stretch.{number}.{name}": count / busy for name, count in stretch.items()}
    extra["instructions"] = float(len(emulation.function.instructions))
    extra["crowded.runs"] = crowded_runs
    return {metric: value / busy for metric, value in totals.items()} | extra


def _run(emulation: Emulation, blocks: Sequence[int]) -> tuple[dict[str, float], Array]:
    """Emulate thread blocks. Return (event counts, number of executions of each basic block by each warp)."""
    # Blocks of a cluster are emulated together, so the counts of whole clusters are scaled to the number of `blocks`.
    together = emulation.whole_clusters(blocks)
    share = len(blocks) / max(len(together), 1)
    before = emulation.runs_by_warp()
    counts = {metric: value * share for metric, value in emulation.run(together).items()}
    return counts, (emulation.runs_by_warp() - before) * share


def _loads_and_clk(function: Function, piece: Sequence[BasicBlock]) -> tuple[list[list[int]], int]:
    """Return `grouped_loads` and `chain_clk` of a piece. Cache them like `cached_by_form`."""
    memo, key = function.form_memo, (as_one, piece[0].index, len(piece))
    memo[key] = costs = memo.get(key) or (grouped_loads(piece), chain_clk(as_one(piece)))
    return costs


def _slowest(
    emulation: Emulation, runs: Array, loads: Sequence[list[list[int]]], clk_of_pieces: Sequence[int]
) -> tuple[float, float]:
    """Return (waits for global memory, clock cycles) of a block whose warps wait for the slowest warp at each barrier.

    Args:
        runs: executions of each basic block by each warp, an array of shape (basic blocks, warps).
        loads: `grouped_loads` of each piece of machine code (`emulation.pieces`).
        clk_of_pieces: clock cycles of one execution of each piece.
    """
    function, pieces = emulation.function, emulation.pieces
    waits = [waits_for_loads(groups, runs) for groups in loads]
    # The basic blocks of a piece are consecutive.
    ran = np.maximum.reduceat(runs, [piece[0].index for piece in pieces], axis=0)
    clocks = [times * clk for times, clk in zip(ran, clk_of_pieces, strict=True)]
    return of_slowest_warps(function, pieces, waits), of_slowest_warps(function, pieces, clocks)


def _from_code(emulation: Emulation, lowering: MachineLowering, ran: Mapping[int, float]) -> float:
    taken = lowering.mix(emulation.function).from_code
    issued = [sum(issue.values()) * ran.get(index, 0) for index, issue in enumerate(emulation.issue)]
    return sum(count for count, from_code in zip(issued, taken, strict=True) if from_code) / max(sum(issued), 1.0)


def _crowded_runs(emulation: Emulation, ran: Mapping[int, float]) -> float:
    peaks = live_by_block(emulation.function)
    crowded = [block for block in emulation.function.blocks if peaks[block.index] >= _CROWDED * max(peaks)]
    runs = sum(len(block.instructions) * ran.get(block.index, 0) for block in crowded)
    return runs / max(sum(len(block.instructions) for block in crowded), 1)


def _most_read(touched: Mapping[str, float]) -> list[str]:
    sectors = {m.split(".")[1]: count for m, count in touched.items() if m.startswith("touch.") and m.endswith(".read")}
    return [buffer for buffer, count in sectors.items() if count >= _MUCH * sum(sectors.values())]


def _touch_metrics(
    accesses: Mapping[int, BlockAccesses], sample: BlockSample, written: bool
) -> Iterator[tuple[str, float]]:
    kind = "write" if written else "read"
    own, *others = (accesses[b].written if written else accesses[b].read for b in sample.inner)
    nothing = engine().Touched(np.zeros(0, np.int64))
    for buffer in dict.fromkeys(name for block in (own, *others) for name in block):
        middle = own.get(buffer, nothing)
        yield f"touch.{buffer}.{kind}", float(middle.sectors)
        own_bytes = max(middle.sectors, 1) * SECTOR
        for axis, neighbor in zip(sample.axes, others, strict=True):
            # The ratio exceeds 1 if the neighboring block is aligned worse, and so accesses more sectors than `own`.
            yield f"touch.{buffer}.{kind}.{AXES[axis]}", middle.new_bytes(neighbor.get(buffer, nothing)) / own_bytes
