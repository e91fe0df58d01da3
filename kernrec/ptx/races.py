"""Finds data races in shared memory: two threads, one byte, at least one write, no barrier between.

For every byte it keeps who wrote it last and who read it last (one thread, or that there were several) in the present
barrier interval of its block. Lanes of one warp that touch a byte in different instructions are not reported: warps
order themselves by `bar.warp.sync` and shuffles, which this does not follow.
"""

import numpy as np

from kernrec.ptx.program import Instruction
from kernrec.ptx.state import Array, EmulationError, Lanes, at

_NOBODY = -1
_SEVERAL = -2  # warps, not only one


class Races:
    """Readers and writers of every byte of shared memory of a batch, by warp of their block."""

    def __init__(self, lanes: Lanes, size: int) -> None:
        self.lanes = lanes
        self.stride = -(-size // 16) * 16
        self.writer = np.full(self.stride * lanes.blocks, _NOBODY, np.int32)
        self.reader = np.full(self.stride * lanes.blocks, _NOBODY, np.int32)
        self.warp = (lanes.lane // 32).astype(np.int32)

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
        owners = self.warp if lanes is None else self.warp[lanes]
        for k in range(size):
            where = first + k
            wrote, read = self.writer[where], self.reader[where]
            clash = (wrote != _NOBODY) & (wrote != owners)
            if write:
                clash |= (read != _NOBODY) & (read != owners)
            if clash.any():
                self._report(ins, int(np.flatnonzero(clash)[0]), where, owners, wrote, read, lanes, write)
            if write:
                self.writer[where] = owners
                bad = self.writer[where] != owners  # two warps of one instruction wrote the same byte
                if bad.any():
                    spot = int(np.flatnonzero(bad)[0])
                    self._report(ins, spot, where, owners, self.writer[where], read, lanes, write)
            else:
                self.reader[where] = np.where((read == _NOBODY) | (read == owners), owners, _SEVERAL)
                others = self.reader[where] != owners
                if others.any():
                    self.reader[where[others]] = _SEVERAL

    def _report(
        self,
        ins: Instruction,
        spot: int,
        where: Array,
        owners: Array,
        wrote: Array,
        read: Array,
        lanes: Array | None,
        write: bool,
    ) -> None:
        mine = int(owners[spot])
        per_block = self.lanes.padded // 32
        other_wrote = int(wrote[spot]) != _NOBODY and int(wrote[spot]) != mine
        other = int(wrote[spot]) if other_wrote else int(read[spot])
        whom = "several warps" if other == _SEVERAL else f"warp {other % per_block}"
        address = int(where[spot]) % self.stride
        block = int(self.lanes.ids[mine // per_block])
        raise EmulationError(
            f"{at(self.lanes.function, ins)}: race: warp {mine % per_block} of block number {block} "
            f"{'writes' if write else 'reads'} byte {address} of shared memory, which {whom} "
            f"{'wrote' if other_wrote else 'read'} with no barrier between"
        )
