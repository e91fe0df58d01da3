"""Counts of accesses to memory: sectors and wavefronts. Accesses are passed on to what watches addresses and order."""

from collections.abc import Iterable

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.access_cost import AccessPattern, Counts
from kernrec.ptx.state.access_trace import AccessTrace
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.bulk_copies import Elements
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.selection import Selection, signed
from kernrec.ptx.state.touched_sectors import TouchedSectors
from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class GlobalRequest:
    """One access to a buffer, as it was counted: it can be counted again elsewhere in the buffer."""

    region: Region

    kind: str
    """`read`, `write` or `atomic`."""

    access: Access

    pattern: AccessPattern

    first: int
    """Address that the pattern is relative to."""

    lanes: Array | None
    """Numbers of the lanes; None: all of the batch."""

    step: int
    """Which run of a basic block it was part of."""

    @property
    def shape(self) -> tuple[object, ...]:
        """Equal for accesses that do the same elsewhere in the buffer."""
        return self.region.name, self.kind, self.access.size, self.pattern

    @property
    def room(self) -> tuple[int, int]:
        """The least and the greatest number of bytes that it can be moved by within the buffer."""
        low, high = self.first + self.pattern.low, self.first + self.pattern.high + self.access.size
        return self.region.base - low, self.region.base + self.region.size - high

    def check_moved(self, move: int) -> None:
        """Raises `EmulationError` where it would be outside of the buffer, moved by some bytes."""
        back, on = self.room
        if not back <= move <= on:
            raise EmulationError(f"an access to {self.region.name}, moved by {move} bytes, is outside of it")


def turns_of(requests: list[GlobalRequest]) -> int:
    """Runs of basic blocks from the first to the last of some accesses."""
    steps = [request.step for request in requests]
    return max(steps) - min(steps) + 1 if steps else 0


def between(requests: list[GlobalRequest], following: list[GlobalRequest], times: int) -> list[Array]:
    """Where accesses are made `times` between some executed trips of a loop and the next, on a straight line.

    Args:
        requests: those of the executed trips.
        following: those of the next executed trips; an instruction may be missing, or run more often.
        times: how often.

    Returns:
        Bytes from each of `requests`; (times,) each, multiples of what a lane accesses, within the buffer.
    """
    places: dict[tuple[int, str], list[int]] = {}
    for request in reversed(following):
        places.setdefault((id(request.access), request.region.name), []).append(request.first)
    steps = np.arange(1, times + 1)
    offsets = []
    for request in requests:
        ahead = places.get((id(request.access), request.region.name))
        distance, size = (ahead.pop() - request.first if ahead else 0), request.access.size
        back, on = request.room
        moved = np.clip(abs(distance) * steps // (times + 1) * (1 if distance > 0 else -1), back, on)
        offsets.append(np.where(moved < 0, -(-moved // size), moved // size) * size)
    return offsets


_SHARED = {kind: (f"shared.{kind}_wavefronts", f"shared.{kind}_ideal") for kind in ("load", "store", "atomic")}


class AccessCounters:
    """The counters of the accesses of one emulation; each of them may be left out."""

    def __init__(
        self, lanes: Lanes, counts: Counts | None, touched: TouchedSectors | None, order: AccessTrace | None
    ) -> None:
        self.counts = counts
        self.trace: list[GlobalRequest] | None = None
        """Where a list, accesses to buffers are appended."""
        self._lanes = lanes
        self._touched = touched
        self._order = order

    def count_global(self, access: Access, region: Region, selection: Selection, kind: str) -> None:
        """Counts one access to a buffer; `kind` is `read`, `write` or `atomic`."""
        pattern, first = selection.pattern, selection.first + access.offset
        if self._touched is not None:
            self._touched.record_pattern(region, access.size, pattern, (first - region.base,), kind)
        if self._order is not None and kind == "atomic":
            self._order.record_atomic(signed(selection.addresses) + access.offset, self._blocks(selection.lanes))
        elif self._order is not None:
            self._order.record(self._lanes.turn, pattern, first, kind == "read")
        if self.counts is None:
            return
        if self.trace is not None:
            step = self._lanes.turn
            self.trace.append(GlobalRequest(region, kind, access, pattern, first, selection.lanes, step))
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
        block_of = self._lanes.shape.block_of
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
            moved_to = request.first - request.region.base + moved
            self._touched.record_pattern(request.region, request.access.size, request.pattern, moved_to, request.kind)

    def leave_turns_out(self, requests: list[GlobalRequest], times: int) -> int:
        """Trips are left out whose accesses follow later (`repeat`); the number of their runs of basic blocks."""
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
                    order.record_atomic(request.pattern.relative + begin, self._blocks(request.lanes))
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
            self._order.record_sectors(self._lanes.turn, kind == "read", pairs >> 48, pairs & (1 << 48) - 1)
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
        region, lane_bytes, size = elements.region, elements.bytes_of_region(), elements.view.itemsize
        if region.space == "global" and len(lane_bytes):
            if self._touched is not None:
                blocks = np.full(len(lane_bytes), self._lanes.shape.block_of[lane])
                self._touched.record(region, size, blocks, lane_bytes, kind)
            sectors = _distinct((lane_bytes + region.base) >> 5)
            if self._order is not None:
                self._order.record_sectors(self._lanes.turn, kind == "read", np.full(len(sectors), lane >> 5), sectors)
        if self.counts is None:
            return
        amount = len(lane_bytes) * size
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
        pattern = selection.pattern
        in_turn = kind == "atomic" and not access.merges
        wavefronts, ideal = pattern.wavefronts(address, access.size, load, in_turn)
        if access.merges:
            alone, _ = pattern.wavefronts(address, access.size, load, atomic=True)
            counts.bump("shared.atomic_repeats", alone - wavefronts)
        names = _SHARED[kind]
        counts[names[0]] = counts.get(names[0], 0) + wavefronts
        counts[names[1]] = counts.get(names[1], 0) + ideal

    def count_local(self, access: Access, selection: Selection, kind: str) -> None:
        """Counts one access to local memory; `kind` is `read` or `write`."""
        counts = self.counts
        if counts is None:
            return
        pattern = selection.pattern
        counts.bump(f"local.{kind}_sectors", pattern.local_sectors(selection.first + access.offset, access.size))
        counts.bump(f"local.{kind}_requests", pattern.warps)
        counts.bump(f"local.{kind}_bytes", pattern.count * access.size)


def _distinct(values: Array) -> Array:
    """The values in ascending order, each once; faster than `np.unique` where they ascend already."""
    steps = np.diff(values)
    if (steps < 0).any():
        return np.unique(values)
    distinct: Array = values[np.concatenate([[True], steps > 0])]
    return distinct
