"""Finds data races in shared memory: two threads, one byte, at least one write, no barrier between.

For every byte it keeps who wrote it last and who read it last (one thread, or that there were several) in the present
barrier interval of its block. Lanes of one warp that touch a byte in different instructions are not reported: warps
order themselves by `bar.warp.sync` and shuffles, which this does not follow.
"""

import numpy as np

from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.registers import Array, EmulationError, Lanes, at

_NOBODY = -1
_SEVERAL = -2  # warps, not only one


class Races:
    """Readers and writers of every byte of shared memory of a batch, by warp of their block."""

    def __init__(self, lanes: Lanes, size: int) -> None:
        self.lanes = lanes
        self.stride = -(-size // 16) * 16
        self.writer = np.full(self.stride * lanes.blocks, _NOBODY, np.int16)
        self.reader = np.full(self.stride * lanes.blocks, _NOBODY, np.int16)
        self.warp = (lanes.lane // 32).astype(np.int16)

    def barrier(self, blocks: Array) -> None:
        """A new interval begins for these blocks (a flag each)."""
        for who in (self.writer, self.reader):
            who.reshape(len(blocks), self.stride)[blocks] = _NOBODY

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self.barrier(np.ones(self.lanes.blocks, np.bool_))

    def access(self, ins: Instruction, first: Array, size: int, lanes: Array | None, write: bool) -> None:
        """Lanes touch `size` bytes from byte `first` of the batch's shared memory on.

        Raises:
            EmulationError: when that is a race; names both sides.
        """
        owners = (self.warp if lanes is None else self.warp[lanes])[:, None]
        # Accesses are aligned to their size: each is one row of the bytes taken `size` at a time.
        rows = first // size
        writers, readers = self.writer.reshape(-1, size), self.reader.reshape(-1, size)
        wrote, read = writers[rows], readers[rows]
        clash = (wrote != _NOBODY) & (wrote != owners)
        if write:
            clash |= (read != _NOBODY) & (read != owners)
        self._require_none(ins, clash, first, owners, wrote, read, write)
        if write:
            writers[rows] = owners
            wrote = writers[rows]  # where two warps of one instruction wrote the same byte, not one's own
            self._require_none(ins, wrote != owners, first, owners, wrote, read, write)
        else:
            readers[rows] = np.where((read == _NOBODY) | (read == owners), owners, _SEVERAL)
            others = readers[rows] != owners
            if others.any():
                self.reader[(first[:, None] + np.arange(size))[others]] = _SEVERAL

    def _require_none(
        self,
        ins: Instruction,
        clash: Array,
        first: Array,
        owners: Array,
        wrote: Array,
        read: Array,
        write: bool,
    ) -> None:
        """Raises for the first clash, if there is one; arrays are (lanes, bytes of the access)."""
        if not clash.any():
            return
        lane, byte = divmod(int(np.flatnonzero(clash)[0]), clash.shape[1])
        mine = int(owners[lane, 0])
        per_block = self.lanes.padded // 32
        other_wrote = int(wrote[lane, byte]) not in (_NOBODY, mine)
        other = int(wrote[lane, byte]) if other_wrote else int(read[lane, byte])
        whom = "several warps" if other == _SEVERAL else f"warp {other % per_block}"
        address = (int(first[lane]) + byte) % self.stride
        block = int(self.lanes.ids[mine // per_block])
        raise EmulationError(
            f"{at(self.lanes.function, ins)}: race: warp {mine % per_block} of block number {block} "
            f"{'writes' if write else 'reads'} byte {address} of shared memory, which {whom} "
            f"{'wrote' if other_wrote else 'read'} with no barrier between"
        )
