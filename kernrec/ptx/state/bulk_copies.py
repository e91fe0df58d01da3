"""Copies in bulk between memories, which the asynchronous engine does (PTX ISA, section 9.7.9.25.4).

A copy that a barrier waits for is finished by the engine, which then counts its bytes as come. One that is part of a
bulk group is finished when its thread waits for the group: until then nobody sees what it writes, and it still reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.types import Array

Reduce = Callable[[Array, Array], Array]
"""From the old and the given values to the new ones."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a memory, in the order in which a copy moves them."""

    region: Region
    """The memory."""

    view: Array
    """Its data as elements."""

    index: Array | slice
    """The element of `view` that each is."""

    inside: Array | None = None
    """Which of them there are; the others read as `fill` and are not written. None: all."""

    fill: int = 0
    """Bits of an element that is not there."""

    def read(self) -> Array:
        """Their values; (elements)."""
        if self.inside is None:
            values: Array = self.view[self.index].copy()
            return values
        out = np.empty(len(self.inside), self.view.dtype)
        out.view(f"u{out.itemsize}")[:] = self.fill
        assert not isinstance(self.index, slice)
        out[self.inside] = self.view[self.index[self.inside]]
        return out

    def write(self, values: Array, reduce: Reduce | None) -> None:
        """Gives them values; with `reduce`, combines these with the old ones."""
        index, values = self.index, values.view(self.view.dtype)
        if self.inside is not None:
            assert not isinstance(index, slice)
            index, values = index[self.inside], values[self.inside]
        self.view[index] = values if reduce is None else reduce(self.view[index], values)

    def moved(self, by: int) -> "Elements":
        """The same elements `by` bytes further."""
        step = by // self.view.itemsize
        index = self.index
        moved = slice(index.start + step, index.stop + step) if isinstance(index, slice) else index + step
        return Elements(self.region, self.view, moved, self.inside, self.fill)

    def bytes_of_region(self) -> Array:
        """The first byte of each element that there is, from the begin of the region."""
        if isinstance(self.index, slice):
            return np.arange(self.index.start, self.index.stop) * self.view.itemsize
        index: Array = self.index if self.inside is None else self.index[self.inside]
        return index * self.view.itemsize


@dataclass(slots=True)
class BulkCopy:
    """One copy that a thread started."""

    lane: int
    """The thread."""

    access: Access
    """Its instruction."""

    source: Elements
    """What is read."""

    targets: list[Elements]
    """What is written: of a multicast, the same in several blocks."""

    barriers: list[int] = field(default_factory=list)
    """Places of the barriers that count the bytes, one for each target."""

    bytes: int = 0
    """How many they count: those outside of a tensor, too."""

    reduce: Reduce | None = None
    """How values are combined with those in the target; None: they replace them."""

    data: Array | None = None
    """What was read."""

    def fetch(self) -> None:
        """Reads the source, unless that was done."""
        if self.data is None:
            self.data = self.source.read()

    def store(self) -> None:
        """Reads the source where that was not done yet, and writes the targets."""
        self.fetch()
        assert self.data is not None
        for target in self.targets:
            target.write(self.data, self.reduce)


class BulkCopies:
    """The copies in bulk of a batch: counted and checked as they start and finish, in groups where no barrier waits."""

    def __init__(self, count: Callable[[Elements, int, str], None]) -> None:
        """`count(elements, lane, kind)` counts what a copy moves; kind is `read`, `write` or `atomic`."""
        self._count = count
        self._open: dict[int, list[BulkCopy]] = {}  # by lane: copies that no group has yet
        self._committed: dict[int, list[list[BulkCopy]]] = {}  # by lane: groups, oldest first

    def start_batch(self) -> None:
        """Forgets the groups of the last batch."""
        self._open.clear()
        self._committed.clear()

    def start(self, copy: BulkCopy) -> None:
        """Starts a copy; one without a barrier is of the present group of its thread."""
        self._count(copy.source, copy.lane, "read")
        for target in copy.targets:
            self._count(target, copy.lane, "write" if copy.reduce is None else "atomic")
        if not copy.barriers:
            self._open.setdefault(copy.lane, []).append(copy)

    def finish(self, copy: BulkCopy) -> None:
        """Finishes a copy that a barrier waits for."""
        copy.store()

    def commit(self, lanes: list[int]) -> None:
        """Ends the present groups of some threads."""
        for lane in lanes:
            self._committed.setdefault(lane, []).append(self._open.pop(lane, []))

    def wait(self, lanes: list[int], allowed: int, only_read: bool) -> None:
        """Finishes all groups of some threads but for the `allowed` newest of each; `only_read`: as far as their
        sources go."""
        for lane in lanes:
            groups = self._committed.get(lane, [])
            waited = groups[: max(len(groups) - allowed, 0)]
            for copy in (copy for group in waited for copy in group):
                if only_read:
                    copy.fetch()
                else:
                    copy.store()
            if not only_read:
                del groups[: len(waited)]

    def finish_all(self) -> None:
        """Finishes every copy of a group: the kernel ends."""
        committed = [copy for lane in self._committed.values() for group in lane for copy in group]
        for copy in committed + [copy for copies in self._open.values() for copy in copies]:
            copy.store()
        self.start_batch()
