"""Which lanes access memory, and where.

A `Selection` is the lanes and addresses of one access; its `AccessPattern` gives bounds, alignment and cost without
another look at the addresses. Accesses of a basic block that share their address register share a selection
(`SharedSelection`), so an unrolled loop body pays once for many loads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kernrec.ptx.state.access_cost import AccessPattern
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.types import Array

_MOST_PATTERNS = 1 << 11  # some 24 KiB each


def signed(addresses: Array) -> Array:
    """Addresses as int64: a negative base with an offset back into bounds wraps as on the machine."""
    return addresses.view(f"i{addresses.dtype.itemsize}").astype(np.int64)


def _signed(address: Any) -> int:
    """The same of one address."""
    value, bits = int(address), 8 * address.itemsize
    return value - (1 << bits) if value >> (bits - 1) else value


class Patterns:
    """The access patterns of an emulation that were seen before, by a few of their addresses."""

    def __init__(self, batch_lanes: int) -> None:
        """`batch_lanes`: lanes of the batch."""
        self._batch_lanes = batch_lanes
        self._count = 0
        self._alike: dict[tuple[object, ...], list[tuple[bytes, Array | None, AccessPattern]]] = {}

    def of(self, relative: Array, lanes: Array | None) -> AccessPattern:
        """The pattern of lanes (None: all of the batch) at addresses relative to the first; made where it is new."""
        content = relative.tobytes()
        size = len(content)
        middle = size // 2 & ~7
        # A hash of all bytes would take longer than to compare them.
        key = size, content[8:16], content[middle : middle + 8], content[-8:]
        for other_content, other_lanes, pattern in self._alike.get(key, ()):
            if content == other_content and _equal(lanes, other_lanes):
                return pattern
        if self._count >= _MOST_PATTERNS:
            self._alike.clear()
            self._count = 0
        pattern = AccessPattern(signed(relative), lanes, self._batch_lanes)
        self._alike.setdefault(key, []).append((content, lanes, pattern))
        self._count += 1
        return pattern


def _equal(lanes: Array | None, others: Array | None) -> bool:
    return lanes is others or (lanes is not None and others is not None and np.array_equal(lanes, others))


class Selection:
    """The lanes of one access (None: all of the batch), their addresses, and the pattern these make."""

    __slots__ = ("_index", "addresses", "first", "lanes", "pattern")

    def __init__(self, lanes: Array | None, addresses: Array, patterns: Patterns) -> None:
        self.lanes = lanes
        self.addresses = addresses
        self.first = _signed(addresses[0])
        relative = addresses - addresses[0]
        self.pattern = patterns.of(relative, lanes)
        self._index: dict[tuple[int, int], Array] = {}

    def index(self, region: Region, unit: int, offset: int) -> tuple[Array, int]:
        """Where the lanes' elements of `unit` bytes are in `region.views[unit]`: (index array, shift to add)."""
        if offset < 0 or offset % unit or self.first + self.pattern.low < region.base:
            return self._bytes(region, offset) // unit, 0
        key = (id(region), unit)
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = self._bytes(region, 0) >> (unit.bit_length() - 1)
        return index, offset // unit

    def _bytes(self, region: Region, offset: int) -> Array:
        """The byte of the region's data that each lane accesses."""
        places = signed(self.addresses)
        shift = offset - region.base
        if shift:
            places += shift
        if region.copies is not None:
            places += region.copies if self.lanes is None else region.copies[self.lanes]
        return places


Select = Callable[[Array | None, Array], Selection]
"""Makes the selection of some lanes (None: all of the batch) at these addresses, one for each of them."""


class SharedSelection:
    """The selection of a basic block's accesses through one address register under one predicate."""

    __slots__ = ("_inverted", "_lanes", "_participates", "_predicate", "_row", "_select", "_selection", "_step")

    def __init__(
        self, lanes: Lanes, select: Select, row: Array, predicate: Array | None, inverted: bool, per_warp: int
    ) -> None:
        """The accesses of the lanes at the addresses in `row`.

        Args:
            lanes: of the batch.
            select: makes a selection.
            row: the address register.
            predicate: where the accesses run; None: everywhere.
            inverted: whether they run where `predicate` is false.
            per_warp: only the first so many lanes of each warp take part.
        """
        self._select = select
        self._lanes = lanes
        self._row = row
        self._predicate = predicate
        self._inverted = inverted
        self._participates = None if per_warp == WARP else lanes.shape.numbers % WARP < per_warp
        self._step = -1
        self._selection: Selection | None = None

    def get(self) -> Selection | None:
        """The selection for this run of the basic block; None when no lane takes part."""
        lanes = self._lanes
        if self._step == lanes.step:
            return self._selection
        self._step = lanes.step
        numbers = lanes.active_numbers()
        if self._predicate is not None:
            is_on = ~self._predicate if self._inverted else self._predicate
            if numbers is not None:
                numbers = numbers[is_on[numbers]]
            elif not is_on.all():
                numbers = np.flatnonzero(is_on)
        if self._participates is not None:
            numbers = np.flatnonzero(self._participates) if numbers is None else numbers[self._participates[numbers]]
        if numbers is None:
            self._selection = self._select(None, self._row)
        elif len(numbers):
            self._selection = self._select(numbers, self._row[numbers])
        else:
            self._selection = None
        return self._selection
