"""Tensor memory of the blocks of a batch: 128 lanes of 512 columns of 32 bits each, and what is under way in it.

PTX ISA, section "Tensor Memory". An address has the lane in its upper and the column in its lower 16 bits. Columns are
allocated, in powers of two from 32 on, before they are used, and released before the kernel ends. Here a block has
tensor memory of its own, as if it were alone on its SM.

Accesses are asynchronous. `tcgen05.st` is done when its warp ran `tcgen05.wait::st`, `tcgen05.ld` when it ran
`tcgen05.wait::ld`; `tcgen05.mma` and `tcgen05.cp` when the barrier of the `tcgen05.commit` behind them completes a
phase. The emulator moves the values at once, and notes for each cell what is not done: an access that needs it to be is
an error.
"""

from typing import NamedTuple

import numpy as np

from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.region import POISON
from kernrec.ptx.state.types import Array

LANES = 128
COLUMNS = 512
_FEWEST = 32  # columns that can be allocated
_UNSEEN = POISON * 0x01010101


class Cells(NamedTuple):
    """Cells of tensor memory: index arrays that broadcast together."""

    block: Array | int
    """Position of the thread block in the batch."""

    lane: Array

    column: Array


class Operation(NamedTuple):
    """A `tcgen05.mma` or `tcgen05.cp` under way."""

    site: str
    """The instruction, for messages."""

    read: list[Cells]

    written: list[Cells]


class TensorMemory:
    """Tensor memory of a batch of blocks; it costs nothing until a kernel allocates some."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._cells: Array | None = None
        self._under_way = np.zeros((0, 0, 0, 0), np.int16)  # (4, blocks, lanes, columns): see the names below
        self._owners: list[dict[int, tuple[int, str]]] = []  # by block: first column -> (columns, where)
        self._closed: set[int] = set()  # blocks that gave up allocating

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._owners = [{} for _ in range(self._blocks)]
        self._closed.clear()
        if self._cells is not None:
            self._cells[:] = _UNSEEN
            self._under_way[:] = 0

    # Allocation

    def allocate(self, site: str, block: int, columns: int) -> int:
        """Allocates columns of a block: the address of the first.

        Raises:
            EmulationError: not a power of two from 32 to 512, none are left, or the block gave up allocating.
        """
        if not _FEWEST <= columns <= COLUMNS or columns & (columns - 1):
            raise EmulationError(f"{site}: {columns} columns, where a power of two from {_FEWEST} to 512 is expected")
        if block in self._closed:
            raise EmulationError(f"{site}: the block gave up allocating (tcgen05.relinquish_alloc_permit)")
        if self._cells is None:
            shape = self._blocks, LANES, COLUMNS
            self._cells = np.full(shape, _UNSEEN, np.uint32)
            self._under_way = np.zeros((4, *shape), np.int16)
        owned = self._owners[block]
        for first in range(0, COLUMNS, columns):
            if all(first + columns <= other or other + count <= first for other, (count, _) in owned.items()):
                owned[first] = columns, site
                return first
        taken = sum(count for count, _ in owned.values())
        raise EmulationError(f"{site}: deadlock: {columns} columns of tensor memory, of which {taken} are taken")

    def release(self, site: str, block: int, address: int, columns: int) -> None:
        """Releases columns.

        Raises:
            EmulationError: they were not allocated, or something is under way in them.
        """
        owned = self._owners[block].get(address, (0, ""))[0]
        if owned != columns:
            had = f"{owned} columns" if owned else "none"
            raise EmulationError(f"{site}: {columns} columns at 0x{address:08x}, where {had} were allocated")
        self._check(site, Cells(block, np.arange(LANES)[:, None], np.arange(address, address + columns)), _ALL)
        del self._owners[block][address]

    def relinquish(self, block: int) -> None:
        """A block allocates no more."""
        self._closed.add(block)

    def check_released(self) -> None:
        """The kernel ended.

        Raises:
            EmulationError: some columns were not released.
        """
        for owned in self._owners:
            for first, (columns, site) in owned.items():
                raise EmulationError(
                    f"{site}: {columns} columns of tensor memory from {first} on were not released when the kernel "
                    "ended"
                )

    # Accesses

    def load(self, site: str, cells: Cells) -> Array:
        """Loads cells into registers; under way until `finish_loads`.

        Raises:
            EmulationError: cells that are not allocated, or what writes them is not done.
        """
        self._check(site, cells, (_STORED, _COMPUTED))
        assert self._cells is not None
        self._under_way[_LOADED][cells] += 1
        values: Array = self._cells[cells]
        return values

    def store(self, site: str, cells: Cells, values: Array) -> None:
        """Stores registers; under way until `finish_stores`.

        Raises:
            EmulationError: cells that are not allocated, or what reads or writes them is not done.
        """
        self._check(site, cells, (_LOADED, _COMPUTED, _USED))
        assert self._cells is not None
        self._under_way[_STORED][cells] = 1
        self._cells[cells] = values

    def finish_loads(self, accesses: list[Cells]) -> None:
        """Loads of these cells are done."""
        for cells in accesses:
            self._under_way[_LOADED][cells] -= 1

    def finish_stores(self, accesses: list[Cells]) -> None:
        """Stores to these cells are done."""
        for cells in accesses:
            self._under_way[_STORED][cells] = 0

    def begin(self, operation: Operation) -> None:
        """An operation starts; those before it of the same kind are done in order.

        Raises:
            EmulationError: cells that are not allocated, or loads and stores that are not done.
        """
        for cells in operation.read:
            self._check(operation.site, cells, (_STORED,))
            self._under_way[_USED][cells] += 1
        for cells in operation.written:
            self._check(operation.site, cells, (_STORED, _LOADED))
            self._under_way[_COMPUTED][cells] += 1

    def end(self, operation: Operation) -> None:
        """An operation is done."""
        for cells in operation.read:
            self._under_way[_USED][cells] -= 1
        for cells in operation.written:
            self._under_way[_COMPUTED][cells] -= 1

    def values(self, cells: Cells) -> Array:
        """The values of cells."""
        assert self._cells is not None
        values: Array = self._cells[cells]
        return values

    def put(self, cells: Cells, values: Array) -> None:
        """Gives cells what an operation computes."""
        assert self._cells is not None
        self._cells[cells] = values

    def _check(self, site: str, cells: Cells, hindrances: tuple[int, ...]) -> None:
        """Raises where cells are not allocated, or something is under way in them."""
        first, last = int(np.min(cells.column)), int(np.max(cells.column))
        if int(np.max(cells.lane)) >= LANES or int(np.min(cells.lane)) < 0:
            raise EmulationError(f"{site}: lane {int(np.max(cells.lane))} of tensor memory, which has {LANES}")
        for block in np.unique(cells.block):
            owned = self._owners[block].items()
            taken = np.zeros(COLUMNS + 1, np.bool_)
            for start, (count, _) in owned:
                taken[start : start + count] = True
            if not taken[np.minimum(cells.column, COLUMNS)].all():
                raise EmulationError(f"{site}: columns {first} to {last} of tensor memory are not all allocated")
        for kind in hindrances:
            if self._under_way[kind][cells].any():
                raise EmulationError(f"{site}: columns {first} to {last} of tensor memory: {_WHY[kind]}")


_STORED, _LOADED, _COMPUTED, _USED = range(4)
_ALL = (_STORED, _LOADED, _COMPUTED, _USED)
_WHY = (
    "a tcgen05.st to them was not waited for (tcgen05.wait::st)",
    "a tcgen05.ld of them was not waited for (tcgen05.wait::ld)",
    "a tcgen05.mma or tcgen05.cp still writes them; the barrier of a tcgen05.commit must complete first",
    "a tcgen05.mma still reads them; the barrier of a tcgen05.commit must complete first",
)
