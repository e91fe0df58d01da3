"""What `tcgen05` instructions left under way: matrix operations by issuing thread, loads and stores by warp.

A `tcgen05.commit` makes a barrier track all matrix operations that its thread issued before. The asynchronous engine
finishes them as late as it may, and then arrives at the barrier. Until then the cells of tensor memory that they use
are busy (`kernrec.ptx.state.tensor_memory`), and the tiles in shared memory must not be written.

The registers that `tcgen05.ld` loads may be used at once: the assembler keeps the instructions behind it waiting, and
Triton counts on that. The wait says when the cells may be written again.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kernrec.ptx.state.async_engine import AsyncEngine
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.race_detector import RaceDetector, TileRead
from kernrec.ptx.state.tensor_fences import COMPUTED, LOADED, STORED, TensorFences
from kernrec.ptx.state.tensor_memory import Cells, Operation, TensorMemory
from kernrec.ptx.state.types import Array


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
            read = self._races.begin_tile(operation.where, tile, np.array([lane // WARP]))
        self.memory.begin(operation)
        for cells in operation.read:
            self.fences.check(operation.where, lane // WARP, (STORED, COMPUTED), cells)
        for cells in operation.written:
            self.fences.check(operation.where, lane // WARP, (LOADED, STORED, COMPUTED), cells)
        self._issued.setdefault(lane, []).append((operation, read))

    def commit(self, lane: int, engine: AsyncEngine, places: Sequence[int], arrive: Callable[[], None]) -> None:
        """A thread commits what it issued: once it is done, `arrive` is called, which arrives at the barriers at these
        places. These tell what the thread knew when it committed."""
        issued, races = self._issued.pop(lane, []), self._races
        known = races.snapshot(lane) if isinstance(races, PhaseRaceDetector) else None

        def finish() -> None:
            for operation, read in issued:
                self.memory.end(operation)
                self.fences.note(lane // WARP, COMPUTED, operation.read + operation.written)
                if races is not None and read is not None:
                    races.end_tile(read, known)
            if isinstance(races, PhaseRaceDetector) and known is not None:
                for place in places:
                    races.arrive(known, place)
            arrive()

        engine.start(finish)

    # Loads and stores

    def load(self, where: str, warp: int, cells: Cells) -> None:
        """A warp loads cells into registers.

        Raises:
            EmulationError: a fence is missing.
        """
        self.fences.check(where, warp, (STORED, COMPUTED), cells)
        self._loads.setdefault(warp, []).append(cells)

    def store(self, where: str, warp: int, cells: Cells) -> None:
        """A warp stores to cells.

        Raises:
            EmulationError: a fence is missing.
        """
        self.fences.check(where, warp, (LOADED, STORED, COMPUTED), cells)
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
