"""Divide the blocks of a grid into levels: runs of consecutive blocks that do equal work.

A persistent kernel starts as many blocks as the GPU can run at once, and each block processes several tiles. Unless the
number of tiles is a multiple of the number of blocks, some blocks process one tile less than others. The kernel of a
mixture of experts starts more blocks than its tokens need, so some blocks do nothing. In these cases, the middle
block of the grid does not represent all blocks. Consecutive blocks tend to do the same work, so bisection finds the
positions where the work changes:

    work of blocks   3 3 3 3 2 2 2 2 2 2 2 2        two levels: 4 blocks with work 3, 8 blocks with work 2
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.dependence import blocks_run_alike, stores_in_loops
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.special_registers import warps_of
from kernrec.ptx.state.results import EmulationError
from kernrec.util.light_dataclass import dataclass

EQUAL = 0.03
"""Two blocks do equal work if their numbers of machine instructions differ by at most this fraction."""
IDLE = 0.1
"""A block counts as idle if it executes less than this fraction of the longest block's machine instructions."""
_MOST_BLOCKS = 16  # Maximum number of blocks to emulate for finding the levels.
_SHORT = 2_000  # Maximum number of PTX instructions to emulate to test whether a block is idle.


@dataclass(frozen=True)
class Level:
    """Consecutive blocks of a grid that do equal work."""

    block: int
    """Number of a block near the middle of the level."""
    count: int
    work: float
    """Number of machine instructions that each block of the level issues."""


def work_levels(module: Module, launch: KernelLaunch, options: EmulationOptions) -> tuple[Level, ...]:
    """Return the levels of work in a one-dimensional grid, in block order. If all blocks do equal work, return none.

    Blocks are assumed to do equal work in two cases: (1) no branch depends on the block; (2) no loop stores to global
    memory. Case 2 does not apply if the last two blocks are idle while the first is not. The first and the last block
    count like their neighbors, because their tiles may be partial.
    """
    total = launch.grid[0]
    function = inlined(module, launch.entry)
    if launch.grid[1] * launch.grid[2] > 1 or total < 4 or blocks_run_alike(function):
        return ()
    whole, stores = replace(options, most_blocks=1, watched=()), stores_in_loops(function)
    short = whole if stores else replace(whole, budget=min(options.budget, _SHORT))
    emulation = Emulation(module, launch, short)
    if len(emulation.whole_clusters([0])) > 1 or not (stores or _last_is_idle(emulation, launch)):
        return ()
    if not stores:
        emulation = Emulation(module, launch, whole)

    @cache
    def work(block: int) -> float:
        return float(emulation.run([block])["issue"])

    return levels(work, total)


def idle(levels: Sequence[Level]) -> list[Level]:
    """Return the levels whose blocks are idle."""
    longest = max((level.work for level in levels), default=0.0)
    return [level for level in levels if level.work < IDLE * longest]


def _last_is_idle(emulation: Emulation, launch: KernelLaunch) -> bool:
    """Return whether the last two blocks are idle while the first block is not.

    Args:
        emulation: Emulation that runs one block at a time, for at most `_SHORT` instructions.
    """
    last = launch.grid[0] - 1
    try:
        before_last = emulation.run([last - 1])["issue"]
        if before_last >= IDLE * _most_work(emulation, launch):
            return False
        try:
            longest = IDLE * emulation.run([0])["issue"]
        except EmulationError:
            longest = math.inf
        return bool(before_last < longest and emulation.run([last])["issue"] < longest)
    except EmulationError:
        # Either the blocks are not idle, or the emulator does not support an instruction. Sampling reports an
        # unsupported instruction later.
        return False


def _most_work(emulation: Emulation, launch: KernelLaunch) -> float:
    """Return the maximum number of machine instructions that a block can issue, or infinity if the code has a loop."""
    function, issue = emulation.function, emulation.lowered
    branches = (
        after for block in function.blocks for after in successors(function, block.index) if after <= block.index
    )
    if issue is None or any(True for _ in branches):
        return math.inf
    return float(warps_of(launch.block) * sum(sum(counts.values()) for counts in issue))


def levels(work: Callable[[int], float], total: int) -> tuple[Level, ...]:
    """Return the levels of work of blocks 0 to `total` - 1. The result is empty if all blocks except the first and the
    last do equal work.

    Args:
        work: Function that returns the work of a block, given its number. Neighboring blocks do similar work.
        total: Number of blocks.
    """
    first, last = 1, total - 2  # Ignore the first and the last block, because their tiles may be partial.
    seen = {block: work(block) for block in dict.fromkeys((first, total // 2, last))}
    while len(seen) < _MOST_BLOCKS:
        blocks = sorted(seen)
        gaps = [(b - a, a, b) for a, b in pairwise(blocks) if not _equal(seen[a], seen[b])]
        width, low, high = max(gaps, default=(0, 0, 0))
        if width < 2:
            break
        seen[(low + high) // 2] = work((low + high) // 2)
    parts: list[Level] = []
    blocks, start = sorted(seen), 0
    alike = [blocks[0]]  # Emulated blocks of the current level
    for block, following in zip(blocks, [*blocks[1:], total], strict=True):
        if following < total and _equal(seen[block], seen[following]):
            alike.append(following)
            continue
        # The work changes somewhere between two emulated blocks. Assign half of the blocks between them to each level.
        end = total if following == total else (block + following) // 2 + 1
        middle = min(max((start + end) // 2, alike[0]), alike[-1])
        parts.append(Level(middle, end - start, seen[block]))
        start, alike = end, [following]
    return tuple(parts) if len(parts) > 1 else ()


def _equal(work: float, other: float) -> bool:
    return abs(work - other) <= EQUAL * max(work, other)
