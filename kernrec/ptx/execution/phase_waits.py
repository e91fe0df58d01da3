"""Lanes that wait for phases of barriers in shared memory, and what happens when all lanes wait."""

import numpy as np

from kernrec.ptx.instructions.mbarrier import PhaseTest
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.types import Array

_MOST_EXPIRIES = 64  # time limits that all waiting lanes run into one after the other, before nobody can go on


class PhaseWaits:
    """Who waits for a phase; lanes go on when it completes, or when their test runs into its time limit."""

    def __init__(self, memory: Memory) -> None:
        lanes = memory.lanes.shape.lanes
        self.paused = np.zeros(lanes, np.bool_)
        """Lanes whose phase did not complete when they were last looked at."""
        self._memory = memory
        self._expired = np.zeros(lanes, np.bool_)  # lanes whose next test may fail
        self._tried = np.full(lanes, -1, np.int64)  # where races are checked: the barrier whose test failed at once
        self._tests: dict[int, PhaseTest] = {}  # by lane that waits: its test
        self._awaited = np.zeros(lanes, np.int64)  # place of the barrier that each paused lane waits for
        self._completed = 0  # phases that were complete when lanes were last woken
        self._expiries = 0  # time limits since then

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self.paused[:] = False
        self._expired[:] = False
        self._tried[:] = -1
        self._tests.clear()
        self._expiries = 0

    def ready(self, test: PhaseTest, mask: Array) -> Array:
        """The lanes of a mask that may run a test; the others pause."""
        self.paused &= ~mask
        numbers, places = test.waiting(mask)
        if self._memory.races is not None:
            self._tried[mask & ~self._one_of(numbers)] = -1
            first = self._tried[numbers] != places
            self._tried[numbers] = places
            numbers, places = numbers[~first], places[~first]
        waits = ~self._expired[numbers]
        held = numbers[waits]
        self._expired &= ~mask
        if not len(held):
            return mask
        self._awaited[held] = places[waits]
        self._tests.update(dict.fromkeys(held.tolist(), test))
        self.paused[held] = True
        ready: Array = mask & ~self.paused
        return ready

    def _one_of(self, numbers: Array) -> Array:
        flags = np.zeros(len(self.paused), np.bool_)
        flags[numbers] = True
        return flags

    def wake(self) -> None:
        """Lets lanes look again, where a phase completed since they were woken last."""
        completed = self._memory.mbarriers.completed
        if completed != self._completed:
            self._completed, self._expiries = completed, 0
            self.paused[:] = False
            self._tests.clear()

    def advance(self) -> bool:
        """Finishes what goes on beside the threads until a phase completes; whether one did."""
        mbarriers, engine = self._memory.mbarriers, self._memory.pending.engine
        awaited = set(self._awaited[self.paused].tolist())
        while mbarriers.completed == self._completed and engine.finish_one(awaited):
            pass
        return bool(mbarriers.completed != self._completed)

    def break_stall(self) -> None:
        """No lane can run: finishes what goes on beside the threads until a phase completes; where nothing does, the
        waiting lanes run into their time limits.

        Raises:
            EmulationError: naming a barrier whose phase never completes.
        """
        if self.advance():
            return
        self._expiries += 1
        if self._expiries > _MOST_EXPIRIES:
            self._fail()
        self._expired |= self.paused
        self.paused[:] = False

    def _fail(self) -> None:
        phases = {int(place): self._memory.mbarriers.phase(int(place)) for place in self._awaited[self.paused]}
        lane = min(np.flatnonzero(self.paused).tolist(), key=lambda lane: not phases[int(self._awaited[lane])].bytes)
        test, place = self._tests[lane], int(self._awaited[lane])
        phase = phases[place]  # of the first lane for which bytes are missing, which says more than arrivals
        block, thread = self._memory.lanes.coordinates(lane)
        lacks = [f"{phase.pending} of {phase.expected} arrivals"] if phase.pending else []
        if phase.bytes:
            lacks.append(f"{phase.bytes} bytes of copies" if phase.bytes > 0 else f"{-phase.bytes} announced bytes")
        raise EmulationError(
            f"{test.barriers.access.location}: deadlock: block {block} thread {thread} waits for the barrier at"
            f" {self._memory.cluster.name(place)}, whose phase lacks {' and '.join(lacks) or 'nothing'}, and all"
            " other threads wait, too"
        )
