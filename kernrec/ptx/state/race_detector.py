"""Finds data races in shared memory: two threads access one byte, at least one of them writes, with no barrier between.

For every byte, the detector keeps which warp wrote it last and which read it last (or that several did) in the present
barrier interval of its block. Lanes of one warp that access a byte in different instructions are not reported: warps
order themselves by `bar.warp.sync` and shuffles, which the detector does not follow.
"""

from typing import NamedTuple, NoReturn

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.access_cost import SEVERAL_WARPS, AccessPattern
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.tensor_reads import TensorReads
from kernrec.ptx.state.types import Array

_NONE = -1  # no warp


class SharedAccess(NamedTuple):
    """One access of a batch to shared memory."""

    access: Access
    """What the instruction states."""

    first: Array
    """Byte of the batch's shared memory that each lane accesses first, less `shift`; (lanes)."""

    shift: int
    """Bytes to add."""

    lanes: Array | None
    """Numbers of the lanes; None: all of the batch."""

    pattern: AccessPattern
    """Relative addresses."""

    write: bool
    """Whether the access writes."""

    agree: bool = False
    """Whether lanes that write to one place write the same."""


class TileRead(NamedTuple):
    """A tile that tensor cores read at present."""

    pieces: Array
    """Pieces of the batch's shared memory (`kernrec.ptx.state.tensor_reads`)."""

    warps: Array
    """The warps that asked for it."""


class RaceDetector:
    """Readers and writers of every byte of shared memory of a batch."""

    def __init__(self, lanes: Lanes, size: int) -> None:
        """`size`: bytes of shared memory of a block."""
        self.lanes = lanes
        self.stride = -(-size // 16) * 16
        self.writer = np.full(self.stride * lanes.shape.blocks, _NONE, np.int16)
        self.reader = np.full(self.stride * lanes.shape.blocks, _NONE, np.int16)
        self.warps_per_block = lanes.shape.lanes_per_block // WARP
        self.tensor_reads = TensorReads(self.stride // 16, lanes.shape.blocks)

    def pass_barrier(self, blocks: Array) -> None:
        """A new barrier interval begins for these blocks; `blocks`: bool, by position in the batch."""
        for last in (self.writer, self.reader):
            last.reshape(len(blocks), self.stride)[blocks] = _NONE
        self.tensor_reads.pass_barrier(blocks)

    def release(self, lane: int, place: int) -> None:
        """A lane arrives at the barrier at a place of shared memory."""

    def acquire(self, lanes: Array, places: Array) -> None:
        """Lanes saw a phase of the barriers at these places complete."""
        blocks = np.zeros(self.lanes.shape.blocks, np.bool_)
        blocks[self.lanes.shape.block_of[lanes]] = True
        self.pass_barrier(blocks)

    def reach(self, barrier: tuple[int, int], warp: int) -> None:
        """A warp arrives at a barrier of some lanes (block, number) and does not wait."""

    def pass_some(self, barrier: tuple[int, int], warps: Array) -> None:
        """These warps waited at a barrier of some lanes of a block (block, number) and go on."""
        blocks = np.zeros(self.lanes.shape.blocks, np.bool_)
        blocks[barrier[0]] = True
        self.pass_barrier(blocks)

    def pass_cluster_barrier(self, blocks: Array) -> None:
        """Blocks passed the barrier of their cluster; bool, by position in the batch."""
        self.pass_barrier(blocks)

    def complete(self, place: int) -> None:
        """A phase of the barrier at a place of shared memory completes."""

    def exit(self, where: str, lanes: Array, live: Array) -> None:
        """These lanes exit, and those of `live` are left; bool, (lanes)."""

    def start_batch(self) -> None:
        """Forgets the accesses of the last batch."""
        self.pass_barrier(np.ones(self.lanes.shape.blocks, np.bool_))
        self.tensor_reads.start_batch()

    def record(self, shared: SharedAccess) -> None:
        """Records an access.

        Raises:
            EmulationError: the access is part of a race; the message names both sides.
        """
        # Accesses are aligned to their size, so two lanes of one access share all bytes or none.
        if shared.write:
            numbers = self.lanes.shape.numbers if shared.lanes is None else shared.lanes
            is_copy = shared.access.ins.opcode == "cp"
            self.tensor_reads.write(shared.access.location, shared.first + shared.shift, numbers, is_copy)
        lanes, warps = shared.pattern.distinct_in_blocks(self.warps_per_block)
        rows, wrote, read = self._last(shared, shared.first[lanes])
        warps = warps[:, None]
        clash = _others(wrote, warps)
        if shared.write:
            clash |= _others(read, warps)
            if not shared.agree:
                clash |= warps == SEVERAL_WARPS
        if clash.any():
            self._fail(shared)
        if shared.write:
            self.writer.reshape(-1, shared.access.size)[rows] = warps
        else:
            self.reader.reshape(-1, shared.access.size)[rows] = np.where(_others(read, warps), SEVERAL_WARPS, warps)

    def begin_tile(self, where: str, index: Array, warps: Array) -> TileRead:
        """Tensor cores begin to read a tile; what `end_tile` takes.

        Args:
            where: the instruction, for messages.
            index: bytes of the batch's shared memory.
            warps: those that ask for it.

        Raises:
            EmulationError: a warp wrote some of it with no barrier since.
        """
        wrote = self.writer[index]
        if (wrote != _NONE).any():
            warp = int(wrote.max())
            block = int(self.lanes.block_numbers[warp // self.warps_per_block])
            raise EmulationError(
                f"{where}: race: reads shared memory that warp {warp % self.warps_per_block} of block number {block} "
                "wrote with no barrier between"
            )
        self.reader[index] = SEVERAL_WARPS
        pieces = self.tensor_reads.pieces(index)
        self.tensor_reads.begin(where, pieces)
        return TileRead(pieces, warps)

    def end_tile(self, tile: TileRead, known: Array | None = None) -> None:
        """Tensor cores have read a tile; `known`: the snapshot of the arrival that tells of it, where one does."""
        self.tensor_reads.end(tile.pieces)

    def _last(self, shared: SharedAccess, index: Array) -> tuple[Array, Array, Array]:
        """The rows of an access's elements in shared memory taken `size` bytes at a time, and the last writer and
        reader of their bytes; (N) and (N, size)."""
        size = shared.access.size
        rows = (index + shared.shift) >> (size.bit_length() - 1)
        return rows, self.writer.reshape(-1, size).take(rows, 0), self.reader.reshape(-1, size).take(rows, 0)

    def _fail(self, shared: SharedAccess) -> NoReturn:
        """Raises for the first byte of the first lane that races."""
        numbers = self.lanes.shape.numbers if shared.lanes is None else shared.lanes
        warps = (numbers // WARP).astype(np.int16)[:, None]
        rows, wrote, read = self._last(shared, shared.first)
        clash = _others(wrote, warps)
        if shared.write:
            clash |= _others(read, warps)
        if not clash.any():  # two warps of this access write the same byte
            writers = self.writer.reshape(-1, shared.access.size)
            writers[rows] = warps
            wrote = writers[rows]
            clash = wrote != warps
        lane, byte = divmod(int(np.flatnonzero(clash)[0]), clash.shape[1])
        warp = int(warps[lane, 0])
        last_writer = int(wrote[lane, byte])
        other_wrote = last_writer not in (_NONE, warp)
        other = last_writer if other_wrote else int(read[lane, byte])
        others = "several warps" if other == SEVERAL_WARPS else f"warp {other % self.warps_per_block}"
        address = (int(shared.first[lane]) + shared.shift + byte) % self.stride
        block = int(self.lanes.block_numbers[warp // self.warps_per_block])
        raise EmulationError(
            f"{shared.access.location}: race: warp {warp % self.warps_per_block} of block number {block} "
            f"{'writes' if shared.write else 'reads'} byte {address} of shared memory, which {others} "
            f"{'wrote' if other_wrote else 'read'} with no barrier between"
        )


def _others(last: Array, warps: Array) -> Array:
    """Whether a warp other than the one of its row accessed a byte last; bool (N, size)."""
    others: Array = last != _NONE
    others &= last != warps
    return others
