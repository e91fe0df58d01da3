"""The memories a kernel sees: global buffers, shared, local, constant and parameter space, bounds-checked.

A `Region` is one flat memory with typed views; a NumPy array that is not writeable makes a read-only buffer. A
`Selection` is the lanes and addresses of one access; its `Pattern` gives bounds, alignment and cost without looking at
the addresses again. Accesses of a basic block that share their address register share a selection (`Slot`), so an
unrolled loop body pays once for many loads.
"""

from typing import Any, NoReturn

import numpy as np

from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access_cost import Counts, Pattern
from kernrec.ptx.state.launch_layout import LaunchLayout
from kernrec.ptx.state.races import Races
from kernrec.ptx.state.registers import BUFFER_SHIFT, WINDOW_SHIFT, WINDOWS, Array, EmulationError, Lanes, at
from kernrec.ptx.state.touched_sectors import Observer

_PATTERNS_KEPT = 1 << 11  # some 16 KiB each
_POISON = 0xFF  # unwritten shared and local memory: NaN as a float, -1 as an integer


class Region:
    """A flat memory: `size` bytes at address `base`; `offset` is where each lane's own copy begins, or None."""

    __slots__ = ("base", "bytes", "name", "offset", "size", "space", "views", "writable")

    def __init__(self, name: str, space: str, base: int, data: Array, size: int, offset: Array | None = None) -> None:
        self.name = name
        self.space = space
        self.base = base
        self.bytes = data
        self.size = size
        self.offset = offset
        self.writable = bool(data.flags.writeable) and space not in ("const", "param")
        self.views: dict[int, Array] = {
            unit: data[: len(data) // unit * unit].view(f"u{unit}") for unit in (1, 2, 4, 8)
        }


def _signed(addresses: Array) -> Array:
    """Addresses as int64: a negative base with an offset back into bounds wraps as on the machine."""
    return addresses.view(f"i{addresses.dtype.itemsize}").astype(np.int64)


class Selection:
    """The lanes of one access (None: all of the batch), their addresses, and the pattern these make."""

    __slots__ = ("_cache", "addresses", "first", "lanes", "pattern")

    def __init__(self, lanes: Array | None, addresses: Array, patterns: dict[Any, Pattern], total: int) -> None:
        self.lanes = lanes
        self.addresses = addresses
        self.first = int(_signed(addresses[:1])[0])
        relative = addresses - addresses[0]
        key = relative.tobytes() if lanes is None else (relative.tobytes(), lanes.tobytes())
        found = patterns.get(key)
        if found is None:
            if len(patterns) >= _PATTERNS_KEPT:
                patterns.clear()
            found = patterns[key] = Pattern(_signed(relative), lanes, total)
        self.pattern = found
        self._cache: dict[tuple[int, int], Array] = {}

    def index(self, region: Region, unit: int, offset: int) -> tuple[Array, int]:
        """Where the lanes' elements of `unit` bytes are in `region.views[unit]`: (index array, shift to add)."""
        if offset < 0 or offset % unit or self.first + self.pattern.low < region.base:
            return self._plain(region, offset) // unit, 0
        key = (id(region), unit)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._plain(region, 0) >> (unit.bit_length() - 1)
        return found, offset // unit

    def _plain(self, region: Region, offset: int) -> Array:
        where = _signed(self.addresses)
        shift = offset - region.base
        if shift:
            where += shift
        if region.offset is not None:
            where += region.offset if self.lanes is None else region.offset[self.lanes]
        return where


class Memory:
    """All memories of one emulation, and the counters of what goes through them."""

    def __init__(
        self,
        lanes: Lanes,
        layout: LaunchLayout,
        counts: Counts | None,
        races: Races | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.lanes = lanes
        self.observer = observer
        self.counts = counts
        self.races = races
        self.patterns: dict[Any, Pattern] = {}
        self.buffers = [
            Region(name, "global", (i + 1) << BUFFER_SHIFT, data, len(data))
            for i, (name, data) in enumerate(layout.buffers.items())
        ]
        shared = -(-layout.shared_bytes // 16) * 16
        self.spaces = {
            "shared": Region(
                "shared memory",
                "shared",
                0,
                np.full(shared * lanes.blocks, _POISON, np.uint8),
                layout.shared_bytes,
                lanes.block_of * shared,
            ),
            "local": _private("local memory", "local", layout.local_bytes, lanes),
            "argument": _private("arguments of calls", "argument", layout.argument_bytes, lanes),
            "const": Region("constant memory", "const", 0, _padded(layout.constants), len(layout.constants)),
            "param": Region("parameters", "param", 0, _padded(layout.parameters), len(layout.parameters)),
        }

    def start_batch(self) -> None:
        """Forgets what the last batch of blocks left in shared and local memory."""
        self.spaces["shared"].bytes.fill(_POISON)
        self.spaces["local"].bytes.fill(_POISON)
        if self.races is not None:
            self.races.start_batch()

    def select(self, lanes: Array | None, addresses: Array) -> Selection:
        """The selection of `lanes` (None: all) at `addresses` (one per selected lane)."""
        return Selection(lanes, addresses, self.patterns, self.lanes.count)

    def places(
        self, space: str, chosen: Selection, ins: Instruction, offset: int, size: int, write: bool = False
    ) -> list[tuple[Region, Selection]]:
        """Which region each lane means, checked: aligned, in bounds and, for a `write`, not read-only.

        Raises:
            EmulationError: naming instruction, line, block, thread, buffer and address.
        """
        pattern = chosen.pattern
        first = chosen.first + offset
        low, high = first + pattern.low, first + pattern.high
        if (first | pattern.alignment) & (size - 1):
            # `alignment` is the OR of relative addresses, so this also sees lanes other than the first.
            self._fail(chosen, ins, offset, size, space, None)
        if space == "generic":
            if low >> WINDOW_SHIFT != high >> WINDOW_SHIFT:
                return self._split(space, chosen, ins, offset, size, write, WINDOW_SHIFT)
            window = low >> WINDOW_SHIFT
            space = next((name for name, number in WINDOWS.items() if number == window), "generic")
            if window and space != "generic":
                moved = self.select(chosen.lanes, chosen.addresses - np.uint64(window << WINDOW_SHIFT))
                return self.places(space, moved, ins, offset, size, write)
        if space == "global":
            number = low >> BUFFER_SHIFT
            if number != high >> BUFFER_SHIFT:
                return self._split(space, chosen, ins, offset, size, write, BUFFER_SHIFT)
            if not 1 <= number <= len(self.buffers):
                self._fail(chosen, ins, offset, size, space, None)
            region = self.buffers[number - 1]
        elif space in self.spaces:
            region = self.spaces[space]
        else:
            self._fail(chosen, ins, offset, size, space, None)
        if low < region.base or high + size > region.base + region.size:
            self._fail(chosen, ins, offset, size, space, region)
        if write and not region.writable:
            block, thread = place(self.lanes, 0 if chosen.lanes is None else int(chosen.lanes[0]))
            raise EmulationError(
                f"{at(self.lanes.function, ins)}: block {block} thread {thread} writes to {region.name}, "
                "which is read-only"
            )
        return [(region, chosen)]

    def _split(
        self, space: str, chosen: Selection, ins: Instruction, offset: int, size: int, write: bool, shift: int
    ) -> list[tuple[Region, Selection]]:
        lanes = self.lanes.lane if chosen.lanes is None else chosen.lanes
        key = (chosen.addresses + np.uint64(offset & (1 << 64) - 1)) >> np.uint64(shift)
        found: list[tuple[Region, Selection]] = []
        for value in np.unique(key):
            here = key == value
            found += self.places(space, self.select(lanes[here], chosen.addresses[here]), ins, offset, size, write)
        return found

    def _fail(
        self, chosen: Selection, ins: Instruction, offset: int, size: int, space: str, region: Region | None
    ) -> NoReturn:
        lanes = self.lanes
        ids = lanes.lane if chosen.lanes is None else chosen.lanes
        where = [(int(a) + offset) & (1 << 64) - 1 for a in chosen.addresses]
        limit = (region.base, region.base + region.size) if region else (0, 0)
        bad = 0
        for i, address in enumerate(where):
            if address & (size - 1) or (region is None and not any(a & (size - 1) for a in where)):
                bad = i
                break
            if region is not None and not (limit[0] <= address and address + size <= limit[1]):
                bad = i
                break
        address = where[bad]
        lane = int(ids[bad])
        block, thread = place(lanes, lane)
        head = f"{at(lanes.function, ins)}: block {block} thread {thread} accesses {size} bytes at "
        if address & (size - 1):
            raise EmulationError(f"{head}{space} address 0x{address:x}, which is not a multiple of {size}")
        if region is None:
            raise EmulationError(f"{head}{space} address 0x{address:x}, which is in no buffer")
        raise EmulationError(
            f"{head}offset {address - limit[0]} of {region.name}, which has {region.size} bytes (address 0x{address:x})"
        )

    def count_global(self, region: Region, chosen: Selection, offset: int, size: int, what: str) -> None:
        """Counts one access to a buffer; `what` is `read`, `write` or `atomic`."""
        if self.observer is not None:
            index, shift = chosen.index(region, 1, offset)
            blocks = self.lanes.block_of if chosen.lanes is None else self.lanes.block_of[chosen.lanes]
            self.observer.access(region.name, region.size, blocks, index + shift, what)
        counts = self.counts
        if counts is None:
            return
        pattern = chosen.pattern
        name = f"global.{region.name}.{what}"
        counts.bump(name + "_sectors", pattern.sectors(chosen.first + offset, size))
        counts.bump(name + "_requests", pattern.warps)
        counts.bump(name + "_bytes", pattern.count * size)

    def count_local(self, chosen: Selection, offset: int, size: int, what: str) -> None:
        """Counts one access to local memory; `what` is `read` or `write`."""
        counts = self.counts
        if counts is None:
            return
        pattern = chosen.pattern
        counts.bump(f"local.{what}_sectors", pattern.local_sectors(chosen.first + offset, size))
        counts.bump(f"local.{what}_requests", pattern.warps)
        counts.bump(f"local.{what}_bytes", pattern.count * size)

    def count_shared(self, chosen: Selection, offset: int, size: int, what: str, rows: bool = False) -> None:
        """Counts one access to shared memory; `what` is `load`, `store` or `atomic`; `rows`: of rows of matrices."""
        counts = self.counts
        if counts is None:
            return
        pattern = chosen.pattern
        passes, groups = pattern.wavefronts(chosen.first + offset, size, what == "load" and not rows, what == "atomic")
        counts.bump(f"shared.{what}_wavefronts", passes)
        counts.bump(f"shared.{what}_ideal", groups)

    def touched(
        self,
        ins: Instruction,
        region: Region,
        chosen: Selection,
        offset: int,
        size: int,
        store: bool,
        rows: bool = False,
    ) -> None:
        """Counts a load or store (`rows`: of a matrix), and checks it for races."""
        if region.space == "global":
            self.count_global(region, chosen, offset, size, "write" if store else "read")
        elif region.space == "shared":
            self.count_shared(chosen, offset, size, "store" if store else "load", rows)
            if self.races is not None:
                index, shift = chosen.index(region, 1, offset)
                self.races.access(ins, index + shift, size, chosen.lanes, store)
        elif region.space == "local":
            self.count_local(chosen, offset, size, "write" if store else "read")


def place(lanes: Lanes, lane: int) -> tuple[str, str]:
    """Block and thread coordinates of a lane, as text."""
    block = int(lanes.ids[lane // lanes.padded])
    thread = lane % lanes.padded
    gx, gy, _ = lanes.grid
    bx, by, _ = lanes.block
    return (
        f"({block % gx}, {block // gx % gy}, {block // (gx * gy)})",
        f"({thread % bx}, {thread // bx % by}, {thread // (bx * by)})",
    )


def _private(name: str, space: str, size: int, lanes: Lanes) -> Region:
    """Memory of which every thread has `size` bytes of its own."""
    stride = -(-size // 16) * 16
    return Region(name, space, 0, np.full(stride * lanes.count, _POISON, np.uint8), size, lanes.lane * stride)


def _padded(data: bytes) -> Array:
    return np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), np.uint8).copy()


class Slot:
    """The selection of a basic block's accesses through one address register under one predicate."""

    __slots__ = ("_among", "_inverted", "_lanes", "_memory", "_predicate", "_row", "_selection", "_tick")

    def __init__(self, memory: Memory, row: Array, predicate: Array | None, inverted: bool, per_warp: int = 32) -> None:
        self._memory = memory
        self._lanes = memory.lanes
        self._row = row
        self._predicate = predicate
        self._inverted = inverted
        self._among = None if per_warp == 32 else memory.lanes.lane % 32 < per_warp
        self._tick = -1
        self._selection: Selection | None = None

    def get(self) -> Selection | None:
        """The selection for this pass through the basic block; None when no lane takes part."""
        lanes = self._lanes
        if self._tick == lanes.tick:
            return self._selection
        self._tick = lanes.tick
        chosen = lanes.active_lanes()
        if self._predicate is not None:
            on = ~self._predicate if self._inverted else self._predicate
            if chosen is not None:
                chosen = chosen[on[chosen]]
            elif not on.all():
                chosen = np.flatnonzero(on)
        if self._among is not None:
            chosen = np.flatnonzero(self._among) if chosen is None else chosen[self._among[chosen]]
        if chosen is None:
            self._selection = self._memory.select(None, self._row)
        elif len(chosen):
            self._selection = self._memory.select(chosen, self._row[chosen])
        else:
            self._selection = None
        return self._selection
