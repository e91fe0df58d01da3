"""Emulate PTX on the CPU with the compiled engine, and count events exactly.

Counters are totals over the emulated blocks:

- `issue.<class>`: machine instructions of a class that warps issue, as `analysis.issue_cost` estimates them
- `issue`: machine instructions of all classes
- `lanes`, and `lanes.<class>` on request: active lanes of machine instructions, including lanes whose predicate is off
- `shared.{load,store,atomic}_{wavefronts,ideal}`: wavefronts of shared memory, with and without bank conflicts
- `shared.atomic_repeats`: additional wavefronts on GPUs where lanes that add 1 to the same word take turns
- `barriers`: barriers that blocks passed
- `global.<buffer>.{read,write,atomic}_{sectors,requests,bytes}`, `local.{read,write}_{sectors,requests,bytes}`
- `atomic.<buffer>`, `atomic.shared`: atomic operations of lanes
- `mma.<type>`: operations of tensor cores
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.ptx.analysis.issue_cost import issue_of
from kernrec.ptx.analysis.lowering import straightened
from kernrec.ptx.analysis.unneeded_results import unneeded_results
from kernrec.ptx.execution.engine import RawFinding, SiteCounts, encoded, signed
from kernrec.ptx.execution.watched import BUDGET, BlockAccesses, EmulationOptions, block_accesses
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import BasicBlock, Function, Module
from kernrec.ptx.ir.special_registers import FIXED, WARP, registers_at_launch, warps_of
from kernrec.ptx.state.descriptors import ADDRESSES
from kernrec.ptx.state.launch_layout import (
    MOST_THREADS,
    RESERVED_BYTES,
    Clusters,
    KernelLaunch,
    LaunchLayout,
    lay_out,
    pack_arguments,
)
from kernrec.ptx.state.results import Array, BudgetError, Counts, EmulationError, location
from kernrec.util.engine import module as engine

_UNSUPPORTED, _BUDGET = 1, 2
_NAMED = re.compile("\x01([0-9]+)\x01")
"""Matches the index of an instruction in an engine message."""
_MOST_CLUSTER_BLOCKS = 16  # The CUDA C++ Programming Guide allows 8 blocks, or 16 if the kernel requests it.


def emulate(
    module: Module,
    launch: KernelLaunch,
    *,
    blocks: Sequence[int] | None = None,
    count: bool = True,
    budget: int = BUDGET,
    check_races: bool = False,
) -> Counts:
    """Run thread blocks of a kernel on the CPU. Global memory is `launch.buffers`, which the kernel changes in place.

    Args:
        blocks: linear numbers of the blocks to run (x fastest), or None to run all. The blocks must form whole clusters
            if the launch has clusters.
        budget: maximum number of PTX instructions that a batch of blocks may execute. A kernel that exceeds it is
            assumed to be in an endless loop.
        check_races: whether a data race in shared memory is an error. In a race, two threads access the same byte
            without a barrier between the accesses, and at least one of them writes. `bar.warp.sync` and shuffles also
            order the threads of a warp.

    Returns:
        Totals over the blocks that ran, keyed by metric. The module's docstring explains the metrics.

    Raises:
        EmulationError: unsupported instruction, access out of bounds or misaligned, write to a read-only buffer,
            deadlock, budget exceeded, trap, race.
        UsageError: the launch does not fit the kernel.
    """
    check_block(module, launch)
    shape = _extents("grid", launch.grid)
    block_numbers = range(shape[0] * shape[1] * shape[2]) if blocks is None else blocks
    if not len(block_numbers):
        return Counts()
    options = EmulationOptions(len(block_numbers), count=count, budget=budget, check_races=check_races)
    return Emulation(module, launch, options).run(block_numbers)


def check_block(module: Module, launch: KernelLaunch) -> None:
    """Raise `UsageError` if the kernel was compiled for a different block size than the launch's."""
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
    """Emulated launch that can run a few thread blocks at a time.

    Raises:
        EmulationError: see `emulate`.
        UsageError: see `emulate`.
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
        self._clusters = Clusters(self.grid, _cluster_extents(function, launch, self.grid))
        together, most = self._clusters.size, options.most_blocks
        batches = -(-most * -(-threads // WARP) * WARP // options.batch_lanes)
        self.blocks_per_batch = -(-most // min(batches, most) // together) * together
        self.lowered = None if options.lowering is None else options.lowering(function)
        """Machine instructions of each basic block by class. If it is None, `issue_of` converts the basic blocks."""
        self.pieces = [[block] for block in function.blocks]
        """Groups of basic blocks that the assembler merges."""
        if self.lowered is not None:
            self.pieces = straightened(function, self.lowered)
        self._options = options
        layout = lay_out(module, function, launch, guarded=options.checked is not None and options.checked.shared)
        merged = frozenset(block.index for piece in self.pieces for block in piece[1:])
        self._kernel = self._engine_kernel(layout, launch, size, merged)
        self._buffers = list(layout.buffers)
        self._warps, self._lanes = (np.zeros(len(function.blocks), np.int64) for _ in range(2))
        self._by_warp = np.zeros((len(function.blocks), warps_of(size)), np.int64)
        self._add_memory(layout)
        if (watch := options.checked) is not None:
            numbers = [number for number, name in enumerate(self._buffers) if name in watch.uninitialized]
            self._kernel.check(layout.shared_arrays, numbers, watch.shared, watch.global_races, watch.values)

    def _engine_kernel(
        self, layout: LaunchLayout, launch: KernelLaunch, size: tuple[int, int, int], merged: Collection[int]
    ) -> Any:
        """Create the engine's object for a launch. Blocks in `merged` share machine code with the previous block."""
        code, options = encoded(self.function), self._options
        blocks = code.blocks.reshape(-1, 6).copy()
        blocks[list(merged), 5] = True
        values = FIXED | _sizes(launch, layout)
        unneeded = [] if options.results else sorted(unneeded_results(self.function))
        return engine().Kernel(
            code.names, code.instructions, code.operands, blocks.reshape(-1), code.widths, code.specials,
            [values.get(name, -1) for name in code.specials],
            [signed(layout.symbols.get(name, 0)) for name in code.symbols],
            self.grid, size, self.blocks_per_batch, [layout.shared_bytes, layout.local_bytes, layout.argument_bytes],
            layout.constants, layout.parameters, options.budget, options.count, options.check_races,
            self._clusters.extents, registers_at_launch(self.function.directives) or 0, list(options.watched),
            unneeded, code.unassigned,
        )  # fmt: skip

    def _add_memory(self, layout: LaunchLayout) -> None:
        for name, data in layout.buffers.items():
            self._kernel.add_buffer(name, data, bool(data.flags.writeable))
        for handle, image in layout.images.items():
            sampler = image.sampler
            self._kernel.add_image(
                handle, self._buffers.index(image.buffer), list(image.extents), image.element.replace("i", "s"),
                [image.channels, image.layers, image.levels],
                [sampler.filter == "linear", ADDRESSES.index(sampler.address), sampler.normalized, sampler.unit_range],
            )  # fmt: skip

    def set_arguments(self, arguments: Sequence[bytes]) -> None:
        self._kernel.set_parameters(pack_arguments(self.function, arguments, {}, {}))

    def run_each(self, block_numbers: Sequence[int]) -> None:
        """Run batches of thread blocks in turn, and ignore errors. An error ends only its batch."""
        self._kernel.run(self._ordered(block_numbers), 1, True)

    def _ordered(self, block_numbers: Sequence[int]) -> Array:
        total = self.grid[0] * self.grid[1] * self.grid[2]
        if any(not 0 <= b < total for b in block_numbers):
            raise UsageError(f"block numbers must be from 0 to {total - 1} for grid {self.grid}")
        return np.ascontiguousarray(self._clusters.ordered(block_numbers), np.int64)

    def run(self, block_numbers: Sequence[int]) -> Counts:
        """Run thread blocks, given by linear numbers (x fastest), and return the counts."""
        numbers = self._ordered(block_numbers)
        fault, events, warps, lanes, barriers, by_warp = self._kernel.run(numbers, _threads(), False)
        if fault is not None:
            raise self._error(*fault)
        self._warps += np.array(warps, np.int64)
        self._lanes += np.array(lanes, np.int64)
        if by_warp:
            self._by_warp += np.array(by_warp, np.int64).reshape(self._by_warp.shape)
        if not self._options.count:
            return Counts()
        counts = Counts(events)
        for issue, ran, active in zip(self.issue, warps, lanes, strict=True):
            for name, cost in issue.items():
                counts.bump(f"issue.{name}", cost * ran)
                if self._options.lanes_by_class:
                    counts.bump(f"lanes.{name}", cost * active)
            if ran:
                issued = sum(issue.values())
                counts.bump("issue", issued * ran)
                counts.bump("lanes", issued * active)
        counts.bump("barriers", barriers)
        return counts

    @property
    def findings(self) -> list[RawFinding]:
        """Return the memory errors that were detected so far."""
        return [RawFinding(*finding) for finding in self._kernel.findings()]

    @property
    def sites(self) -> list[SiteCounts]:
        """Return the data that each instruction has moved so far. The list is empty without memory checks."""
        return [SiteCounts(*counts) for counts in self._kernel.sites()]

    def activity(self) -> list[tuple[BasicBlock, int, int]]:
        """Return how many warps ran each basic block, and how many of their lanes were active."""
        return list(zip(self.function.blocks, self._warps.tolist(), self._lanes.tolist(), strict=True))

    def accesses(self) -> dict[int, BlockAccesses]:
        """Return the accesses to global memory of each thread block in `options.watched`, keyed by its number."""
        watched = self._kernel.watches()
        return {block: block_accesses(each, self._buffers) for block, each in watched.items()}

    def shared_reads(self) -> dict[str, list[int]]:
        """Return the numbers of sectors that the blocks in `options.watched` read, keyed by buffer.

        Each list has the total over all single blocks, then over all groups of 2, 4, ... consecutive blocks. A sector
        counts once per block or group.
        """
        reads: dict[str, list[int]] = self._kernel.shared_reads()
        return reads

    def whole_clusters(self, block_numbers: Sequence[int]) -> Sequence[int]:
        return self._clusters.complete(block_numbers)

    def unsupported(self) -> list[str]:
        """Return the names of the kernel's instructions that the emulator does not support, in text order."""
        return [self.function.instructions[place].name for place, _ in self._kernel.unsupported]

    @property
    def issue(self) -> list[Mapping[str, float]]:
        """Return the machine instructions of each basic block by class. Blocks that did not run have empty entries."""
        blocks, lowered = self.function.blocks, self.lowered
        return [
            {}
            if not warps
            else issue_of(blocks[i])
            if lowered is None
            else {name: count for name, count in lowered[i].items() if count}
            for i, warps in enumerate(self._warps.tolist())
        ]

    def runs_by_warp(self) -> Array:
        """Return how often each warp has run each basic block, as an array of shape (basic blocks, warps).

        The runs are summed over the thread blocks in `options.watched`.
        """
        return self._by_warp.copy()

    def _error(self, kind: int, source: int, text: str) -> EmulationError:
        instructions = self.function.instructions
        if source < 0:
            return EmulationError(f"{self.function.name}: {text}")
        ins = instructions[source]
        if kind == _BUDGET:
            return BudgetError(
                f"{self.function.name}: more than {self._options.budget} instructions executed; this looks like an"
                f" endless loop near PTX line {ins.line}"
            )
        named = [instructions[int(place)] for place in _NAMED.findall(text)]
        places = iter(f"{each.name} in PTX line {each.line}" for each in named)
        text = _NAMED.sub(lambda _: next(places), text)
        if kind == _UNSUPPORTED:
            text = f"the emulator does not support {ins.name}{': ' + text if text else ''}"
        return EmulationError(f"{location(self.function, ins)}: {text}")


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _sizes(launch: KernelLaunch, layout: LaunchLayout) -> dict[str, int]:
    """Return the values of special registers that depend on memory sizes and addresses."""
    reserved = layout.reserved_offset
    return {
        "%dynamic_smem_size": launch.shared_bytes,
        "%total_smem_size": layout.shared_bytes,
        "%envreg1": launch.grid_barrier >> 32,
        "%envreg2": launch.grid_barrier & 0xFFFFFFFF,
        "%reserved_smem_offset_begin": reserved,
        "%reserved_smem_offset_end": reserved + RESERVED_BYTES,
        "%reserved_smem_offset_cap": reserved + RESERVED_BYTES,
        # The compiler uses two parts of the reserved shared memory, which must not overlap.
        "%reserved_smem_offset_0": reserved,
        "%reserved_smem_offset_1": reserved + RESERVED_BYTES // 2,
    }


def _extents(name: str, extents: Sequence[int]) -> tuple[int, int, int]:
    values = tuple(int(v) for v in extents)
    if not 1 <= len(values) <= 3 or any(v < 1 for v in values):
        raise UsageError(f"{name} {tuple(extents)} is not one to three positive numbers")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _cluster_extents(function: Function, launch: KernelLaunch, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the number of thread blocks per cluster along x, y and z. Raise `UsageError` if the grid does not fit."""
    required = function.directives.get("reqnctapercluster")
    extents = tuple(int(n) for n in launch.cluster) or required or (1,)
    x, y, z = (*extents, 1, 1)[:3]
    if required and (*required, 1, 1)[:3] != (x, y, z):
        raise UsageError(f"cluster {tuple(launch.cluster)} differs from {required}, for which the kernel was compiled")
    if not 1 <= len(extents) <= 3 or min(x, y, z) < 1 or x * y * z > _MOST_CLUSTER_BLOCKS:
        raise UsageError(
            f"cluster {extents} must be one to three positive numbers, with at most {_MOST_CLUSTER_BLOCKS} blocks"
        )
    if grid[0] % x or grid[1] % y or grid[2] % z:
        raise UsageError(f"grid {grid} is not a multiple of the cluster {(x, y, z)}")
    return x, y, z
