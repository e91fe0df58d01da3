"""Lanes that wait in loops or for phases of barriers in shared memory, and what happens when all lanes wait.

A loop of one basic block that computes all from what it loads, and stores nothing, such as `while (*flag == 0);`, goes
on only by what others do. Lanes in it run when no other lane can: the others get on, and a wait for what they will
store takes one trip, however blocks are scheduled (two where races are checked, see `kernrec.ptx.state.handovers`).
Where all lanes have tried so often since anybody got on, nobody ever will.
"""

import numpy as np

from kernrec.ptx.instructions.mbarrier import PhaseTest
from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import BasicBlock, Function
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.types import Array

_MOST_EXPIRIES = 64  # time limits that all waiting lanes run into one after the other, before nobody can go on
_LOOKS_IN_VAIN = 2
_LOOKS = frozenset({"ld", "atom"})
_NEVER_PROGRESS = frozenset({"cas", "exch"})
"""Atomic operations that leave memory as it is where another thread has to change it first."""
_ACTS = frozenset({"st", "red", "cp", "bar", "barrier", "mbarrier", "wgmma", "tcgen05", "call"})


def spins(block: BasicBlock) -> bool:
    """Whether a basic block is a loop in which threads can only wait for others."""
    last = block.instructions[-1]
    if last.opcode != "bra" or last.predicate is None or not isinstance(last.operands[0], Symbol):
        return False
    if last.operands[0].name not in block.labels or not any(ins.opcode in _LOOKS for ins in block.instructions):
        return False
    written: set[str] = set()
    carried: set[str] = set()  # read before they are written
    for ins in block.instructions:
        if ins.opcode in _ACTS or (ins.opcode == "atom" and not _NEVER_PROGRESS & set(ins.modifiers)):
            return False
        carried |= ins.sources - written
        if ins.predicate is None:
            written |= ins.results
        else:
            carried |= ins.results
    return not carried & {name for ins in block.instructions for name in ins.results}


class SpinWaits:
    """Which lanes of a batch wait in such loops, and which of them tried in vain."""

    def __init__(self, function: Function, lanes: int) -> None:
        self.blocks = frozenset(block.index for block in function.blocks if spins(block))
        """The basic blocks that are such loops."""
        self._numbers = np.array(sorted(self.blocks), np.int64)
        self._tried = np.zeros(lanes, np.int64)  # how often since anybody got on

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._tried[:] = 0

    def waiting(self, positions: Array) -> Array:
        """The lanes that are before such a loop; bool."""
        return np.isin(positions, self._numbers)

    def untried(self, positions: Array) -> Array:
        """Those of them that may look once more, though nobody got on."""
        return self.waiting(positions) & (self._tried < _LOOKS_IN_VAIN)

    def ran(self, index: int, mask: Array, positions: Array) -> None:
        """The lanes of a mask ran a basic block, and are at these positions now."""
        again = mask & (positions == index)
        if index in self.blocks and again.any() and (again == mask).all():
            self._tried[mask] += 1
        else:
            self._tried[:] = 0

    def refuse_waiting(self, function: Function, lanes: Lanes, positions: Array) -> None:
        """Raises for a lane that waits, where all others do."""
        if not self.blocks or not (waiting := self.waiting(positions)).any():
            return
        lane = int(np.flatnonzero(waiting)[0])
        block, thread = lanes.coordinates(lane)
        ins = function.blocks[int(positions[lane])].instructions[0]
        raise EmulationError(
            f"{location(function, ins)}: deadlock: block {block} thread {thread} waits for what another thread stores,"
            " and all threads that run together with it wait, too"
        )


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
