"""Block-wide barriers: `bar.sync`, `bar.red`, `bar.arrive`, with any number and thread count.

A barrier opens when all threads of the block that have not exited wait at it, or, where the instruction names a thread
count, when that many arrived.
"""

import numpy as np

from kernrec.ptx.instructions.decoder import Decoder, unsupported
from kernrec.ptx.ir.program import Immediate, Instruction, Negated, Operand
from kernrec.ptx.state.registers import Array

WAITS = np.iinfo(np.int64).max - 1  # program counter of a lane that waits


class Barriers:
    """Which lanes of a batch wait at which barrier, and where they go on."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.opened = 0  # barriers that blocks passed
        total = decoder.lanes.count
        self.shape = (decoder.lanes.blocks, decoder.lanes.padded)
        self.waiting = np.full(total, -1, np.int64)
        self.resume = np.zeros(total, np.int64)
        self.arrived: dict[tuple[int, int], int] = {}  # (block, barrier) -> arrivals that do not wait
        self.expected: dict[tuple[int, int], int] = {}  # (block, barrier) -> named thread count
        self.reducing: tuple[str, Operand, Operand] | None = None

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self.waiting[:] = -1
        self.arrived.clear()
        self.expected.clear()

    def plain(self, ins: Instruction) -> bool:
        """Whether this is a `bar.sync` that all threads of a block meet at and nobody reached before."""
        return (
            ins.predicate is None
            and not self.arrived
            and len(ins.operands) == 1
            and isinstance(ins.operands[0], Immediate)
            and "arrive" not in ins.modifiers
            and "red" not in ins.modifiers
        )

    def arrive(self, ins: Instruction, on: Array, pcs: Array, after: int) -> None:
        """The lanes `on` reach a barrier instruction; `pcs` of those that wait becomes `WAITS`."""
        marks = [m for m in ins.modifiers if m not in ("cta", "aligned")]
        kind = marks[0] if marks else "sync"
        operands = list(ins.operands)
        if kind not in ("sync", "arrive", "red"):
            raise unsupported(self.decoder.function, ins)
        if kind == "red":
            self.reducing = marks[1], operands.pop(0), operands.pop()
        number = self._values(operands[0])
        block_of = self.decoder.lanes.block_of
        if kind == "arrive":
            for block, barrier in zip(block_of[on], number[on], strict=True):
                key = (int(block), int(barrier))
                self.arrived[key] = self.arrived.get(key, 0) + 1
        else:
            pcs[on] = WAITS
            self.resume[on] = after
            self.waiting[on] = number[on]
        if len(operands) > 1:
            threads = self._values(operands[1])
            for block, barrier, count in zip(block_of[on], number[on], threads[on], strict=True):
                self.expected[int(block), int(barrier)] = int(count)

    def _values(self, operand: Operand) -> Array:
        return self.decoder.row(operand, "u32").astype(np.int64)

    def release(self, live: Array, pcs: Array) -> Array | None:
        """Lets go the lanes of every complete barrier; returns the blocks that passed one, or None."""
        if not (self.waiting >= 0).any():
            return None
        waiting, alive = self.waiting.reshape(self.shape), live.reshape(self.shape)
        passed = np.zeros(self.shape[0], np.bool_)
        for block in np.flatnonzero((waiting >= 0).any(axis=1)):
            for number in np.unique(waiting[block][waiting[block] >= 0]):
                there = waiting[block] == number
                key = (int(block), int(number))
                wanted = self.expected.get(key, int(np.count_nonzero(alive[block])))
                if int(np.count_nonzero(there)) + self.arrived.get(key, 0) < wanted:
                    continue
                self.arrived.pop(key, None)
                self.expected.pop(key, None)
                mask = np.zeros(self.shape, np.bool_)
                mask[block] = there
                self._open(mask.reshape(-1), pcs)
                passed[block] = True
        return passed if passed.any() else None

    def _open(self, mask: Array, pcs: Array) -> None:
        if self.reducing is not None:
            operation, target, source = self.reducing
            negated = isinstance(source, Negated)
            values = self.decoder.row(source.register if isinstance(source, Negated) else source, "pred")[mask]
            values = ~values if negated else values
            if operation == "popc":
                self.decoder.row(target, "u32")[mask] = np.count_nonzero(values)
            else:
                self.decoder.row(target, "pred")[mask] = values.all() if operation == "and" else values.any()
        pcs[mask] = self.resume[mask]
        self.waiting[mask] = -1
        self.opened += 1
