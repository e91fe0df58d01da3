"""Finds data races in shared memory: two threads access one byte, at least one of them writes, with no barrier between.

For every byte, the detector keeps which warp wrote it last and which read it last (or that several did) in the present
barrier interval of its block. Lanes of one warp that access a byte in different instructions are not reported: warps
order themselves by `bar.warp.sync` and shuffles, which the detector does not follow.

`wgmma.mma_async` and `tcgen05.mma` read their operands through the async proxy some time after they were issued (PTX
ISA, sections "Async proxy" and "Asynchronous operations"). So a tile must not be written until they completed, and what
threads stored must be made visible by `fence.proxy.async`: of the thread that stored it, or of another past a barrier.
Asynchronous copies (`cp.async`) count as visible: compilers put no fence behind them.
"""

from typing import NamedTuple, NoReturn

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.access_cost import SEVERAL_WARPS, AccessPattern
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import Array

PIECE = 16
"""Bytes of a piece."""
_SHARED_BY_BARRIER = -1  # stored by some thread, and a barrier of the block passed since


class TensorReads:
    """The pieces of a batch's shared memory that tensor cores read at present, and those stored with no fence since."""

    def __init__(self, pieces_per_block: int, blocks: int) -> None:
        self._readers = np.zeros(pieces_per_block * blocks, np.int16)
        self._stored = np.zeros((blocks, pieces_per_block), np.int16)  # 0: visible; n + 1: warp n of the batch
        self._in_flight = 0

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._readers[:] = 0
        self._stored[:] = 0
        self._in_flight = 0

    def pass_barrier(self, blocks: Array) -> None:
        """The threads of these blocks passed a barrier; bool, by position in the batch."""
        self._stored[blocks[:, None] & (self._stored > 0)] = _SHARED_BY_BARRIER

    def fence(self, lanes: Array, lanes_per_block: int) -> None:
        """These lanes make what they stored, and what others stored before a barrier, visible to tensor cores."""
        warps = np.unique(lanes // WARP)
        for block in np.unique(lanes // lanes_per_block):
            stored = self._stored[block]
            stored[(stored == _SHARED_BY_BARRIER) | np.isin(stored, warps + 1)] = 0

    def write(self, site: str, index: Array, lanes: Array, is_copy: bool) -> None:
        """Threads write shared memory.

        Args:
            site: the instruction, for messages.
            index: byte of the batch's shared memory of each lane.
            lanes: their numbers.
            is_copy: whether they copy asynchronously.

        Raises:
            EmulationError: tensor cores may still read it.
        """
        pieces = index // PIECE
        if self._in_flight and self._readers[pieces].any():
            raise EmulationError(
                f"{site}: writes shared memory that an operation in flight reads; it was not waited for"
            )
        if not is_copy:
            self._stored.reshape(-1)[pieces] = lanes // WARP + 1

    def pieces(self, index: Array) -> Array:
        """The pieces that bytes of the batch's shared memory are in, each once."""
        present = np.zeros(len(self._readers), np.bool_)
        present[index // PIECE] = True
        return np.flatnonzero(present)

    def begin(self, site: str, pieces: Array) -> Array:
        """Tensor cores, or a copy in bulk, begin to read pieces; what `end` takes.

        Raises:
            EmulationError: some of it was stored and may not be visible.
        """
        if self._stored.reshape(-1)[pieces].any():
            raise EmulationError(
                f"{site}: reads shared memory that threads stored to with no fence.proxy.async in between"
            )
        self._readers[pieces] += 1
        self._in_flight += 1
        return pieces

    def fill(self, pieces: Array) -> None:
        """A copy in bulk wrote these pieces: what threads stored there is gone."""
        self._stored.reshape(-1)[pieces] = 0

    def end(self, pieces: Array) -> None:
        """Tensor cores have read what `begin` said."""
        self._readers[pieces] -= 1
        self._in_flight -= 1


_NONE = -1  # no warp


class SharedAccess(NamedTuple):
    """One access of a batch to shared memory."""

    access: Access

    first: Array
    """Byte of the batch's shared memory that each lane accesses first, less `shift`; (lanes)."""

    shift: int
    """In bytes."""

    lanes: Array | None
    """Numbers of the lanes; None: all of the batch."""

    pattern: AccessPattern

    write: bool

    agree: bool = False
    """Whether lanes that write to one place write the same."""


class TileRead(NamedTuple):
    """A tile that tensor cores read at present."""

    pieces: Array
    """Pieces of the batch's shared memory (`kernrec.ptx.state.race_detector`)."""

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

    def exit(self, site: str, lanes: Array, live: Array) -> None:
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

    def begin_tile(self, site: str, index: Array, warps: Array) -> TileRead:
        """Tensor cores begin to read a tile; what `end_tile` takes.

        Args:
            site: the instruction, for messages.
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
                f"{site}: race: reads shared memory that warp {warp % self.warps_per_block} of block number {block} "
                "wrote with no barrier between"
            )
        self.reader[index] = SEVERAL_WARPS
        pieces = self.tensor_reads.pieces(index)
        self.tensor_reads.begin(site, pieces)
        return TileRead(pieces, warps)

    def end_tile(self, tile: TileRead, snapshot: Array | None = None) -> None:
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
