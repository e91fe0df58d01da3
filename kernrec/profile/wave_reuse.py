"""The reads that blocks have in common which run at the same time, where they do not follow from neighbors.

A kernel may number its tiles in an order of its own: bands of `GROUP_M` rows, say, walked column by column. Then the
share of a block's reads that the next block repeats says little about the reads of a hundred blocks. So a window of
consecutive blocks is started, and what each reads first, before its first barrier, tells how much they share:

    wave.<buffer>.<n>    distinct sectors that n consecutive blocks read of a buffer, over those of one block

for n = 2, 4, 8 and so on. Only one warp of each block runs; the ratio is taken to hold for the others and for the rest
of the block. Where a buffer is read behind a barrier, as that of threads that hand each other their addresses, whole
blocks are run, on to later barriers.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.dependence import data_dependences
from kernrec.ptx.analysis.pointers import global_pointers
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.options import EmulationOptions
from kernrec.ptx.execution.watched import BlockAccesses, without_repeats
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import Array

WINDOW = 256
"""Consecutive blocks that are started."""
_WARP = 32
_FEWEST = 8
_SHARED = 0.5


class FirstReads:
    """The sectors that each of some consecutive blocks reads first, by buffer."""

    def __init__(self, accesses: Mapping[int, BlockAccesses]) -> None:
        """Gather what blocks with ascending numbers read."""
        self._reads: dict[str, list[Array]] = {}
        for place, block in enumerate(sorted(accesses)):
            for name, read in accesses[block].read.items():
                self._reads.setdefault(name, []).append(read.sector_numbers * WINDOW + place)

    @property
    def buffers(self) -> set[str]:
        """Names of the buffers that were read."""
        return set(self._reads)

    def by_window(self, count: int) -> Iterator[tuple[str, int, float]]:
        """Yield (buffer, n, distinct sectors of n consecutive blocks over those of one) for n = 2, 4, ... `count`."""
        for name, parts in self._reads.items():
            # Sector by sector the blocks that read it, ascending: those of one window are then side by side.
            reads = np.sort(np.concatenate(parts))
            size = 2
            while size <= count:
                yield name, size, len(without_repeats(reads // size)) * size / len(reads)
                size *= 2


def wave_metrics(
    module: Module,
    launch: KernelLaunch,
    budget: int,
    next_is_new: Sequence[float],
    busy: int | None = None,
    wanted: Collection[str] = (),
) -> dict[str, float]:
    """`wave.<buffer>.<n>` of a launch; empty where neighbors tell as much.

    Args:
        budget: instructions that a block may execute.
        next_is_new: for each buffer, the share of a block's reads that the next block does not repeat.
        busy: how many blocks, the first of the grid, have something to do; default: all.
        wanted: buffers that are to be seen.
    """
    blocks = math.prod(launch.grid) if busy is None else busy
    if launch.grid[0] != math.prod(launch.grid) or blocks < _FEWEST or min(next_is_new, default=1.0) >= _SHARED:
        return {}
    count = 1 << min(int(math.log2(blocks)), int(math.log2(WINDOW)))
    first = blocks // 2 // count * count
    window = range(first, first + count)
    one_warp = replace(launch, block=(min(_WARP, math.prod(launch.block)), 1, 1))
    function = inlined(module, launch.entry)
    ends = _barriers(function)
    most = 1 << (len(ends) - 1).bit_length() - 1 if len(ends) > 1 else 0  # barriers up to which blocks are run at last
    number = most if most and _can_be_repeated(function, launch) and set(wanted) - _can_be_read(function, launch) else 0
    reads: FirstReads | None = None
    while number <= most:
        started = one_warp if number == 0 else launch
        reads = _first_reads(module, started, window, min(budget, ends[number]))
        if reads is None or not set(wanted) - reads.buffers:
            break
        number = 2 * number or 1
    return {} if reads is None else {f"wave.{name}.{n}": ratio for name, n, ratio in reads.by_window(count)}


def _first_reads(module: Module, launch: KernelLaunch, window: range, budget: int) -> FirstReads | None:
    """Return the reads of the blocks of a window within some instructions each; None for blocks of clusters.

    One warp of each does not do what the blocks of a cluster wait for.
    """
    options = EmulationOptions(batch_lanes=_WARP, count=False, budget=budget, most_blocks=len(window), watched=window)
    emulation = Emulation(module, launch, options)
    if len(emulation.whole_clusters([0])) > 1:
        return None
    for block in window:
        with contextlib.suppress(EmulationError):  # most end at the budget, some at what the other warps did not do
            emulation.run([block])
    return FirstReads(emulation.accesses())


def _can_be_repeated(function: Function, launch: KernelLaunch) -> bool:
    """Return whether nothing that a block writes to global memory decides what is read: then it can be run again."""
    if not data_dependences(function):
        return True
    pointers, buffers = global_pointers(function), [a for a in launch.arguments if isinstance(a, str)]
    return len(set(buffers)) == len(buffers) and pointers is not None and pointers[0].isdisjoint(pointers[1])


def _can_be_read(function: Function, launch: KernelLaunch) -> set[str]:
    """The buffers that a kernel may read but by atomic operations."""
    pointers = global_pointers(function)
    names = zip(function.parameters, launch.arguments, strict=False)
    return {name for p, name in names if isinstance(name, str) and (pointers is None or p.name in pointers[0])}


def _barriers(function: Function) -> list[int]:
    """Instructions in front of each barrier of a function, in the order of the text, and all of them."""
    instructions = function.instructions
    barriers = [max(i, _WARP) for i, ins in enumerate(instructions) if ins.opcode in ("bar", "barrier")]
    return [*barriers, max(len(instructions), _WARP)]
