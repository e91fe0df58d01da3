"""Divide the blocks of a grid into levels: runs of consecutive blocks that do equal work.

In some kernels, the middle block does not represent all blocks: persistent blocks process different numbers of tiles,
and a mixture of experts may start blocks without work. Bisection finds the blocks where the work changes:

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
"""Maximum relative difference between the machine instructions of blocks that do equal work."""
IDLE = 0.1
"""Fraction of the longest block's machine instructions below which a block is idle."""
_MOST_BLOCKS = 16  # Maximum number of blocks to emulate for finding the levels.
_SHORT = 2_000  # Maximum number of PTX instructions to emulate to test whether a block is idle.


@dataclass(frozen=True)
class Level:
    block: int
    """Number of a block near the middle of the run."""
    count: int
    work: float
    """Machine instructions that each block issues."""


def work_levels(module: Module, launch: KernelLaunch, options: EmulationOptions) -> tuple[Level, ...]:
    """Divide a one-dimensional grid into runs of blocks with equal work, or return none if all blocks do equal work.

    All blocks are assumed to do equal work in two cases: no branch depends on the block, or no loop stores to global
    memory and the last blocks are not idle. The first and the last block join the runs of their neighbors.
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
    longest = max((level.work for level in levels), default=0.0)
    return [level for level in levels if level.work < IDLE * longest]


def _last_is_idle(emulation: Emulation, launch: KernelLaunch) -> bool:
    """Return whether the last two blocks are idle and the first is not."""
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
        # A block that exceeds its budget has work. The later emulation of a sample reports unsupported instructions.
        return False


def _most_work(emulation: Emulation, launch: KernelLaunch) -> float:
    """Return the maximum number of machine instructions of a block. It is infinite if the code has a loop."""
    function, issue = emulation.function, emulation.lowered
    branches = (
        after for block in function.blocks for after in successors(function, block.index) if after <= block.index
    )
    if issue is None or any(True for _ in branches):
        return math.inf
    return float(warps_of(launch.block) * sum(sum(counts.values()) for counts in issue))


def levels(work: Callable[[int], float], total: int) -> tuple[Level, ...]:
    """Divide blocks 0 to `total` - 1 into runs with equal work, or return none if all inner blocks do equal work.

    Args:
        work: function that returns a block's work.
    """
    first, last = 1, total - 2  # Skip the first and the last block, because their tiles may be partial.
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
    alike = [blocks[0]]
    for block, following in zip(blocks, [*blocks[1:], total], strict=True):
        if following < total and _equal(seen[block], seen[following]):
            alike.append(following)
            continue
        # The work changes somewhere between `block` and `following`. Assume the middle, to save further emulation.
        end = total if following == total else (block + following) // 2 + 1
        middle = min(max((start + end) // 2, alike[0]), alike[-1])
        parts.append(Level(middle, end - start, seen[block]))
        start, alike = end, [following]
    return tuple(parts) if len(parts) > 1 else ()


def _equal(work: float, other: float) -> bool:
    return abs(work - other) <= EQUAL * max(work, other)
