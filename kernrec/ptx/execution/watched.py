"""Set the options of an emulation, and record global memory accesses of watched thread blocks in order.

Counters only show how much a block requests. Addresses also show whether another block requests the same data, whether
L1 still holds a sector on a repeated request, and whether DRAM reads long runs or scattered sectors. Models of caches
and DRAM need this.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array
from kernrec.util.light_dataclass import dataclass

SECTOR = 32
"""Bytes of a sector, the unit that moves between caches and memory."""
_WORD = 4
_WORDS = SECTOR // _WORD


@dataclass(frozen=True)
class Touched:
    """4-byte words of a buffer that a block accessed."""

    words: Array
    """Word numbers in ascending order; only the first word of each sector unless `fine`."""
    fine: bool
    """Whether `words` lists every word; for buffers above 1 GiB it lists sectors only."""

    @cached_property
    def sector_numbers(self) -> Array:
        """Distinct 32-byte sectors in ascending order."""
        return without_repeats(self.words // _WORDS)

    @property
    def sectors(self) -> int:
        """Number of distinct sectors of 32 bytes."""
        return len(self.sector_numbers)

    def new_bytes(self, other: "Touched") -> float:
        """Return the additional bytes that `other`, the next block, moves, if further blocks follow the same pattern.

        If `other` continues where this block stops, it moves only its own bytes, even if it starts within a sector.
        Elsewhere, whole sectors move.
        """
        sectors = int(np.count_nonzero(~among(other.sector_numbers, self.sector_numbers)))
        new = other.words[~among(other.words, self.words)]
        if not (self.fine and len(new)):
            return float(sectors * SECTOR)
        breaks = np.diff(new) != 1
        begins, ends = new[np.append(True, breaks)], new[np.append(breaks, True)]
        # Runs of new words that begin where this block stopped, or end where it starts.
        before, behind = among(begins - 1, self.words).sum(), among(ends + 1, self.words).sum()
        share = max(int(before), int(behind)) / len(begins)
        return share * len(new) * _WORD + (1.0 - share) * sectors * SECTOR


NOTHING = Touched(np.zeros(0, np.int64), True)


@dataclass(frozen=True)
class BlockTrace:
    """Sectors that a block requested, in order: each warp's request with its distinct sectors; arrays (N,)."""

    step: Array
    """Execution step of the request: runs of pieces of machine code since the block's batch started."""
    warp: Array
    """Index of the requesting warp in its block."""
    sector: Array
    """Address of the sector / 32; buffers are far apart."""
    is_read: Array
    """Whether the request was a load."""


@dataclass(frozen=True)
class BlockAccesses:
    """Accesses of one thread block to global memory."""

    trace: BlockTrace
    """Loads and stores; at most the first 1,048,576 sectors of the blocks that run together."""
    atomics: Array
    """Addresses of atomic operations, one per lane."""
    read: Mapping[str, Touched]
    """Words that the block read, by buffer."""
    written: Mapping[str, Touched]
    """Words that the block wrote, by buffer."""


def block_accesses(watched: Any, buffers: list[str], sizes: list[int]) -> BlockAccesses:
    """Convert a block's accesses from the engine's arrays."""
    step, warp, sector, is_read, atomics, parts = watched
    touched: tuple[dict[str, Touched], dict[str, Touched]] = {}, {}
    for number, written, words in parts:
        touched[written][buffers[number]] = Touched(words, sizes[number] <= 1 << 30)
    return BlockAccesses(BlockTrace(step, warp, sector, is_read.view(np.bool_)), atomics, *touched)


def without_repeats(values: Array) -> Array:
    """Return sorted values without duplicates; faster than `np.unique`."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    distinct: Array = values[first]
    return distinct


def among(values: Array, ascending: Array) -> Array:
    """Return a mask of the values that `ascending`, a sorted array, contains."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    present: Array = ascending[place] == values
    return present


Lowering = Callable[[Function], Sequence[Mapping[str, float]]]

BUDGET = 20_000_000


@dataclass(frozen=True)
class CheckedMemory:
    """Memory that `kernrec check` watches."""

    uninitialized: frozenset[str] = frozenset()
    """Buffers that nothing wrote before the launch."""
    shared: bool = True
    """Whether to check shared memory: reads of unwritten bytes, races, accesses beyond an array."""
    global_races: bool = True
    """Whether blocks must not share global memory that one of them writes."""


@dataclass(frozen=True)
class EmulationOptions:
    """Options for running thread blocks, and for watching them."""

    most_blocks: int = 1
    """Maximum number of thread blocks of one `Emulation.run`."""
    batch_lanes: int = 1024
    """Approximate number of threads that run together."""
    count: bool = True
    budget: int = BUDGET
    """Maximum number of PTX instructions of a batch of blocks before the kernel counts as an endless loop."""
    check_races: bool = False
    """Whether a data race is an error, in shared memory or in global memory that blocks hand over."""
    checked: CheckedMemory | None = None
    """Checks beyond fatal errors (`Emulation.findings`), or None for none."""
    watched: Sequence[int] = ()
    """Linear numbers of blocks whose global memory accesses are recorded (`Emulation.accesses`). If there are any, the
    engine also counts `global.<buffer>.{read,write,atomic}_passes` (L1 clocks) and `global.<buffer>.atomic_turns`
    (turns of lanes in one sector). Both depend on where tiles start.
    """
    lanes_by_class: bool = False
    """Whether to count active lanes by instruction class."""
    lowering: Lowering | None = None
    """Function that returns the machine instructions of each basic block by class (`kernrec.ptx.analysis.lowering`),
    which `issue` and `lanes` count. None counts each PTX instruction separately (`kernrec.ptx.analysis.issue_cost`).
    """
