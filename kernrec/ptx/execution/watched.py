"""Define the options of an emulation, and the recorded global memory accesses of watched thread blocks.

Models of caches and DRAM need the addresses of a block's requests in order. Counters only contain totals.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array
from kernrec.util.light_dataclass import dataclass

SECTOR = 32
"""Bytes of a sector, the unit of transfers between caches and memory."""


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
    read: Mapping[str, Any]
    """Words that the thread block read, as the engine's `Touched`, keyed by buffer."""
    written: Mapping[str, Any]
    """Words that the thread block wrote, as the engine's `Touched`, keyed by buffer."""


def block_accesses(watched: Any, buffers: list[str]) -> BlockAccesses:
    step, warp, sector, is_read, atomics, parts = watched
    touched: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for number, written, words in parts:
        touched[written][buffers[number]] = words
    return BlockAccesses(BlockTrace(step, warp, sector, is_read.view(np.bool_)), atomics, *touched)


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
    """Linear numbers of thread blocks whose global memory accesses are recorded, in order only if `count` is true.

    If there are any, the engine also counts `global.<buffer>.{read,write,atomic}_passes` (clocks of L1) and
    `global.<buffer>.atomic_turns` (how often a lane waits because another lane uses the same sector).
    """
    results: bool = True
    """Whether memory must contain the kernel's results after the run.

    If not, the engine skips computations that affect no count.
    """
    lanes_by_class: bool = False
    """Whether to count active lanes by instruction class."""
    lowering: Lowering | None = None
    """Function that returns the machine instructions of basic blocks. None converts each PTX instruction by itself."""
