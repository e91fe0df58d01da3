"""All memories of an emulation: what an access means, whether it is allowed, and what it costs."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.access_cost import AccessPattern, Counts
from kernrec.ptx.state.access_trace import AccessTrace
from kernrec.ptx.state.async_copies import AsyncCopies
from kernrec.ptx.state.async_engine import AsyncEngine
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.bulk_copies import BulkCopies, Elements
from kernrec.ptx.state.cluster_memory import RANK_SHIFT, ClusterMemory
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.global_request import GlobalRequest, one_lane_per_word, turns_of
from kernrec.ptx.state.launch_layout import BUFFER_SHIFT, WINDOW_SHIFT, WINDOWS, LaunchLayout
from kernrec.ptx.state.map_fences import MapFences
from kernrec.ptx.state.mbarriers import Mbarriers
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.race_detector import RaceDetector, SharedAccess
from kernrec.ptx.state.region import POISON, Region, global_buffers, private_spaces
from kernrec.ptx.state.selection import Selection, signed
from kernrec.ptx.state.tensor_memory import TensorMemory
from kernrec.ptx.state.tensor_operations import TensorOperations
from kernrec.ptx.state.touched_sectors import TouchedSectors
from kernrec.ptx.state.types import Array
from kernrec.ptx.state.warpgroup_operations import WarpgroupOperations

_MOST_TOUCHED = 1 << 14  # addresses that are recorded at once


class Memory:
    """All memories of one emulation, and the counters of what goes through them."""

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
        self.counts = counts
        self.races = races
        self.async_copies = AsyncCopies(lanes.shape.lanes)
        self.warpgroups = WarpgroupOperations(lanes, races)
        self.tensor = TensorOperations(TensorMemory(lanes.shape.blocks), races)
        self.engine = AsyncEngine()
        self.map_fences = MapFences()
        self.bulk = BulkCopies(self.count_elements, races if isinstance(races, PhaseRaceDetector) else None)
        self.trace: list[GlobalRequest] | None = None  # where a list, accesses to buffers are appended
        self._touched = touched
        self._order = order
        self._patterns: dict[Any, AccessPattern] = {}
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
        self.async_copies.start_batch()
        self.warpgroups.start_batch()
        self.tensor.start_batch()
        self.engine.start_batch()
        self.map_fences.start_batch()
        self.bulk.start_batch()
        if self.races is not None:
            self.races.start_batch()

    def end_batch(self) -> None:
        """All threads of the batch exited: what still goes on beside them is finished.

        Raises:
            EmulationError: a copy still reads or writes shared memory, which is no longer there; where races are
                checked.
        """
        copy = None if self.races is None else self.bulk.unfinished()
        if copy is not None:
            block, thread = self.lanes.coordinates(copy.lane)
            raise EmulationError(
                f"{copy.access.location}: block {block} ended before the copy of thread {thread} was waited for"
            )
        while self.engine.finish_one():
            pass
        self.bulk.finish_all()
        self.tensor.memory.check_released()

    @property
    def shared(self) -> Region:
        """Shared memory of the batch, one block's behind the other's."""
        return self._spaces["shared"]

    def select(self, lanes: Array | None, addresses: Array) -> Selection:
        """The selection of `lanes` (None: all) at `addresses` (one per selected lane)."""
        return Selection(lanes, addresses, self._patterns, self.lanes.shape.lanes)

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

    def record(self, access: Access, region: Region, selection: Selection, write: bool, agree: bool = False) -> None:
        """Counts a load or store, and checks it for races; `agree`: lanes that write to one place write the same."""
        if region.space == "global":
            self.count_global(access, region, selection, "write" if write else "read")
        elif region.space == "shared":
            self.count_shared(access, selection, "store" if write else "load")
            if self.races is not None:
                index, shift = selection.index(region, 1, access.offset)
                shared = SharedAccess(access, index, shift, selection.lanes, selection.pattern, write, agree)
                self.races.record(shared)
        elif region.space == "local":
            self._count_local(access, selection, "write" if write else "read")

    def count_global(self, access: Access, region: Region, selection: Selection, kind: str) -> None:
        """Counts one access to a buffer; `kind` is `read`, `write` or `atomic`."""
        where = None
        if self._touched is not None:
            index, shift = selection.index(region, 1, access.offset)
            where = index + shift
            self._touched.record(region, access.size, self._blocks(selection.lanes), where, kind)
        pattern, first = selection.pattern, selection.first + access.offset
        if self._order is not None and kind == "atomic":
            self._order.record_atomic(signed(selection.addresses) + access.offset, self._blocks(selection.lanes))
        elif self._order is not None:
            self._order.record(self.lanes.turn, pattern, first, kind == "read")
        if self.counts is None:
            return
        if self.trace is not None:
            step = self.lanes.turn
            self.trace.append(GlobalRequest(region, kind, access, pattern, first, selection.lanes, where, step))
        self._count_requests(region, kind, access, pattern, ((first, 1),))

    def _count_requests(
        self, region: Region, kind: str, access: Access, pattern: AccessPattern, places: Iterable[tuple[int, int]]
    ) -> None:
        """Counts requests of a pattern: at which addresses, and how often at each."""
        counts, name = self.counts, f"global.{region.name}.{kind}"
        assert counts is not None
        for begin, times in places:
            counts.bump(name + "_sectors", pattern.sectors(begin) * times)
            counts.bump(name + "_requests", pattern.warps * times)
            counts.bump(name + "_bytes", pattern.count * access.size * times)
            if self._order is not None:
                counts.bump(name + "_passes", pattern.l1_passes(begin, access.size) * times)
                if kind == "atomic":
                    counts.bump(name + "_turns", pattern.atomic_turns(begin, access.unit) * times)

    def _blocks(self, lanes: Array | None) -> Array:
        """Position in the batch of each lane's block."""
        block_of = self.lanes.shape.block_of
        return block_of if lanes is None else block_of[lanes]

    def repeat(self, requests: list[GlobalRequest], offsets: list[Array], turns: int) -> None:
        """Counts accesses once more at each of some places, without doing them.

        Args:
            requests: of trips of a loop.
            offsets: bytes from each; (times,) each.
            turns: what `leave_turns_out` returned for them.

        Raises:
            EmulationError: one of them would be outside of its buffer.
        """
        for request, moved in zip(requests, offsets, strict=True):
            request.check_moved(int(moved.min()))
            request.check_moved(int(moved.max()))
            # What a pattern costs depends on where in a line it begins.
            begins, often = np.unique((request.first + moved) & 127, return_counts=True)
            places = zip(begins.tolist(), often.tolist(), strict=True)
            self._count_requests(request.region, request.kind, request.access, request.pattern, places)
        if self._order is not None and requests:
            self._repeat_in_order(self._order, requests, offsets, turns)
        if self._touched is None:
            return
        for request, moved in zip(requests, offsets, strict=True):
            if not moved.any():
                continue  # it touches what it touched before
            blocks, where = one_lane_per_word(request, self._blocks(request.lanes), moved)
            at_once = max(_MOST_TOUCHED // len(where), 1)
            for start in range(0, len(moved), at_once):
                some = moved[start : start + at_once]
                there = (where + some[:, None]).reshape(-1)
                self._touched.record(
                    request.region, request.access.size, np.tile(blocks, len(some)), there, request.kind
                )

    def leave_turns_out(self, requests: list[GlobalRequest], times: int) -> int:
        """Says that trips are left out whose accesses follow later (`repeat`); returns their runs of basic blocks."""
        turns = turns_of(requests) * times
        if self._order is not None:
            self._order.skip_steps(turns)
        return turns

    def _repeat_in_order(
        self, order: AccessTrace, requests: list[GlobalRequest], offsets: list[Array], turns: int
    ) -> None:
        """Tells the trace of accesses that were left out."""
        period, times = turns_of(requests), len(offsets[0])
        for repetition in range(times):
            if order.full:
                break
            for request, moved in zip(requests, offsets, strict=True):
                begin = request.first + int(moved[repetition])
                if request.kind == "atomic":
                    assert request.where is not None
                    addresses = request.where + (request.region.base + int(moved[repetition]))
                    order.record_atomic(addresses, self._blocks(request.lanes))
                else:
                    step = request.step + period * (repetition + 1) - turns
                    order.record(step, request.pattern, begin, request.kind == "read")

    def count_image(self, region: Region, lanes: Array, stored: Array, kind: str, size: int, passes: int) -> None:
        """Counts accesses to a texture or surface.

        Args:
            region: its buffer.
            lanes: numbers of the lanes.
            stored: bytes of the buffer where the hardware keeps the texels of each lane; (lanes, texels), -1: none.
            kind: `read`, `write` or `atomic`.
            size: bytes of one texel that a lane moves.
            passes: clocks that a warp's request takes the texture units.
        """
        there = stored >= 0
        if self._touched is not None and there.any():
            blocks = np.broadcast_to(self._blocks(lanes)[:, None], stored.shape)
            self._touched.record(region, size, blocks[there], stored[there], kind)
        warps = np.broadcast_to((lanes >> 5)[:, None], stored.shape)
        pairs = np.unique((warps[there] << 48) + ((stored[there] + region.base) >> 5))
        if self._order is not None and kind == "atomic":
            blocks = self._blocks(lanes)[there.any(axis=1)]
            self._order.record_atomic(stored[:, 0][there.any(axis=1)] + region.base, blocks)
        elif self._order is not None:
            self._order.record_sectors(self.lanes.turn, kind == "read", pairs >> 48, pairs & (1 << 48) - 1)
        if self.counts is None:
            return
        requests, name = len(np.unique(lanes >> 5)), f"global.{region.name}.{kind}"
        self.counts.bump(name + "_sectors", len(pairs))
        self.counts.bump(name + "_requests", requests)
        self.counts.bump(name + "_bytes", int(np.count_nonzero(there)) * size)
        if self._order is not None:
            self.counts.bump(name + "_passes", requests * passes)

    def count_elements(self, elements: Elements, lane: int, kind: str) -> None:
        """Counts what a copy in bulk of a lane moves; `kind` is `read`, `write` or `atomic`."""
        region, where, size = elements.region, elements.bytes_of_region(), elements.view.itemsize
        if region.space == "global" and len(where):
            if self._touched is not None:
                blocks = np.full(len(where), self.lanes.shape.block_of[lane])
                self._touched.record(region, size, blocks, where, kind)
            sectors = np.unique((where + region.base) >> 5)
            if self._order is not None:
                self._order.record_sectors(self.lanes.turn, kind == "read", np.full(len(sectors), lane >> 5), sectors)
        if self.counts is None:
            return
        amount = len(where) * size
        if region.space != "global":
            self.counts.bump(f"bulk.shared_{kind}_bytes", amount)
        elif amount:
            name = f"global.{region.name}.{kind}"
            self.counts.bump(name + "_sectors", len(sectors))
            self.counts.bump(name + "_requests", 1)
            self.counts.bump(name + "_bytes", amount)

    def count_shared(self, access: Access, selection: Selection, kind: str) -> None:
        """Counts one access to shared memory; `kind` is `load`, `store` or `atomic`."""
        counts = self.counts
        if counts is None:
            return
        load = kind == "load" and not access.rows_of_matrices
        address = selection.first + access.offset
        wavefronts, ideal = selection.pattern.wavefronts(address, access.size, load, kind == "atomic")
        counts.bump(f"shared.{kind}_wavefronts", wavefronts)
        counts.bump(f"shared.{kind}_ideal", ideal)

    def _count_local(self, access: Access, selection: Selection, kind: str) -> None:
        """Counts one access to local memory; `kind` is `read` or `write`."""
        counts = self.counts
        if counts is None:
            return
        pattern = selection.pattern
        counts.bump(f"local.{kind}_sectors", pattern.local_sectors(selection.first + access.offset, access.size))
        counts.bump(f"local.{kind}_requests", pattern.warps)
        counts.bump(f"local.{kind}_bytes", pattern.count * access.size)
