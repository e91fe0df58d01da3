"""`tcgen05` instructions under way: matrix operations by issuing thread, loads and stores by warp, and fences.

A `tcgen05.commit` makes a barrier track all matrix operations that its thread issued before. The asynchronous engine
finishes them as late as it may, and then arrives at the barrier. Until then the cells of tensor memory that they use
are busy (`kernrec.ptx.state.tensor_memory`), and the tiles in shared memory must not be written.

The registers that `tcgen05.ld` loads may be used at once: the assembler keeps the instructions behind it waiting, and
Triton counts on that. The wait says when the cells may be written again.

Fences stand around the synchronization of threads (PTX ISA, section "tcgen05.fence"). Cells that a thread loaded or
stored may be overwritten or read by another one after it ran `tcgen05.fence::before_thread_sync`, the two synchronized,
and the other ran `::after_thread_sync`. Computed cells need the second fence alone, for a `tcgen05.commit` has the
effect of the first. Allocating and releasing columns are not asynchronous and need none.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from kernrec.ptx.state.batch import WARP, BatchShape
from kernrec.ptx.state.bulk_copies import AsyncEngine
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.race_detector import RaceDetector, TileRead
from kernrec.ptx.state.tensor_memory import COLUMNS, LANES, Cells, Operation, TensorMemory
from kernrec.ptx.state.types import Array

LOADED, STORED, COMPUTED = range(3)
_QUARTER = 32  # lanes that one warp reaches
_DID = ("loaded", "stored", "computed")


class TensorFences:
    """When each warp of a batch used which part of tensor memory, and fenced.

    Every event has a time. Before a warp uses cells that another warp used, there must have been a fence of each since.
    So a fence that stands at the wrong place is not always found, and a correct kernel is never refused. Compilers that
    leave all fences out rely on their barriers (Triton 3.9 does): only a kernel that has some is held to them.
    """

    def __init__(self, shape: BatchShape) -> None:
        self._shape = shape
        self._warps_per_block = shape.lanes_per_block // WARP
        self._of_cluster = self._warps_per_block * shape.cluster_blocks
        self._used: Array | None = None  # time: (3, blocks, warps of the cluster, quarters of the lanes, columns)
        self._before = np.zeros(shape.lanes // WARP, np.int64)
        self._after = np.zeros(shape.lanes // WARP, np.int64)
        self._now = 0

    def start_batch(self) -> None:
        """Forgets the last batch."""
        for times in (self._used, self._before, self._after):
            if times is not None:
                times[:] = 0
        self._now = 0

    def watch(self) -> None:
        """The kernel has fences: it is held to them from now on."""
        if self._used is None:
            self._used = np.zeros((3, self._shape.blocks, self._of_cluster, LANES // _QUARTER, COLUMNS), np.int64)

    def fence(self, warps: Array, *, before: bool) -> None:
        """Warps run a fence: that before they synchronize with others, or that after."""
        self._now += 1
        (self._before if before else self._after)[warps] = self._now

    def note(self, warp: int, kind: int, accesses: list[Cells]) -> None:
        """An access of a warp to these cells is done."""
        if self._used is None:
            return
        self._now += 1
        for cells in accesses:
            self._used[kind, cells.block, warp % self._of_cluster, cells.lane // _QUARTER, cells.column] = self._now

    def check(self, site: str, warp: int, kinds: tuple[int, ...], cells: Cells) -> None:
        """A warp is about to use cells, which must not conflict with what others did there.

        Raises:
            EmulationError: there was no fence since, of the other warp or of this one.
        """
        if self._used is None:
            return
        quarters, columns = np.unique(cells.lane // _QUARTER), np.unique(cells.column)
        columns = columns[columns < COLUMNS]
        for kind in kinds:
            part = self._used[kind, cells.block][:, quarters][:, :, columns]
            last = part.max(axis=(1, 2), initial=0)
            last[warp % self._of_cluster] = 0
            first = warp // self._of_cluster * self._of_cluster
            fenced = np.full(len(last), self._now) if kind == COMPUTED else self._before[first : first + len(last)]
            for late, fence in ((last > fenced, "before"), (last > self._after[warp], "after")):
                if late.any():
                    self._fail(site, (int(columns[0]), int(columns[-1])), (int(late.argmax()), kind), fence)

    def _fail(self, site: str, columns: tuple[int, int], done: tuple[int, int], fence: str) -> NoReturn:
        other, kind = done
        raise EmulationError(
            f"{site}: race: columns {columns[0]} to {columns[1]} of tensor memory, which warp"
            f" {other % self._warps_per_block} {_DID[kind]} with no tcgen05.fence::{fence}_thread_sync since"
        )


class TensorOperations:
    """The `tcgen05` instructions under way of a batch."""

    def __init__(self, memory: TensorMemory, fences: TensorFences, races: RaceDetector | None) -> None:
        self.memory = memory
        self.fences = fences
        self._races = races
        self._issued: dict[int, list[tuple[Operation, TileRead | None]]] = {}  # by lane: not committed yet
        self._loads: dict[int, list[Cells]] = {}  # by warp
        self._stores: dict[int, list[Cells]] = {}  # by warp

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self.memory.start_batch()
        self.fences.start_batch()
        self._issued.clear()
        self._loads.clear()
        self._stores.clear()

    # Matrix operations

    def issue(self, lane: int, operation: Operation, tile: Array) -> None:
        """A thread issues an operation that reads a tile, bytes of the batch's shared memory.

        Raises:
            EmulationError: cells or bytes that it must not use yet.
        """
        read = None
        if self._races is not None:
            read = self._races.begin_tile(operation.site, tile, np.array([lane // WARP]))
        self.memory.begin(operation)
        for cells in operation.read:
            self.fences.check(operation.site, lane // WARP, (STORED, COMPUTED), cells)
        for cells in operation.written:
            self.fences.check(operation.site, lane // WARP, (LOADED, STORED, COMPUTED), cells)
        self._issued.setdefault(lane, []).append((operation, read))

    def commit(self, lane: int, engine: AsyncEngine, places: Sequence[int], arrive: Callable[[], None]) -> None:
        """A thread commits what it issued: once it is done, `arrive` is called, which arrives at the barriers at these
        places. These tell what the thread knew when it committed."""
        issued, races = self._issued.pop(lane, []), self._races
        snapshot = races.snapshot(lane) if isinstance(races, PhaseRaceDetector) else None

        def finish() -> None:
            for operation, read in issued:
                self.memory.end(operation)
                self.fences.note(lane // WARP, COMPUTED, operation.read + operation.written)
                if races is not None and read is not None:
                    races.end_tile(read, snapshot)
            if isinstance(races, PhaseRaceDetector) and snapshot is not None:
                for place in places:
                    races.arrive(snapshot, place)
            arrive()

        engine.start(finish)

    # Loads and stores

    def load(self, site: str, warp: int, cells: Cells) -> None:
        """A warp loads cells into registers.

        Raises:
            EmulationError: a fence is missing.
        """
        self.fences.check(site, warp, (STORED, COMPUTED), cells)
        self._loads.setdefault(warp, []).append(cells)

    def store(self, site: str, warp: int, cells: Cells) -> None:
        """A warp stores to cells.

        Raises:
            EmulationError: a fence is missing.
        """
        self.fences.check(site, warp, (LOADED, STORED, COMPUTED), cells)
        self._stores.setdefault(warp, []).append(cells)

    def wait_for_loads(self, warps: Array) -> None:
        """These warps run `tcgen05.wait::ld`."""
        for warp in warps.tolist():
            done = self._loads.pop(warp, [])
            self.memory.finish_loads(done)
            self.fences.note(warp, LOADED, done)

    def wait_for_stores(self, warps: Array) -> None:
        """These warps run `tcgen05.wait::st`."""
        for warp in warps.tolist():
            done = self._stores.pop(warp, [])
            self.memory.finish_stores(done)
            self.fences.note(warp, STORED, done)
