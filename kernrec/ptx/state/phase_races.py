"""Races in kernels whose warps and copies are ordered by barriers in shared memory.

For every byte: who wrote it last and when, and when each warp of the cluster read it last, in the times of
`vector_clocks`. An access is part of a race where it does not know of one that conflicts with it. The target
of a copy in bulk is known to nobody while it is under way, and to those who waited for its barrier afterwards; its
source must not be written before its thread waited for its group. Tensor cores have read a tile when their operation
was waited for, not when it was issued: who was told before that must not write there.

With the last thread of a block its shared memory is gone: some warp of it must know by then of everything that other
blocks of its cluster did there, and nobody may do anything there afterwards (PTX ISA, section 5.1.7.1).
"""

from typing import NoReturn

import numpy as np

from kernrec.ptx.state.access_cost import SEVERAL_WARPS
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.handovers import Handovers
from kernrec.ptx.state.race_detector import PIECE, RaceDetector, SharedAccess, TileRead
from kernrec.ptx.state.types import Array
from kernrec.ptx.state.vector_clocks import VectorClocks

_WORD = 8  # bytes of a barrier
_UNDER_WAY = np.iinfo(np.int32).max  # later than what anybody knows

Span = tuple[int, int]
"""First byte of the batch's shared memory, and the one after the last."""


class PhaseRaceDetector(RaceDetector):
    """Readers and writers of every byte of shared memory of a batch, and who knows of whom."""

    def __init__(self, lanes: Lanes, size: int) -> None:
        super().__init__(lanes, size)
        self.handovers: Handovers | None = None
        """Races in global memory, where blocks hand over what they stored there."""
        shape = lanes.shape
        self.clocks = VectorClocks(shape.lanes // WARP)
        self._reached: dict[tuple[int, int], list[Array]] = {}  # by barrier: what those know that did not wait
        self._warps_per_cluster = self.warps_per_block * shape.cluster_blocks
        self.start_batch()

    def start_batch(self) -> None:
        """Forgets the last batch."""
        size = len(self.writer)
        self.writer[:] = 0  # column of `clocks.seen`
        self._written = np.zeros(size, np.int32)
        # new: most of them is never looked at; tensor cores read whole pieces, a time of which stands for its bytes
        self._read = np.zeros((self._warps_per_cluster, size), np.int32)
        self._tile_read = np.zeros((self._warps_per_cluster, size // PIECE), np.int32)
        self._ended = np.zeros(self.lanes.shape.blocks, np.bool_)
        self._reached.clear()
        self.clocks.start_batch()
        self.tensor_reads.start_batch()
        if self.handovers is not None:
            self.handovers.start_batch()

    def pass_barrier(self, blocks: Array) -> None:
        """The warps of each of these blocks pass a barrier; bool, by position in the batch."""
        self._join(blocks, 1)

    def reach(self, barrier: tuple[int, int], warp: int) -> None:
        """A warp arrives at a barrier of some lanes (block, number) and does not wait."""
        self._reached.setdefault(barrier, []).append(self.clocks.snapshot(warp))

    def pass_some(self, barrier: tuple[int, int], warps: Array) -> None:
        """These warps waited at a barrier of some lanes of a block, and know now what all know that arrived there."""
        self.clocks.join(warps, self._reached.pop(barrier, []))
        blocks = np.zeros(self.lanes.shape.blocks, np.bool_)
        blocks[barrier[0]] = True
        self.tensor_reads.pass_barrier(blocks)

    def pass_cluster_barrier(self, blocks: Array) -> None:
        """The warps of each cluster of these blocks pass a barrier; bool, by position in the batch."""
        self._join(blocks, self.lanes.shape.cluster_blocks)

    def _join(self, blocks: Array, together: int) -> None:
        warps = self.warps_per_block * together
        for group in np.unique(np.flatnonzero(blocks) // together):
            self.clocks.join(np.arange(group * warps, (group + 1) * warps))
        self.tensor_reads.pass_barrier(blocks)

    def release(self, lane: int, place: int) -> None:
        """A lane arrives at the barrier at a place."""
        warp = lane // WARP
        if place // self.stride != warp // self.warps_per_block:  # of another block, which must not end before
            self._read[warp % self._warps_per_cluster, place : place + _WORD] = self.clocks.seen[warp, warp]
        self.clocks.release(warp, place)

    def snapshot(self, lane: int) -> Array:
        """The knowledge of a lane, for an arrival that comes later."""
        return self.clocks.snapshot(lane // WARP)

    def arrive(self, snapshot: Array, place: int) -> None:
        """The arrival at the barrier at a place for which a snapshot was made."""
        self.clocks.arrive(snapshot, place)

    def acquire(self, lanes: Array, places: Array) -> None:
        """Lanes saw a phase of the barriers at these places complete."""
        for warp, place in {*zip((lanes // WARP).tolist(), places.tolist(), strict=True)}:
            self.clocks.acquire(warp, place)
        blocks = np.zeros(self.lanes.shape.blocks, np.bool_)
        blocks[self.lanes.shape.block_of[lanes]] = True
        self.tensor_reads.pass_barrier(blocks)

    def complete(self, place: int) -> None:
        """A phase of the barrier at a place completes."""
        self.clocks.complete(place)

    def initialize(self, site: str, lanes: Array, places: Array) -> None:
        """Lanes initialize or end the barriers at these places.

        Raises:
            EmulationError: other warps may be using what is there.
        """
        warps, covered = (lanes // WARP)[:, None], places[:, None] + np.arange(_WORD)
        self._check(site, warps, covered, True)
        self.writer[covered] = warps
        self._written[covered] = self.clocks.seen[warps, warps]

    def use(self, site: str, lanes: Array, places: Array) -> None:
        """Lanes use the barriers at these places.

        Raises:
            EmulationError: another warp initialized one, and they do not know of that.
        """
        self._check(site, (lanes // WARP)[:, None], places[:, None] + np.arange(_WORD), False)

    def record(self, shared: SharedAccess) -> None:
        """Records an access.

        Raises:
            EmulationError: the access is part of a race; the message names both sides.
        """
        numbers = self.lanes.shape.numbers if shared.lanes is None else shared.lanes
        first, location = shared.first + shared.shift, shared.access.location
        if shared.write:
            self.tensor_reads.write(location, first, numbers, shared.access.ins.opcode == "cp")
            _, owners = shared.pattern.distinct_in_blocks(self.warps_per_block)
            if not shared.agree and (owners == SEVERAL_WARPS).any():
                self._fail_several(shared, first, numbers)
        places = first[:, None] + np.arange(shared.access.size)
        warps = (numbers // WARP)[:, None]
        self._check(location, warps, places, shared.write)
        if shared.write:
            self.writer[places] = warps
            self._written[places] = self.clocks.seen[warps, warps]
        else:
            self._read[warps % self._warps_per_cluster, places] = self.clocks.seen[warps, warps]

    def begin_tile(self, site: str, index: Array, warps: Array) -> TileRead:
        """Tensor cores begin to read a tile, bytes of the batch's shared memory, for these warps."""
        pieces = self.tensor_reads.pieces(index)
        writer, written = (every.reshape(-1, PIECE).take(pieces, axis=0) for every in (self.writer, self._written))
        if (written > self.clocks.seen[warps].min(axis=0).take(writer)).any():
            self._check(site, warps[:, None], (pieces[:, None] * PIECE + np.arange(PIECE)).reshape(1, -1), False)
        self.tensor_reads.begin(site, pieces)
        return TileRead(pieces, warps)

    def end_tile(self, tile: TileRead, snapshot: Array | None = None) -> None:
        """Tensor cores have read a tile: its warps know now; or those who see the arrival of this snapshot do."""
        self.tensor_reads.end(tile.pieces)
        for warp in tile.warps.tolist():
            read = self._tile_read[warp % self._warps_per_cluster]
            read[tile.pieces] = (
                self.clocks.seen[warp, warp] if snapshot is None else np.maximum(read[tile.pieces], snapshot[warp])
            )

    def exit(self, site: str, lanes: Array, live: Array) -> None:
        """These lanes exit, and those of `live` are left; bool, (lanes).

        Raises:
            EmulationError: a block ends whose shared memory other blocks of the cluster, or copies, may still use.
        """
        shape = self.lanes.shape
        if shape.cluster_blocks > 1:
            gone, left = (some.reshape(-1, shape.lanes_per_block).any(axis=1) for some in (lanes, live))
            for block in np.flatnonzero(gone & ~left).tolist():
                self._end(site, block)

    def _end(self, site: str, block: int) -> None:
        """The last thread of a block exits; by position in the batch."""
        wpb, place = self.warps_per_block, block * self.stride
        span, pieces = slice(place, place + self.stride), slice(place // PIECE, (place + self.stride) // PIECE)
        first = block * wpb // self._warps_per_cluster * self._warps_per_cluster
        seen = self.clocks.seen[block * wpb : (block + 1) * wpb].max(axis=0)
        late = self._written[span] > seen[self.writer[span]]
        if late.any():
            self._fail_ended(site, place + int(late.argmax()), None)
        for warp in range(first, first + self._warps_per_cluster):
            for read, step in (self._read[warp - first, span], 1), (self._tile_read[warp - first, pieces], PIECE):
                late = read > seen[warp]
                if late.any():
                    self._fail_ended(site, place + int(late.argmax()) * step, warp)
        self._written[span] = _UNDER_WAY
        self._ended[block] = True

    def _fail_ended(self, site: str, place: int, reader: int | None) -> NoReturn:
        """Raises for a block that ends while others use a place of its shared memory; `reader`: a warp, or nobody."""
        user, shape = int(self.writer[place]) if reader is None else reader, self.lanes.shape
        who = "a copy in bulk"
        if user < self.clocks.warps:
            block = int(self.lanes.block_numbers[user // self.warps_per_block])
            who = f"warp {user % self.warps_per_block} of block number {block}"
        ended = int(self.lanes.block_numbers[place // self.stride])
        raise EmulationError(
            f"{site}: race: block number {ended} ends while {who} may still use byte {place % self.stride} of its"
            f" shared memory; a barrier of the cluster's {shape.cluster_blocks} blocks must come first"
        )

    def begin_write(self, site: str, lane: int, span: Span, barrier: int) -> None:
        """A copy that a lane started and a barrier counts begins to write.

        Raises:
            EmulationError: some of it is still being read, or was written or read by who is not known to the lane.
        """
        self.tensor_reads.write(site, _pieces(span) * PIECE, np.array([lane]), True)
        self._check_span(site, lane // WARP, span, True)
        self.writer[slice(*span)] = self.clocks.column(barrier)
        self._written[slice(*span)] = _UNDER_WAY

    def end_write(self, span: Span, barrier: int) -> None:
        """The copy has written."""
        self._written[slice(*span)] = self.clocks.now(barrier)
        self.tensor_reads.fill(_pieces(span))

    def begin_read(self, site: str, lane: int, span: Span) -> Array:
        """A copy that a lane started begins to read; what `end_read` takes.

        Raises:
            EmulationError: some of it was written by who is not known to the lane, or is not visible to copies.
        """
        self._check_span(site, lane // WARP, span, False)
        return self.tensor_reads.begin(site, _pieces(span))

    def end_read(self, lane: int, span: Span, pieces: Array) -> None:
        """The copy has read, and its thread knows."""
        self.tensor_reads.end(pieces)
        warp = lane // WARP
        self._read[warp % self._warps_per_cluster, slice(*span)] = self.clocks.seen[warp, warp]

    def _check_span(self, site: str, warp: int, span: Span, write: bool) -> None:
        """Refuses an access of a warp to a span that does not know of others' before."""
        seen, places = self.clocks.seen[warp], slice(*span)
        first = warp - warp % self._warps_per_cluster
        readers = seen[first : first + self._warps_per_cluster, None]
        if (self._written[places] > seen[self.writer[places]]).any() or (
            write and ((self._read[:, places] > readers).any() or (self._tile_read[:, _pieces(span)] > readers).any())
        ):
            self._check(site, np.array([[warp]]), np.arange(*span)[None, :], write)

    def _check(self, site: str, warps: Array, places: Array, write: bool) -> None:
        """Refuses accesses of `warps` (N, 1) to `places` (N, bytes) that do not know of others' before."""
        seen, writer = self.clocks.seen, self.writer[places]
        clash = self._written[places] > seen[warps, writer]
        if clash.any():
            row, column = (int(i) for i in np.argwhere(clash)[0])
            self._fail_at(site, int(warps[row, 0]), int(places[row, column]), int(writer[row, column]), write, True)
        if not write:
            return
        cluster = warps - warps % self._warps_per_cluster
        for reader in range(self._warps_per_cluster):
            read = np.maximum(self._read[reader, places], self._tile_read[reader, places // PIECE])
            unknown = read > seen[warps, cluster + reader]
            if unknown.any():
                row, column = (int(i) for i in np.argwhere(unknown)[0])
                other = int(cluster[row, 0]) + reader
                self._fail_at(site, int(warps[row, 0]), int(places[row, column]), other, write, False)

    def _fail_several(self, shared: SharedAccess, first: Array, numbers: Array) -> NoReturn:
        warps = numbers // WARP
        order = np.argsort(first, kind="stable")
        both = (np.diff(first[order]) == 0) & (np.diff(warps[order]) != 0)
        i, j = order[np.flatnonzero(both)[0] :][:2]
        self._fail_at(shared.access.location, int(warps[i]), int(first[i]), int(warps[j]), True, True)

    def _fail_at(self, site: str, warp: int, place: int, other: int, write: bool, other_wrote: bool) -> NoReturn:
        """Raises for an access of a warp to a place, which `other` (a column) accessed."""
        wpb, shape = self.warps_per_block, self.lanes.shape
        block = int(self.lanes.block_numbers[warp // wpb])
        of_block = f" of the cluster's block {place // self.stride % shape.cluster_blocks}" * (shape.cluster_blocks > 1)
        head = (
            f"{site}: race: warp {warp % wpb} of block number {block} {'writes' if write else 'reads'} byte"
            f" {place % self.stride} of shared memory{of_block}, which"
        )
        if self._ended[place // self.stride]:
            raise EmulationError(f"{head} is gone: that block has ended")
        if other >= self.clocks.warps:
            barrier = self.clocks.place_of(other) % self.stride
            raise EmulationError(f"{head} a copy in bulk writes; its barrier, at byte {barrier}, was not waited for")
        raise EmulationError(f"{head} warp {other % wpb} {'wrote' if other_wrote else 'read'} with no barrier between")


def _pieces(span: Span) -> Array:
    """The pieces that a span has bytes of (`kernrec.ptx.state.race_detector`)."""
    return np.arange(span[0] // PIECE, -(-span[1] // PIECE))
