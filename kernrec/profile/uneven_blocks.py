"""Blocks of one grid that differ in their work: how many do as much as which.

A persistent kernel starts about as many blocks as run at once, each of which goes on to several tiles; where there are
fewer tiles than blocks, or no multiple, some do less than others, or nothing. A mixture of experts starts blocks for
more tokens than there are. The block in the middle of the grid then stands for nobody but its equals.

Blocks with consecutive numbers tend to do the same, so the places where the work changes are found by bisection:

    work of blocks   3 3 3 3 2 2 2 2 2 2 2 2        two levels: 4 blocks like number 2, 8 blocks like number 8
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.dependence import blocks_run_alike
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.analysis.loops import stores_in_loops
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.options import EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.state.errors import EmulationError
from kernrec.util.light_dataclass import dataclass

EQUAL = 0.03
"""Blocks whose machine instructions differ by a smaller share are taken to do the same."""
IDLE = 0.1
"""Share of the longest block's instructions below which a block has nothing to do."""
_MOST_BLOCKS = 16  # that are run to find the levels
_SHORT = 2_000  # PTX instructions within which a block ends that finds nothing to do


@dataclass(frozen=True)
class Level:
    """Consecutive blocks that do the same."""

    block: int
    """The number of one of them, in their middle."""
    count: int
    work: float
    """Machine instructions of each."""


def work_levels(module: Module, launch: KernelLaunch, options: EmulationOptions) -> tuple[Level, ...]:
    """The levels of a grid along one axis, by block number; empty where nothing hints at more than one.

    A hint is a store to global memory in a loop, or a last block that ends at once where others do not, unless no
    branch depends on the block. Blocks at the very ends of the grid, whose tiles may be partial, make no level.
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
    """Those that have nothing to do."""
    longest = max((level.work for level in levels), default=0.0)
    return [level for level in levels if level.work < IDLE * longest]


def _last_is_idle(emulation: Emulation, launch: KernelLaunch) -> bool:
    """Whether the last block, and the one before, end at once, and the first does not.

    emulation: of a block at a time, within `_SHORT` instructions.
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
        return False  # it has more to do, or is refused, which the sample will say


def _most_work(emulation: Emulation, launch: KernelLaunch) -> float:
    """Machine instructions that a block executes at most: all of them once, where there is no loop."""
    function, issue = emulation.function, emulation.lowered
    branches = (
        after for block in function.blocks for after in successors(function, block.index) if after <= block.index
    )
    if issue is None or any(True for _ in branches):
        return math.inf
    warps = -(-math.prod(launch.block) // 32)
    return float(warps * sum(sum(counts.values()) for counts in issue))


def levels(work: Callable[[int], float], total: int) -> tuple[Level, ...]:
    """The levels of blocks 0 to `total` - 1; empty where there is one, but for the first and the last block.

    work: of a block by its number; about the same for neighbors.
    """
    first, last = 1, total - 2  # tiles at the ends of the grid may be partial
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
    alike = [blocks[0]]  # blocks that were run, of the present level
    for block, following in zip(blocks, [*blocks[1:], total], strict=True):
        if following < total and _equal(seen[block], seen[following]):
            alike.append(following)
            continue
        # Between two blocks that differ, where nobody looked, half are like the one and half like the other.
        end = total if following == total else (block + following) // 2 + 1
        middle = min(max((start + end) // 2, alike[0]), alike[-1])
        parts.append(Level(middle, end - start, seen[block]))
        start, alike = end, [following]
    return tuple(parts) if len(parts) > 1 else ()


def _equal(work: float, other: float) -> bool:
    return abs(work - other) <= EQUAL * max(work, other)
