"""Define the options of an emulation, and the record of global memory accesses that it makes for watched thread blocks.

Counters only show how much data a thread block requests. Models of caches and DRAM also need the addresses, in order:
they show whether another block requests the same data, whether L1 still holds a sector when it is requested again, and
whether DRAM reads long runs or scattered sectors.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array
from kernrec.util.light_dataclass import dataclass

SECTOR = 32
"""Size of a sector in bytes. A sector is the unit that moves between caches and memory."""
_WORD = 4
_WORDS = SECTOR // _WORD


@dataclass(frozen=True)
class Touched:
    """The 4-byte words of a buffer that a thread block has accessed."""

    words: Array
    """Numbers of the words in ascending order. Unless `fine` is true, only the first word of each sector is listed."""
    fine: bool
    """Whether `words` lists every word. For buffers larger than 1 GiB, it lists only sectors."""

    @cached_property
    def sector_numbers(self) -> Array:
        """Return the numbers of the distinct 32-byte sectors in ascending order."""
        return without_repeats(self.words // _WORDS)

    @property
    def sectors(self) -> int:
        """Return the number of distinct 32-byte sectors."""
        return len(self.sector_numbers)

    def new_bytes(self, other: "Touched") -> float:
        """Return the bytes that the next block, `other`, moves in addition to the bytes of this block.

        A run of words in `other` that continues a run of this block adds only its own bytes, because later blocks are
        assumed to continue the pattern. Any other run adds whole sectors.
        """
        sectors = int(np.count_nonzero(~among(other.sector_numbers, self.sector_numbers)))
        new = other.words[~among(other.words, self.words)]
        if not (self.fine and len(new)):
            return float(sectors * SECTOR)
        breaks = np.diff(new) != 1
        begins, ends = new[np.append(True, breaks)], new[np.append(breaks, True)]
        # Count the new runs that start right after a word of this block, and those that end right before one.
        before, behind = among(begins - 1, self.words).sum(), among(ends + 1, self.words).sum()
        share = max(int(before), int(behind)) / len(begins)
        return share * len(new) * _WORD + (1.0 - share) * sectors * SECTOR


NOTHING = Touched(np.zeros(0, np.int64), True)


@dataclass(frozen=True)
class BlockTrace:
    """Sectors that a thread block requested, in order. If several lanes of a warp request the same sector at once, it
    counts once. All arrays have one element per requested sector."""

    step: Array
    """Time of the request, as the number of executed pieces of machine code since the block's batch started."""
    warp: Array
    """Index, in its block, of the warp that requested the sector."""
    sector: Array
    """Address of the sector / 32. Different buffers are far apart."""
    is_read: Array
    """Whether the sector was loaded instead of stored."""


@dataclass(frozen=True)
class BlockAccesses:
    """Accesses of one thread block to global memory."""

    trace: BlockTrace
    """Loads and stores. At most 1,048,576 sectors are recorded for all blocks that are emulated at the same time."""
    atomics: Array
    """Addresses of the atomic operations, one per lane."""
    read: Mapping[str, Touched]
    """Words that the thread block read, keyed by buffer."""
    written: Mapping[str, Touched]
    """Words that the thread block wrote, keyed by buffer."""


def block_accesses(watched: Any, buffers: list[str], sizes: list[int]) -> BlockAccesses:
    """Create the record of a thread block's accesses from the engine's arrays."""
    step, warp, sector, is_read, atomics, parts = watched
    touched: tuple[dict[str, Touched], dict[str, Touched]] = {}, {}
    for number, written, words in parts:
        touched[written][buffers[number]] = Touched(words, sizes[number] <= 1 << 30)
    return BlockAccesses(BlockTrace(step, warp, sector, is_read.view(np.bool_)), atomics, *touched)


def without_repeats(values: Array) -> Array:
    """Return the distinct values of a sorted array. This is faster than `np.unique`."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    distinct: Array = values[first]
    return distinct


def among(values: Array, ascending: Array) -> Array:
    """Return, for each value, whether the sorted array `ascending` contains it."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    present: Array = ascending[place] == values
    return present


Lowering = Callable[[Function], Sequence[Mapping[str, float]]]

BUDGET = 20_000_000


@dataclass(frozen=True)
class CheckedMemory:
    """Errors in memory accesses for which `kernrec check` looks."""

    uninitialized: frozenset[str] = frozenset()
    """Buffers that nothing has written before the launch. Reading them is reported."""
    shared: bool = True
    """Whether to check shared memory for reads of unwritten bytes, races, and accesses beyond an array."""
    global_races: bool = True
    """Whether to report thread blocks that access the same global memory if one of them writes it."""


@dataclass(frozen=True)
class EmulationOptions:
    """Options for emulating thread blocks and for recording their accesses."""

    most_blocks: int = 1
    """Maximum number of thread blocks that are passed to one `Emulation.run`."""
    batch_lanes: int = 1024
    """Approximate number of threads that are emulated at the same time."""
    count: bool = True
    budget: int = BUDGET
    """Maximum PTX instructions of a batch of blocks. A kernel that exceeds it is assumed to loop forever."""
    check_races: bool = False
    """Whether a data race in shared memory, or in global memory through which blocks pass data, raises an error."""
    checked: CheckedMemory | None = None
    """Checks for errors that do not stop the emulation (see `Emulation.findings`), or None."""
    watched: Sequence[int] = ()
    """Linear numbers of the thread blocks whose accesses to global memory are recorded (see `Emulation.accesses`). If
    there are any, the engine also counts `global.<buffer>.{read,write,atomic}_passes` (clocks of L1) and
    `global.<buffer>.atomic_turns` (how often lanes wait for other lanes in the same sector). Both depend on the
    alignment of tiles to sectors."""
    lanes_by_class: bool = False
    """Whether to count active lanes for each instruction class."""
    lowering: Lowering | None = None
    """Function that returns the machine instructions of each basic block by class, which are the basis of the counters
    `issue` and `lanes` (see `kernrec.ptx.analysis.lowering`). If it is None, each PTX instruction is converted
    separately (see `kernrec.ptx.analysis.issue_cost`)."""
