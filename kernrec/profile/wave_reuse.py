"""Measure which reads concurrent blocks share, if this does not follow from neighboring blocks.

A kernel may number its tiles in its own order: bands of `GROUP_M` rows, for example, column by column. Then the reads
that two neighbors share do not determine what a hundred blocks share. So this module starts a window of consecutive
blocks and compares their reads before their first barrier:

    wave.<buffer>.<n>    distinct sectors that n consecutive blocks read of a buffer, over those of one block

for n = 2, 4, 8 and so on. Only one warp of each block runs. The ratio is assumed to hold for the other warps and for
the rest of the block. If blocks read a buffer only after a barrier, for example because threads exchange addresses,
whole blocks run up to later barriers.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.dependence import data_dependences, global_pointers
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import BlockAccesses, EmulationOptions, without_repeats
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array, EmulationError

WINDOW = 256
"""Number of consecutive blocks that are started."""
_WARP = 32
_FEWEST = 8
_SHARED = 0.5


class FirstReads:
    """First sectors that consecutive blocks read, by buffer."""

    def __init__(self, accesses: Mapping[int, BlockAccesses]) -> None:
        """Collect the reads of blocks with ascending numbers."""
        self._reads: dict[str, list[Array]] = {}
        for place, block in enumerate(sorted(accesses)):
            for name, read in accesses[block].read.items():
                self._reads.setdefault(name, []).append(read.sector_numbers * WINDOW + place)

    @property
    def buffers(self) -> set[str]:
        """Names of the buffers that were read."""
        return set(self._reads)

    def by_window(self, count: int) -> Iterator[tuple[str, int, float]]:
        """Yield (buffer, n, distinct sectors of n consecutive blocks / distinct sectors of one block), n = 2, 4 to
        `count`.
        """
        for name, parts in self._reads.items():
            # Sort reads by sector, then by block, so that blocks of one window are adjacent.
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
    """Return `wave.<buffer>.<n>` of a launch; empty if neighboring blocks give the same information.

    Args:
        budget: maximum number of instructions of a block.
        next_is_new: for each buffer, the fraction of a block's reads that the next block does not repeat.
        busy: number of blocks with work, from the start of the grid; None for all.
        wanted: buffers that the metrics must cover.
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
    most = 1 << (len(ends) - 1).bit_length() - 1 if len(ends) > 1 else 0  # Latest barrier up to which blocks run.
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
    """Return the reads of a window's blocks, each within an instruction budget; None for clusters.

    Blocks of a cluster wait for each other, which a single warp per block cannot do.
    """
    options = EmulationOptions(batch_lanes=_WARP, count=False, budget=budget, most_blocks=len(window), watched=window)
    emulation = Emulation(module, launch, options)
    if len(emulation.whole_clusters([0])) > 1:
        return None
    for block in window:
        with contextlib.suppress(EmulationError):  # Most blocks exceed the budget, and some lack other warps.
            emulation.run([block])
    return FirstReads(emulation.accesses())


def _can_be_repeated(function: Function, launch: KernelLaunch) -> bool:
    """Return whether a block can run again, because its global writes do not change what it reads."""
    if not data_dependences(function):
        return True
    pointers, buffers = global_pointers(function), [a for a in launch.arguments if isinstance(a, str)]
    return len(set(buffers)) == len(buffers) and pointers is not None and pointers[0].isdisjoint(pointers[1])


def _can_be_read(function: Function, launch: KernelLaunch) -> set[str]:
    pointers = global_pointers(function)
    names = zip(function.parameters, launch.arguments, strict=False)
    return {name for p, name in names if isinstance(name, str) and (pointers is None or p.name in pointers[0])}


def _barriers(function: Function) -> list[int]:
    instructions = function.instructions
    barriers = [max(i, _WARP) for i, ins in enumerate(instructions) if ins.opcode in ("bar", "barrier")]
    return [*barriers, max(len(instructions), _WARP)]
