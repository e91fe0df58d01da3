"""Barriers of a block: `bar.sync`, `bar.red`, `bar.arrive`, with any number and thread count; the barrier of a cluster
of blocks (PTX ISA, section 9.7.13.4).

A block's barrier opens when all threads of the block that have not exited wait at it, or, where the instruction names
a thread count, when that many arrived.
"""

import numpy as np

from kernrec.ptx.instructions.decoder import OperandResolver, unsupported
from kernrec.ptx.instructions.registry import UnsupportedFormError
from kernrec.ptx.ir.operand import Immediate, Operand
from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.batch import WARP, BatchShape, Lanes
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.race_detector import RaceDetector
from kernrec.ptx.state.types import Array

WAITS = np.iinfo(np.int64).max - 1  # position of a lane that waits


class Barriers:
    """Which lanes of a batch wait at which barrier, and where they go on."""

    def __init__(self, operands: OperandResolver, races: RaceDetector | None) -> None:
        """`races`: is told who passes a barrier."""
        shape = operands.lanes.shape
        self._races = races
        self.passed = 0  # barriers that blocks passed
        self.waiting_at = np.full(shape.lanes, -1, np.int64)  # barrier that each lane waits at, or -1
        self.resume = np.zeros(shape.lanes, np.int64)  # basic block where each waiting lane goes on
        self._operands = operands
        self._by_block = (shape.blocks, shape.lanes_per_block)
        self._arrived: dict[tuple[int, int], int] = {}  # (block, barrier) -> arrivals that do not wait
        self._expected: dict[tuple[int, int], int] = {}  # (block, barrier) -> thread count that an instruction names
        # Of a `bar.red`: `popc`, `and` or `or`, the register for the result, the predicate of each thread
        self._reduction: tuple[str, Operand, Operand] | None = None

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self.waiting_at[:] = -1
        self._arrived.clear()
        self._expected.clear()

    def is_plain(self, ins: Instruction) -> bool:
        """Whether this is a `bar.sync` of all threads of a block that no thread arrived at before."""
        return (
            ins.predicate is None
            and not self._arrived
            and len(ins.operands) == 1
            and isinstance(ins.operands[0], Immediate)
            and "arrive" not in ins.modifiers
            and "red" not in ins.modifiers
        )

    def pass_plain(self, live: Array) -> Array:
        """All live lanes pass a plain barrier together; the blocks that have any, bool by position in the batch."""
        blocks: Array = np.any(live.reshape(self._by_block), axis=1)
        self.passed += int(np.count_nonzero(blocks))
        return blocks

    def arrive(self, ins: Instruction, mask: Array, positions: Array, after: int) -> None:
        """The lanes of `mask` reach a barrier instruction.

        Args:
            ins: the instruction.
            mask: bool, (lanes).
            positions: basic block of each lane; that of lanes that wait becomes `WAITS`.
            after: basic block where they go on.
        """
        marks = [m for m in ins.modifiers if m not in ("cta", "aligned")]
        kind = marks[0] if marks else "sync"
        operands = list(ins.operands)
        if kind not in ("sync", "arrive", "red"):
            raise unsupported(self._operands.function, ins)
        if kind == "red":
            if not 3 <= len(operands) <= 4:
                raise UnsupportedFormError(f"{len(operands)} operands, 3 or 4 expected")
            self._reduction = marks[1], operands.pop(0), operands.pop()
            self._operands.row(self._reduction[1], marks[2])
            self._operands.flag(self._reduction[2])
        number = self._values(operands[0])
        block_of = self._operands.lanes.shape.block_of
        if kind == "arrive":
            for block, barrier in zip(block_of[mask], number[mask], strict=True):
                key = (int(block), int(barrier))
                self._arrived[key] = self._arrived.get(key, 0) + 1
            if self._races is not None:
                for lane in np.unique(np.flatnonzero(mask) // WARP) * WARP:
                    self._races.reach((int(block_of[lane]), int(number[lane])), int(lane) // WARP)
        else:
            positions[mask] = WAITS
            self.resume[mask] = after
            self.waiting_at[mask] = number[mask]
        if len(operands) > 1:
            threads = self._values(operands[1])
            for block, barrier, count in zip(block_of[mask], number[mask], threads[mask], strict=True):
                self._expected[int(block), int(barrier)] = int(count)

    def _values(self, operand: Operand) -> Array:
        return self._operands.row(operand, "u32").astype(np.int64)

    def release(self, live: Array, positions: Array) -> None:
        """Lets the lanes at every complete barrier go on.

        Args:
            live: bool, (lanes).
            positions: basic block of each lane; set for those that go on.
        """
        if not (self.waiting_at >= 0).any():
            return
        waiting, alive = self.waiting_at.reshape(self._by_block), live.reshape(self._by_block)
        for block in np.flatnonzero((waiting >= 0).any(axis=1)):
            for number in np.unique(waiting[block][waiting[block] >= 0]):
                here = waiting[block] == number
                key = (int(block), int(number))
                everyone = int(np.count_nonzero(alive[block]))
                expected = self._expected.get(key, everyone)
                if int(np.count_nonzero(here)) + self._arrived.get(key, 0) < expected:
                    continue
                self._arrived.pop(key, None)
                self._expected.pop(key, None)
                mask = np.zeros(self._by_block, np.bool_)
                mask[block] = here
                self._open(mask.reshape(-1), positions)
                if self._races is not None:
                    self._tell(self._races, key, mask, expected >= everyone)

    def _tell(self, races: RaceDetector, key: tuple[int, int], mask: Array, is_whole: bool) -> None:
        """Lanes of a block pass a barrier; `is_whole`: all lanes of it take part."""
        if is_whole:
            races.pass_barrier(np.arange(len(mask)) == key[0])
        else:
            races.pass_some(key, np.unique(np.flatnonzero(mask) // WARP))

    def _open(self, mask: Array, positions: Array) -> None:
        if self._reduction is not None:
            operation, target, source = self._reduction
            row, negated = self._operands.flag(source)
            values = row[mask] ^ negated
            if operation == "popc":
                self._operands.row(target, "u32")[mask] = np.count_nonzero(values)
            else:
                self._operands.row(target, "pred")[mask] = values.all() if operation == "and" else values.any()
        positions[mask] = self.resume[mask]
        self.waiting_at[mask] = -1
        self.passed += 1


class ClusterBarrier:
    """Which lanes wait at the barriers of their clusters; exited threads count as arrived."""

    def __init__(self, shape: BatchShape) -> None:
        self._by_cluster = (shape.blocks // shape.cluster_blocks, shape.cluster_blocks * shape.lanes_per_block)
        self._blocks = shape.cluster_blocks
        self._arrivals = np.zeros(shape.lanes, np.int64)  # how often each lane arrived
        self._waits = np.zeros(shape.lanes, np.int64)  # how often each lane waited
        self.waiting = np.zeros(shape.lanes, np.bool_)
        self.resume = np.zeros(shape.lanes, np.int64)
        """Basic block where each lane that waits goes on."""

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._arrivals[:] = 0
        self._waits[:] = 0
        self.waiting[:] = False

    def reach(self, ins: Instruction, mask: Array, positions: Array, after: int) -> None:
        """The lanes of `mask` run `barrier.cluster.arrive` or `.wait`; those that wait go on at basic block `after`."""
        if "arrive" in ins.modifiers:
            if (self._arrivals[mask] != self._waits[mask]).any():
                raise UnsupportedFormError("a thread that arrives twice and does not wait between")
            self._arrivals[mask] += 1
        else:
            if (self._arrivals[mask] != self._waits[mask] + 1).any():
                raise UnsupportedFormError("a thread that waits and did not arrive")
            positions[mask] = WAITS
            self.resume[mask] = after
            self.waiting[mask] = True

    def release(self, live: Array, positions: Array) -> Array | None:
        """Lets the lanes of every cluster whose threads all arrived go on; the blocks that did, bool by position, or
        None where none did."""
        if not self.waiting.any():
            return None
        arrivals = np.where(live, self._arrivals, np.iinfo(np.int64).max).reshape(self._by_cluster)
        everyone = arrivals.min(axis=1).repeat(self._by_cluster[1])
        going = self.waiting & (everyone > self._waits)
        if not going.any():
            return None
        positions[going] = self.resume[going]
        self._waits[going] += 1
        self.waiting &= ~going
        blocks: Array = going.reshape(self._by_cluster).any(axis=1).repeat(self._blocks)
        return blocks

    def refuse_waiting(self, function: Function, lanes: Lanes) -> None:
        """Raises for a lane that waits, where all others do."""
        if self.waiting.any():
            lane = int(np.flatnonzero(self.waiting)[0])
            block, thread = lanes.coordinates(lane)
            ins = function.blocks[int(self.resume[lane]) - 1].instructions[-1]
            raise EmulationError(
                f"{location(function, ins)}: deadlock: block {block} thread {thread} waits at the barrier of its"
                " cluster, and others never arrive"
            )
