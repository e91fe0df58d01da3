"""Work beside the threads of a batch: copies, and products of warpgroups and of tensor memory."""

from kernrec.ptx.state.access_counters import AccessCounters
from kernrec.ptx.state.async_copies import AsyncCopies
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.bulk_copies import AsyncEngine, BulkCopies
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.race_detector import RaceDetector
from kernrec.ptx.state.register_pool import RegisterPool
from kernrec.ptx.state.tensor_maps import MapFences
from kernrec.ptx.state.tensor_memory import TensorMemory
from kernrec.ptx.state.tensor_operations import TensorFences, TensorOperations
from kernrec.ptx.state.warpgroup_operations import WarpgroupOperations


class PendingWork:
    """Work that instructions began and others wait for, in one emulation."""

    def __init__(self, lanes: Lanes, counters: AccessCounters, races: RaceDetector | None) -> None:
        self.copies = AsyncCopies(lanes.shape.lanes)  # `cp.async`
        self.bulk = BulkCopies(counters.count_elements, races if isinstance(races, PhaseRaceDetector) else None)
        self.warpgroups = WarpgroupOperations(lanes, races)
        self.tensor = TensorOperations(TensorMemory(lanes.shape.blocks), TensorFences(lanes.shape), races)
        self.engine = AsyncEngine()
        self.map_fences = MapFences()
        self.registers = RegisterPool(lanes.shape)
        self._lanes = lanes

    def start_batch(self) -> None:
        """Forgets the last batch."""
        parts = self.copies, self.bulk, self.warpgroups, self.tensor, self.engine, self.map_fences, self.registers
        for part in parts:
            part.start_batch()

    def end_batch(self, races_checked: bool) -> None:
        """All threads of the batch exited: what still goes on is finished.

        Raises:
            EmulationError: a copy still reads or writes shared memory, which is no longer there; where races are
                checked.
        """
        copy = self.bulk.unfinished() if races_checked else None
        if copy is not None:
            block, thread = self._lanes.coordinates(copy.lane)
            raise EmulationError(
                f"{copy.access.location}: block {block} ended before the copy of thread {thread} was waited for"
            )
        while self.engine.finish_one():
            pass
        self.bulk.finish_all()
        self.tensor.memory.check_released()
        self.registers.check_granted()
