"""Finds data races in shared memory: two threads access one byte, at least one of them writes, with no barrier between.

For every byte, the detector keeps which warp wrote it last and which read it last (or that several did) in the present
barrier interval of its block. Lanes of one warp that access a byte in different instructions are not reported: warps
order themselves by `bar.warp.sync` and shuffles, which the detector does not follow.
"""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import Array

_NONE = -1  # no warp
_SEVERAL = -2  # more than one warp


@dataclass(frozen=True, slots=True)
class _SharedAccess:
    """One access of a batch to shared memory, and who accessed its bytes before."""

    access: Access
    """The instruction's access."""

    first: Array
    """First byte of each lane's access in the batch's shared memory; (lanes)."""

    warps: Array
    """Warp of each lane; (lanes, 1)."""

    writer: Array
    """The last writer of each byte; (lanes, bytes of the access)."""

    reader: Array
    """The last reader of each byte; (lanes, bytes of the access)."""

    write: bool
    """Whether the access writes."""


class RaceDetector:
    """Readers and writers of every byte of shared memory of a batch."""

    def __init__(self, lanes: Lanes, size: int) -> None:
        """`size`: bytes of shared memory of a block."""
        self.lanes = lanes
        self.stride = -(-size // 16) * 16
        self.writer = np.full(self.stride * lanes.shape.blocks, _NONE, np.int16)
        self.reader = np.full(self.stride * lanes.shape.blocks, _NONE, np.int16)
        self.warp = (lanes.shape.numbers // WARP).astype(np.int16)

    def pass_barrier(self, blocks: Array) -> None:
        """A new barrier interval begins for these blocks; `blocks`: bool, by position in the batch."""
        for last in (self.writer, self.reader):
            last.reshape(len(blocks), self.stride)[blocks] = _NONE

    def start_batch(self) -> None:
        """Forgets the accesses of the last batch."""
        self.pass_barrier(np.ones(self.lanes.shape.blocks, np.bool_))

    def record(self, access: Access, first: Array, lanes: Array | None, write: bool) -> None:
        """Records an access of `lanes` (None: all) from byte `first` of the batch's shared memory on.

        Raises:
            EmulationError: the access is part of a race; the message names both sides.
        """
        size = access.size
        warps = (self.warp if lanes is None else self.warp[lanes])[:, None]
        # Accesses are aligned to their size: each is one row of the bytes taken `size` at a time.
        rows = first // size
        writers, readers = self.writer.reshape(-1, size), self.reader.reshape(-1, size)
        wrote, read = writers[rows], readers[rows]
        shared = _SharedAccess(access, first, warps, wrote, read, write)
        clash = (wrote != _NONE) & (wrote != warps)
        if write:
            clash |= (read != _NONE) & (read != warps)
        if clash.any():
            self._fail(shared, clash)
        if write:
            writers[rows] = warps
            wrote = writers[rows]  # another warp's number where two warps of one instruction wrote the same byte
            if (wrote != warps).any():
                self._fail(_SharedAccess(access, first, warps, wrote, read, write), wrote != warps)
        else:
            readers[rows] = np.where((read == _NONE) | (read == warps), warps, _SEVERAL)
            others = readers[rows] != warps
            if others.any():
                self.reader[(first[:, None] + np.arange(size))[others]] = _SEVERAL

    def _fail(self, shared: _SharedAccess, clash: Array) -> NoReturn:
        """Raises for the first byte of `clash` (lanes, bytes of the access)."""
        lane, byte = divmod(int(np.flatnonzero(clash)[0]), clash.shape[1])
        warp = int(shared.warps[lane, 0])
        per_block = self.lanes.shape.lanes_per_block // WARP
        last_writer = int(shared.writer[lane, byte])
        other_wrote = last_writer not in (_NONE, warp)
        other = last_writer if other_wrote else int(shared.reader[lane, byte])
        others = "several warps" if other == _SEVERAL else f"warp {other % per_block}"
        address = (int(shared.first[lane]) + byte) % self.stride
        block = int(self.lanes.block_numbers[warp // per_block])
        raise EmulationError(
            f"{shared.access.location}: race: warp {warp % per_block} of block number {block} "
            f"{'writes' if shared.write else 'reads'} byte {address} of shared memory, which {others} "
            f"{'wrote' if other_wrote else 'read'} with no barrier between"
        )
