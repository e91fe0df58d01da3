"""Loops in which threads wait for what other threads store, such as `while (*flag == 0);`.

A loop of one basic block that computes all from what it loads, and stores nothing, goes on only by what others do.
Lanes in it run when no other lane can: the others get on, and a wait for what they will store takes one trip, however
blocks are scheduled (two where races are checked, see `kernrec.ptx.state.handovers`). Where all lanes have tried so
often since anybody got on, nobody ever will.
"""

import numpy as np

from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import BasicBlock, Function
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.types import Array

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
