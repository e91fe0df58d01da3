"""Define the options of an emulation, and the recorded global memory accesses of watched thread blocks.

Models of caches and DRAM need the addresses of a block's requests in order. Counters only contain totals.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array
from kernrec.util.light_dataclass import dataclass

SECTOR = 32
"""Bytes of a sector, the unit of transfers between caches and memory."""
_WORD = 4
_WORDS = SECTOR // _WORD


@dataclass(frozen=True)
class Touched:
    """4-byte words of a buffer that a thread block has accessed."""

    words: Array
    """Numbers of the accessed words, ascending. If `fine` is false, only the first word of each sector is listed."""
    fine: bool
    """Whether `words` lists every accessed word. False for buffers larger than 1 GiB."""

    @cached_property
    def sector_numbers(self) -> Array:
        """Return the numbers of the 32-byte sectors in ascending order."""
        return without_repeats(self.words >> _WORDS.bit_length() - 1)

    @property
    def sectors(self) -> int:
        """Return the number of 32-byte sectors."""
        return len(self.sector_numbers)

    def new_bytes(self, other: "Touched") -> float:
        """Return the additional bytes that the next block, `other`, moves.

        A new word next to a word of this block counts as 4 bytes: later blocks probably access the rest of its
        sector. Any other new word counts as a whole sector.
        """
        sectors = int(np.count_nonzero(~among(other.sector_numbers, self.sector_numbers)))
        new = other.words[~among(other.words, self.words)]
        if not (self.fine and len(new)):
            return float(sectors * SECTOR)
        breaks = np.diff(new) != 1
        begins, ends = new[np.append(True, breaks)], new[np.append(breaks, True)]
        # Count the runs of consecutive new words that directly follow or directly precede a word of this block.
        following, preceding = among(begins - 1, self.words).sum(), among(ends + 1, self.words).sum()
        share = max(int(following), int(preceding)) / len(begins)
        return share * len(new) * _WORD + (1.0 - share) * sectors * SECTOR


NOTHING = Touched(np.zeros(0, np.int64), True)


@dataclass(frozen=True)
class BlockTrace:
    """Sectors that a thread block requested, in order of time.

    All arrays have one element per request. Simultaneous requests of a warp's lanes for one sector count as one.
    """

    step: Array
    """Time of the request: the number of pieces of machine code that have run since the batch started."""
    warp: Array
    """Index of the requesting warp in its block."""
    sector: Array
    """Address of the sector divided by 32."""
    is_read: Array

    def only(self, is_read: bool) -> "BlockTrace":
        """Return the requests of loads only, or of stores only."""
        chosen = self.is_read == is_read
        columns = (self.step, self.warp, self.sector, self.is_read)
        return self if chosen.all() else BlockTrace(*[column[chosen] for column in columns])


@dataclass(frozen=True)
class BlockAccesses:
    """Accesses of one thread block to global memory."""

    trace: BlockTrace
    """Requests of loads and stores. Blocks that are emulated together record at most 1,048,576 sectors."""
    atomics: Array
    """Address of each lane's atomic operation."""
    read: Mapping[str, Touched]
    """Words that the thread block read, keyed by buffer."""
    written: Mapping[str, Touched]
    """Words that the thread block wrote, keyed by buffer."""


def block_accesses(watched: Any, buffers: list[str], sizes: list[int]) -> BlockAccesses:
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
    """Return for each value of a sorted array whether the sorted array `ascending` contains it."""
    present = np.zeros(len(values), np.bool_)
    if len(values) and len(ascending):
        # Search only the range that both arrays share.
        low, high = np.searchsorted(values, (ascending[0], ascending[-1] + 1))
        shared = values[low:high]
        place = np.searchsorted(ascending, shared)
        present[low:high] = ascending[place] == shared
    return present


Lowering = Callable[[Function], Sequence[Mapping[str, float]]]

BUDGET = 20_000_000


@dataclass(frozen=True)
class CheckedMemory:
    """Memory checks of `kernrec check`."""

    uninitialized: frozenset[str] = frozenset()
    """Buffers that nothing has written before the launch."""
    shared: bool = True
    """Whether to check shared memory for reads of unwritten bytes, races, and accesses beyond an array."""
    global_races: bool = True
    """Whether to report races between thread blocks in global memory."""
    values: bool = True
    """Whether to report uses of variables and local memory without a value."""


@dataclass(frozen=True)
class EmulationOptions:
    most_blocks: int = 1
    batch_lanes: int = 1024
    """Approximate number of threads that are emulated together."""
    count: bool = True
    budget: int = BUDGET
    """PTX instructions that a batch of blocks may execute. A kernel that needs more counts as an endless loop."""
    check_races: bool = False
    """Whether a data race in shared memory, or between blocks that pass data in global memory, raises an error."""
    checked: CheckedMemory | None = None
    """Checks that report errors without stopping the emulation, or None for no checks."""
    watched: Sequence[int] = ()
    """Linear numbers of thread blocks whose global memory accesses are recorded.

    The engine then also counts `global.<buffer>.{read,write,atomic}_passes` (clocks of L1) and
    `global.<buffer>.atomic_turns` (how often a lane waits because another lane uses the same sector).
    """
    results: bool = True
    """Whether memory must contain the kernel's results after the run. If not, the engine skips what no count needs."""
    lanes_by_class: bool = False
    """Whether to count active lanes by instruction class."""
    lowering: Lowering | None = None
    """Function that returns the machine instructions of basic blocks. None converts each PTX instruction by itself."""
