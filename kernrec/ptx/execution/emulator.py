"""Executes PTX on the CPU: one NumPy lane per thread, many thread blocks at once, with exact counters.

Counters (totals over the blocks that ran): `issue.<class>` machine instructions issued by warps, as
`analysis.issue_cost` estimates them; `issue` their sum; `lanes` their active lanes (a lane whose predicate is off
counts: the instruction was issued for it); `shared.{load,store,atomic}_{wavefronts,ideal}`, and
`shared.atomic_repeats`, how many more wavefronts lanes that add one to the same word would take in turn; `barriers`
that blocks passed; `global.<buffer>.{read,write,atomic}_{sectors,requests,bytes}`;
`local.{read,write}_{sectors,requests,bytes}`; `atomic.<buffer>` and `atomic.shared`, lane operations; `mma.<type>`,
operations of tensor cores (`instructions.matrix` says how they round); where they are asked for, `lanes.<class>`,
`lanes` by class.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import prod

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.ptx.analysis.lowering import straightened
from kernrec.ptx.execution import engine
from kernrec.ptx.execution.extrapolation import UnsteadyError
from kernrec.ptx.execution.scheduler import Scheduler
from kernrec.ptx.instructions.decoder import OperandResolver
from kernrec.ptx.instructions.needed_values import needed_values
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import BasicBlock, Function, Module
from kernrec.ptx.state.access_cost import Counts
from kernrec.ptx.state.access_trace import AccessTrace
from kernrec.ptx.state.batch import WARP, BatchShape, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.handovers import Handovers, hands_over
from kernrec.ptx.state.launch_layout import MOST_THREADS, RESERVED_BYTES, KernelLaunch, LaunchLayout, lay_out
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.race_detector import RaceDetector
from kernrec.ptx.state.registers import RegisterFiles, row_map
from kernrec.ptx.state.touched_sectors import TouchedSectors
from kernrec.util.light_dataclass import dataclass

SEMANTICS = (
    "access", "async_copies", "atomics", "bits", "cluster", "convert", "floating", "images", "integer", "matrix",
    "matrix_moves", "mbarrier", "select", "surfaces", "tcgen05", "tensormap", "warp", "wgmma", "wmma",
)  # fmt: skip
for _module in SEMANTICS:  # importing a module of semantics registers its instructions
    import_module(f"kernrec.ptx.instructions.{_module}")

Lowering = Callable[[Function], Sequence[Mapping[str, int]]]

_BUDGET = 20_000_000
_MOST_CLUSTER_BLOCKS = 16  # CUDA C++ Programming Guide: 8, and 16 where the kernel asks for it


@dataclass(frozen=True)
class EmulationOptions:
    """How thread blocks are run, and what is watched while they run."""

    most_blocks: int = 1
    """The most thread blocks that one `Emulation.run` gets."""

    batch_lanes: int = 1024
    """Threads that run together, about."""

    count: bool = True
    budget: int = _BUDGET
    """PTX instructions that one batch of blocks may execute before the kernel is taken for an endless loop."""

    check_races: bool = False
    """Whether a data race is an error: in shared memory, or in global memory that blocks hand over."""

    touched: TouchedSectors | None = None
    """Is told every access to global memory."""

    lanes_by_class: bool = False
    """Whether active lanes are also counted by class of instruction."""

    lowering: Lowering | None = None
    """Machine instructions by class of each basic block of a kernel, which `issue` and `lanes` count
    (`kernrec.ptx.analysis.lowering`); None: of each PTX instruction by itself (`kernrec.ptx.analysis.issue_cost`)."""

    extrapolate: bool = False
    """Whether a few trips of a long loop may stand for the rest; results are then wrong, and what they stood for is
    counted as `extrapolated`, machine instructions."""

    values: bool = True
    """Whether all values are computed; False: only those that counts depend on
    (`kernrec.ptx.instructions.needed_values`), and buffers do not get results."""

    same_way: bool = False
    """Whether it is an error (`BlocksDifferError`) that blocks of a batch do not take the same way. Where they do, each
    is run as it would be in a batch of any other size."""

    trace: AccessTrace | None = None
    """Is told every access to global memory, in order. `global.<buffer>.{read,write,atomic}_passes` (clocks of L1) and
    `global.<buffer>.atomic_turns` (of lanes in their sectors) are counted then, too: how lines are cut depends on where
    tiles begin, so these do not follow from blocks and trips."""


def emulate(
    module: Module,
    launch: KernelLaunch,
    *,
    blocks: Sequence[int] | None = None,
    count: bool = True,
    budget: int = _BUDGET,
    check_races: bool = False,
) -> Counts:
    """Runs thread blocks of a kernel on the CPU; `launch.buffers` are global memory and are changed in place.

    Args:
        module: from `parse`.
        launch: kernel, grid, block, arguments and memory.
        blocks: linear numbers of the blocks to run (x fastest), of clusters all blocks; default: all.
        count: whether to count.
        budget: PTX instructions that one batch of blocks may execute before the kernel is taken for an endless loop.
        check_races: whether two threads that touch the same byte of shared memory with no barrier between, at least
            one of them writing, are an error. Threads of one warp are ordered by `bar.warp.sync` and their shuffles.

    Returns:
        Totals over the blocks that ran, by metric: see this module's description.

    Raises:
        EmulationError: unsupported instruction, access out of bounds or misaligned, write to a read-only buffer,
            deadlock, budget exceeded, trap, race.
        UsageError: a launch that does not fit the kernel.
    """
    check_block(module, launch)
    shape = _extents("grid", launch.grid)
    block_numbers = range(shape[0] * shape[1] * shape[2]) if blocks is None else blocks
    if not len(block_numbers):
        return Counts()
    options = EmulationOptions(len(block_numbers), count=count, budget=budget, check_races=check_races)
    return Emulation(module, launch, options).run(block_numbers)


def check_block(module: Module, launch: KernelLaunch) -> None:
    """Raise `UsageError` for a block that the kernel was not compiled for: CUDA refuses to launch it."""
    if (function := module.functions.get(launch.entry)) is None:
        return
    threads, required = prod(launch.block), function.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != (*launch.block, 1, 1)[:3]:
        accepted = f"blocks of {'x'.join(map(str, required))} (__block_size__)"
    elif (most := function.directives.get("maxntid")) and threads > prod(most):
        accepted = f"at most {prod(most)} (__launch_bounds__)"
    else:
        return
    raise UsageError(
        f"block {tuple(launch.block)} has {threads} threads, but {launch.entry} was compiled for {accepted}"
    )


class Emulation:
    """A launch whose thread blocks are run a few at a time.

    Raises:
        EmulationError, UsageError: as `emulate` does.
    """

    def __init__(self, module: Module, launch: KernelLaunch, options: EmulationOptions) -> None:
        entry = launch.entry
        if entry not in module.functions or not module.functions[entry].entry:
            raise unknown("kernel", entry, module.entries)
        function = inlined(module, entry)
        self.function = function
        self.grid, size = _extents("grid", launch.grid), _extents("block", launch.block)
        threads = size[0] * size[1] * size[2]
        if threads > MOST_THREADS:
            raise UsageError(f"block {tuple(launch.block)} has {threads} threads, more than {MOST_THREADS}")
        most = options.most_blocks
        batches = -(-most * -(-threads // WARP) * WARP // options.batch_lanes)
        cluster = _cluster_extents(function, launch, self.grid)
        together = cluster[0] * cluster[1] * cluster[2]
        self.blocks_per_batch = -(-most // min(batches, most) // together) * together
        """Thread blocks that run together."""
        layout = lay_out(module, function, launch)
        lanes = Lanes(BatchShape(self.grid, size, self.blocks_per_batch, cluster))
        reserved = layout.reserved_offset
        sizes = {
            "%dynamic_smem_size": launch.shared_bytes,
            "%total_smem_size": layout.shared_bytes,
            "%reserved_smem_offset_begin": reserved,
            "%reserved_smem_offset_end": reserved + RESERVED_BYTES,
            "%reserved_smem_offset_cap": reserved + RESERVED_BYTES,
            # The contents at these two are the compiler's; the parts do not overlap.
            "%reserved_smem_offset_0": reserved,
            "%reserved_smem_offset_1": reserved + RESERVED_BYTES // 2,
        }
        self._lanes = lanes
        self._lanes_by_class = options.lanes_by_class
        self._counted = Counts()
        self.lowered = issue = None if options.lowering is None else options.lowering(function)
        """Machine instructions by class of each basic block; None without a lowering."""
        self._touched, self._trace = options.touched, options.trace
        self._engine = _engine_launch(function, layout, lanes.shape, sizes, options)
        self._count = options.count
        if self._engine is not None:
            return
        registers = RegisterFiles(row_map(function), lanes, layout.symbols, sizes)
        in_memory = any(ins.opcode == "mbarrier" or "bulk" in ins.modifiers for ins in function.instructions)
        races: RaceDetector | None = None
        if options.check_races and (in_memory or together > 1 or hands_over(function)):
            races = phases = PhaseRaceDetector(lanes, layout.shared_bytes)
            phases.handovers = Handovers(lanes, phases.clocks) if hands_over(function) else None
        elif options.check_races:
            races = RaceDetector(lanes, layout.shared_bytes)
        memory = Memory(lanes, layout, Counts() if options.count else None, races, options.touched, options.trace)
        everything = options.values or options.check_races
        operands = OperandResolver(registers, layout.symbols, None if everything else needed_values(function))
        extrapolated = options.extrapolate and options.count
        self._scheduler = Scheduler(operands, memory, options.budget, extrapolated, issue, options.same_way)

    def run(self, block_numbers: Sequence[int]) -> Counts:
        """Runs the thread blocks with these linear numbers (x fastest); the counts of these alone.

        Raises:
            UnsteadyError: trips of a loop were left out that are not like the others: run it without extrapolation.
        """
        total = self.grid[0] * self.grid[1] * self.grid[2]
        if any(not 0 <= b < total for b in block_numbers):
            raise UsageError(f"block numbers must be from 0 to {total - 1} for grid {self.grid}")
        block_numbers = _in_clusters(self._lanes.shape, block_numbers)
        if self._engine is not None:
            self._engine.run(block_numbers)
            before, self._counted = self._counted, self._engine_totals(self._engine)
            return Counts({name: value - before[name] for name, value in self._counted.items()})
        warps = self._lanes.shape.lanes_per_block // WARP
        with np.errstate(all="ignore"):
            for start in range(0, len(block_numbers), self.blocks_per_batch):
                batch = block_numbers[start : start + self.blocks_per_batch]
                if self._touched is not None:
                    self._touched.start_batch(batch, warps)
                if self._trace is not None:
                    self._trace.start_batch(batch, warps, self._lanes.step)
                try:
                    self._scheduler.run(batch)
                except EmulationError as error:
                    if self._scheduler.extrapolated:
                        raise UnsteadyError from error
                    raise
        before, self._counted = self._counted, self._scheduler.totals(self._lanes_by_class)
        return Counts({name: value - before[name] for name, value in self._counted.items()})

    def _engine_totals(self, launch: engine.EngineLaunch) -> Counts:
        """The counters of all blocks that ran in the engine."""
        if not self._count:
            return Counts()
        counts = Counts(launch.counts)
        for issue, warps, lanes in zip(self.issue, launch.warps.tolist(), launch.lanes.tolist(), strict=True):
            for name, cost in issue.items():
                counts.bump(f"issue.{name}", cost * warps)
                if self._lanes_by_class:
                    counts.bump(f"lanes.{name}", cost * lanes)
            if warps:
                issued = sum(issue.values())
                counts.bump("issue", issued * warps)
                counts.bump("lanes", issued * lanes)
        counts.bump("barriers", launch.barriers)
        return counts

    def whole_clusters(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """All blocks of the clusters of these: the blocks themselves where a cluster has one."""
        shape = self._lanes.shape
        if shape.cluster_blocks == 1 or not len(block_numbers):
            return block_numbers
        clusters, _ = shape.cluster_and_rank(np.asarray(block_numbers))
        blocks: list[int] = shape.blocks_of_clusters(np.unique(clusters)).reshape(-1).tolist()
        return blocks

    def unsupported(self) -> list[str]:
        """Names of the instructions of the kernel that cannot be executed, in the order of the text."""
        return [] if self._engine is not None else self._scheduler.unsupported()

    @property
    def pieces(self) -> list[list[BasicBlock]]:
        """The basic blocks of the kernel, together where the assembler makes one of them."""
        if self._engine is None:
            return self._scheduler.pieces
        return (
            [[block] for block in self.function.blocks]
            if self.lowered is None
            else straightened(self.function, self.lowered)
        )

    @property
    def issue(self) -> list[Mapping[str, int]]:
        """Machine instructions by class of each basic block; none of those that no warp ran."""
        if self._engine is None:
            return [{} if code is None else code.issue for code in self._scheduler.decoded]
        blocks, lowered = self.function.blocks, self.lowered
        return [
            {}
            if not warps
            else engine.issue_of(blocks[i])
            if lowered is None
            else {name: count for name, count in lowered[i].items() if count}
            for i, warps in enumerate(self._engine.warps.tolist())
        ]

    def warps_by_block(self) -> dict[int, int]:
        """How many warps ran each basic block (by its index) so far."""
        if self._engine is not None:
            return {i: warps for i, warps in enumerate(self._engine.warps.tolist()) if warps}
        decoded = enumerate(self._scheduler.decoded)
        return {i: block.warps for i, block in decoded if block is not None and block.warps}


def _engine_launch(
    function: Function, layout: LaunchLayout, shape: BatchShape, sizes: Mapping[str, int], options: EmulationOptions
) -> engine.EngineLaunch | None:
    """The launch in the engine, or None if it needs an option or an instruction that only `Scheduler` has."""
    watched = options.touched is not None or options.trace is not None
    if watched or options.extrapolate or options.same_way:
        return None
    if (module := engine.load()) is None:
        return None
    try:
        return engine.EngineLaunch(
            module, function, layout, shape, sizes, options.budget, options.count, options.check_races
        )
    except engine.RefusedError:
        return None


def _extents(name: str, extents: Sequence[int]) -> tuple[int, int, int]:
    values = tuple(int(v) for v in extents)
    if not 1 <= len(values) <= 3 or any(v < 1 for v in values):
        raise UsageError(f"{name} {tuple(extents)} is not one to three positive numbers")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _cluster_extents(function: Function, launch: KernelLaunch, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The blocks of a cluster, x first, which the kernel was compiled for or the launch states.

    Raises:
        UsageError: the two disagree, or the grid is not made of whole clusters.
    """
    required = function.directives.get("reqnctapercluster")
    extents = tuple(int(n) for n in launch.cluster) or required or (1,)
    x, y, z = (*extents, 1, 1)[:3]
    if required and (*required, 1, 1)[:3] != (x, y, z):
        raise UsageError(f"cluster {tuple(launch.cluster)} of a kernel that was compiled for clusters of {required}")
    if not 1 <= len(extents) <= 3 or min(x, y, z) < 1 or x * y * z > _MOST_CLUSTER_BLOCKS:
        raise UsageError(
            f"cluster {extents} is not one to three positive numbers, {_MOST_CLUSTER_BLOCKS} blocks at most"
        )
    if grid[0] % x or grid[1] % y or grid[2] % z:
        raise UsageError(f"grid {grid} is not a multiple of the cluster {(x, y, z)}")
    return x, y, z


def _in_clusters(shape: BatchShape, block_numbers: Sequence[int]) -> Sequence[int]:
    """Linear block numbers in the order in which a batch has them: cluster by cluster, by rank in each.

    Raises:
        UsageError: a cluster of which not all blocks are there.
    """
    size = shape.cluster_blocks
    if size == 1:
        return block_numbers
    numbers = np.unique(np.asarray(block_numbers))
    cluster, rank = shape.cluster_and_rank(numbers)
    clusters, counts = np.unique(cluster, return_counts=True)
    if (counts != size).any():
        lacking = int(numbers[cluster == clusters[counts != size][0]][0])
        raise UsageError(f"block {lacking} runs together with all {size} blocks of its cluster; give whole clusters")
    ordered: list[int] = numbers[np.lexsort((rank, cluster))].tolist()
    return ordered
