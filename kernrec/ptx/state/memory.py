"""All memories of an emulation: the meaning of an access, whether it is allowed, and its cost."""

from dataclasses import replace
from typing import NoReturn

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.access_cost import Counts
from kernrec.ptx.state.access_counters import AccessCounters
from kernrec.ptx.state.access_trace import AccessTrace
from kernrec.ptx.state.batch import BatchShape, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.handovers import Handovers
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT, WINDOW_SHIFT, WINDOWS, LaunchLayout
from kernrec.ptx.state.mbarriers import Mbarriers
from kernrec.ptx.state.pending_work import PendingWork
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.race_detector import RaceDetector, SharedAccess
from kernrec.ptx.state.region import POISON, Region, global_buffers, private_spaces
from kernrec.ptx.state.selection import Patterns, Selection, signed
from kernrec.ptx.state.touched_sectors import TouchedSectors
from kernrec.ptx.state.types import Array

RANK_SHIFT = 24
"""Shared memory of a block has fewer bytes than 2 to this power."""
RANK_BITS = 5
"""Bits of a rank, plus one, above that."""
_OFFSET = (1 << RANK_SHIFT) - 1


class ClusterMemory:
    """Shared memory of the blocks of a cluster, by places: the bytes of the batch's first block, then the second's...

    An address of a block's own shared memory is an address of the cluster's, too. `mapa` adds one more than the rank of
    another block, shifted by `RANK_SHIFT`: how a machine encodes it is not published (PTX ISA, section 5.1.7.1).
    """

    def __init__(self, shape: BatchShape, own: Region) -> None:
        """`own`: shared memory as each block sees its own."""
        self._shape = shape
        self.size = own.size
        self.stride = len(own.bytes) // shape.blocks
        """From the memory of one block to that of the next."""
        self.region = Region("shared memory of the cluster", "shared", own.bytes, len(own.bytes))
        """Shared memory by places."""

    def absolute(self, access: Access, selection: Selection) -> Array | None:
        """The place of each address less the offset of the access; None where one is in no block of the cluster."""
        shape, stride = self._shape, self.stride
        addresses = signed(selection.addresses) + access.offset
        lanes = shape.numbers if selection.lanes is None else selection.lanes
        position = shape.block_of[lanes]
        rank = (addresses >> RANK_SHIFT) - 1
        offset = addresses & _OFFSET
        if (rank >= shape.cluster_blocks).any() or (offset + access.size > self.size).any() or (rank < -1).any():
            return None
        there = position - position % shape.cluster_blocks + rank
        places: Array = np.where(rank < 0, position, there) * stride + offset - access.offset
        absolute: Array = places.astype(np.int64).view(np.uint64)
        return absolute

    def rank(self, place: int) -> int:
        """The rank in its cluster of the block in whose memory a place is."""
        return place // self.stride % self._shape.cluster_blocks

    def name(self, place: int) -> str:
        """A place as errors name it."""
        of_block = f" of the cluster's block {self.rank(place)}" if self._shape.cluster_blocks > 1 else ""
        return f"byte {place % self.stride} of shared memory{of_block}"


class Memory:
    """All memories of one emulation, the counters of what goes through them, and what goes on beside the threads."""

    def __init__(
        self,
        lanes: Lanes,
        layout: LaunchLayout,
        counts: Counts | None,
        races: RaceDetector | None = None,
        touched: TouchedSectors | None = None,
        order: AccessTrace | None = None,
    ) -> None:
        self.lanes = lanes
        self.races = races
        self.counters = AccessCounters(lanes, counts, touched, order)
        self.pending = PendingWork(lanes, self.counters, races)
        self._patterns = Patterns(lanes.shape.lanes)
        self._buffers = global_buffers(layout)
        self._spaces = private_spaces(lanes, layout)
        self.cluster = ClusterMemory(lanes.shape, self._spaces["shared"])
        self.mbarriers = Mbarriers(self._spaces["shared"].views[8], None if races is None else races.complete)
        by_name = {region.name: region for region in self._buffers}
        self.images = {handle: (image, by_name[image.buffer]) for handle, image in layout.images.items()}

    def start_batch(self) -> None:
        """Forgets what the last batch of blocks left in shared and local memory."""
        self._spaces["shared"].bytes.fill(POISON)
        self._spaces["local"].bytes.fill(POISON)
        self.pending.start_batch()
        if self.races is not None:
            self.races.start_batch()

    def end_batch(self) -> None:
        """All threads of the batch exited: what still goes on beside them is finished.

        Raises:
            EmulationError: as `PendingWork.end_batch`.
        """
        self.pending.end_batch(self.races is not None)

    @property
    def shared(self) -> Region:
        """Shared memory of the batch, one block's behind the other's."""
        return self._spaces["shared"]

    def select(self, lanes: Array | None, addresses: Array) -> Selection:
        """The selection of `lanes` (None: all) at `addresses` (one per selected lane)."""
        return Selection(lanes, addresses, self._patterns)

    def resolve(self, access: Access, selection: Selection, write: bool = False) -> list[tuple[Region, Selection]]:
        """Which region each lane means, checked: aligned, in bounds and, for a `write`, not read-only.

        Raises:
            EmulationError: naming instruction, line, block, thread, buffer and address.
        """
        pattern, size, space = selection.pattern, access.size, access.space
        first = selection.first + access.offset
        low, high = first + pattern.low, first + pattern.high
        if (first | pattern.alignment) & (size - 1):
            # `alignment` is the OR of relative addresses, so this also sees lanes other than the first.
            self._fail(access, selection, None)
        if space == "generic":
            if low >> WINDOW_SHIFT != high >> WINDOW_SHIFT:
                return self._split(access, selection, write, WINDOW_SHIFT)
            window = low >> WINDOW_SHIFT
            space = next((name for name, number in WINDOWS.items() if number == window), "generic")
            if window and space != "generic":
                moved = self.select(selection.lanes, selection.addresses - np.uint64(window << WINDOW_SHIFT))
                return self.resolve(replace(access, space=space), moved, write)
        if space == "global":
            number = low >> BUFFER_SHIFT
            if number != high >> BUFFER_SHIFT:
                return self._split(access, selection, write, BUFFER_SHIFT)
            if not 1 <= number <= len(self._buffers):
                self._fail(replace(access, space=space), selection, None)
            region = self._buffers[number - 1]
        elif space == "shared" and high >> RANK_SHIFT:
            remote = self.cluster.absolute(access, selection)
            if remote is None:
                self._fail(replace(access, space=space), selection, self._spaces[space])
            return [(self.cluster.region, self.select(selection.lanes, remote))]
        elif space in self._spaces:
            region = self._spaces[space]
        else:
            self._fail(replace(access, space=space), selection, None)
        if low < region.base or high + size > region.base + region.size:
            self._fail(replace(access, space=space), selection, region)
        if write and not region.writable:
            block, thread = self.lanes.coordinates(0 if selection.lanes is None else int(selection.lanes[0]))
            raise EmulationError(
                f"{access.location}: block {block} thread {thread} writes to {region.name}, which is read-only"
            )
        return [(region, selection)]

    def shared_places(self, access: Access, selection: Selection, write: bool = False) -> tuple[Array, Array]:
        """The lanes of an access to shared memory, and the byte of the batch's shared memory that each means.

        Raises:
            EmulationError: as `resolve` does, or an address that is not of shared memory.
        """
        lanes, places = [], []
        for region, part in self.resolve(access, selection, write):
            if region.space != "shared":
                block, thread = self.lanes.coordinates(0 if part.lanes is None else int(part.lanes[0]))
                raise EmulationError(
                    f"{access.location}: block {block} thread {thread} gives an address in {region.name}, not in shared"
                    " memory"
                )
            index, shift = part.index(region, 1, access.offset)
            lanes.append(self.lanes.shape.numbers if part.lanes is None else part.lanes)
            places.append(index + shift)
        return (lanes[0], places[0]) if len(lanes) == 1 else (np.concatenate(lanes), np.concatenate(places))

    def release(self, lane: int, place: int) -> None:
        """A lane arrives at a barrier: who waits for the phase sees what the lane did."""
        if self.races is not None:
            self.races.release(lane, place)

    def acquire(self, lanes: Array, places: Array) -> None:
        """Lanes saw that phases of these barriers completed."""
        if self.races is not None and len(lanes):
            self.races.acquire(lanes, places)

    def _split(self, access: Access, selection: Selection, write: bool, shift: int) -> list[tuple[Region, Selection]]:
        """Resolves the lanes separately by what is above the lowest `shift` bits of their addresses."""
        lanes = self.lanes.shape.numbers if selection.lanes is None else selection.lanes
        key = (selection.addresses + np.uint64(access.offset & (1 << 64) - 1)) >> np.uint64(shift)
        parts: list[tuple[Region, Selection]] = []
        for value in np.unique(key):
            mask = key == value
            parts += self.resolve(access, self.select(lanes[mask], selection.addresses[mask]), write)
        return parts

    def _fail(self, access: Access, selection: Selection, region: Region | None) -> NoReturn:
        """Raises for the first lane whose address is misaligned, in no buffer, or outside of `region`."""
        size, space = access.size, access.space
        numbers = self.lanes.shape.numbers if selection.lanes is None else selection.lanes
        addresses = [(int(a) + access.offset) & (1 << 64) - 1 for a in selection.addresses]
        start, end = (region.base, region.base + region.size) if region else (0, 0)
        wrong = 0
        for i, address in enumerate(addresses):
            if address & (size - 1) or (region is None and not any(a & (size - 1) for a in addresses)):
                wrong = i
                break
            if region is not None and not (start <= address and address + size <= end):
                wrong = i
                break
        address = addresses[wrong]
        block, thread = self.lanes.coordinates(int(numbers[wrong]))
        head = f"{access.location}: block {block} thread {thread} accesses {size} bytes at "
        if address & (size - 1):
            raise EmulationError(f"{head}{space} address 0x{address:x}, which is not a multiple of {size}")
        if region is None:
            raise EmulationError(f"{head}{space} address 0x{address:x}, which is in no buffer")
        raise EmulationError(
            f"{head}offset {address - start} of {region.name}, which has {region.size} bytes (address 0x{address:x})"
        )

    @property
    def handovers(self) -> Handovers | None:
        """Races in global memory, where they are looked for."""
        return self.races.handovers if isinstance(self.races, PhaseRaceDetector) else None

    def hand_over(
        self, access: Access, region: Region, selection: Selection, write: bool, atomic: bool = False
    ) -> None:
        """Checks an access to global memory for races, where blocks hand over what they stored there."""
        if self.handovers is not None and region.writable:
            self.handovers.record(access, region, selection, write, atomic)

    def record(self, access: Access, region: Region, selection: Selection, write: bool, agree: bool = False) -> None:
        """Counts a load or store, and checks it for races; `agree`: lanes that write to one place write the same."""
        counters = self.counters
        if region.space == "global":
            counters.count_global(access, region, selection, "write" if write else "read")
            self.hand_over(access, region, selection, write)
        elif region.space == "shared":
            counters.count_shared(access, selection, "store" if write else "load")
            if self.races is not None:
                index, shift = selection.index(region, 1, access.offset)
                shared = SharedAccess(access, index, shift, selection.lanes, selection.pattern, write, agree)
                self.races.record(shared)
        elif region.space == "local":
            counters.count_local(access, selection, "write" if write else "read")
