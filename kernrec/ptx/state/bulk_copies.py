"""Copies in bulk between memories, and the asynchronous engine that does them (PTX ISA, section 9.7.9.25.4).

A copy that a barrier waits for is finished by the engine, which then counts its bytes as come. One that is part of a
bulk group is finished when its thread waits for the group: until then nobody sees what it writes, and it still reads.
"""

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, field

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.types import Array

Reduce = Callable[[Array, Array], Array]
"""From the old values and those of a copy to the new ones."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a memory, in the order in which a copy moves them."""

    region: Region

    view: Array
    """The region's data as elements."""

    index: Array | slice
    """The element of `view` that each is."""

    inside: Array | None = None
    """Which of them there are; the others read as `fill` and are not written. None: all."""

    fill: int = 0
    """Bits of an element that is not there."""

    def read(self) -> Array:
        """The values; (elements)."""
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

    @property
    def span(self) -> tuple[int, int]:
        """The first byte of the region that they are in, and the one after the last."""
        size = self.view.itemsize
        if isinstance(self.index, slice):
            return self.index.start * size, self.index.stop * size
        return int(self.index.min()) * size, (int(self.index.max()) + 1) * size

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

    access: Access

    source: Elements

    targets: list[Elements]
    """Of a multicast, the same in several blocks."""

    barriers: list[int] = field(default_factory=list)
    """Places of the barriers that count the bytes, one for each target."""

    bytes: int = 0
    """How many they count: those outside of a tensor, too."""

    reduce: Reduce | None = None
    """How values are combined with those in the target; None: they replace them."""

    data: Array | None = None
    """The values of the source, once they were read."""

    reading: Array | None = None
    """The pieces of a source in shared memory that races are checked for."""

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

    def __init__(self, count: Callable[[Elements, int, str], None], races: PhaseRaceDetector | None) -> None:
        """`count(elements, lane, kind)` counts what a copy moves; kind is `read`, `write` or `atomic`."""
        self._count = count
        self._races = races
        self._under_way: dict[int, BulkCopy] = {}  # by identity: copies that barriers wait for
        self._open: dict[int, list[BulkCopy]] = {}  # by lane: copies that no group has yet
        self._committed: dict[int, list[list[BulkCopy]]] = {}  # by lane: groups, oldest first

    def start_batch(self) -> None:
        """Forgets the groups of the last batch."""
        self._open.clear()
        self._committed.clear()
        self._under_way.clear()

    def start(self, copy: BulkCopy) -> None:
        """Starts a copy; one without a barrier is of the present group of its thread."""
        self._count(copy.source, copy.lane, "read")
        for target in copy.targets:
            self._count(target, copy.lane, "write" if copy.reduce is None else "atomic")
        if self._races is not None:
            site = copy.access.location
            if copy.source.region.space == "shared":
                copy.reading = self._races.begin_read(site, copy.lane, copy.source.span)
            for target, barrier in self._written(copy):
                self._races.begin_write(site, copy.lane, target.span, barrier)
        if copy.barriers:
            self._under_way[id(copy)] = copy
        else:
            self._open.setdefault(copy.lane, []).append(copy)

    def finish(self, copy: BulkCopy) -> None:
        """Finishes a copy that a barrier waits for."""
        self._fetch(copy)
        copy.store()
        del self._under_way[id(copy)]
        if self._races is not None:
            for target, barrier in self._written(copy):
                self._races.end_write(target.span, barrier)

    def _fetch(self, copy: BulkCopy) -> None:
        copy.fetch()
        if self._races is not None and copy.reading is not None:
            self._races.end_read(copy.lane, copy.source.span, copy.reading)
            copy.reading = None

    @staticmethod
    def _written(copy: BulkCopy) -> list[tuple[Elements, int]]:
        """The targets that a copy overwrites, and their barriers; what it combines with may be combined by others."""
        return list(zip(copy.targets, copy.barriers, strict=False)) if copy.reduce is None else []

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
                self._fetch(copy)
                if not only_read:
                    copy.store()
            if not only_read:
                del groups[: len(waited)]

    def finish_all(self) -> None:
        """Finishes every copy of a group: the kernel ends."""
        committed = [copy for lane in self._committed.values() for group in lane for copy in group]
        for copy in committed + [copy for copies in self._open.values() for copy in copies]:
            copy.store()
        self.start_batch()

    def unfinished(self) -> BulkCopy | None:
        """A copy that still reads or writes shared memory, when the kernel ends; where races are checked."""
        groups = [*self._open.values(), *(group for lane in self._committed.values() for group in lane)]
        reading = [copy for group in groups for copy in group if copy.reading is not None]
        return next(iter([*self._under_way.values(), *reading]), None)


class AsyncEngine:
    """The operations under way beside the threads of a batch, oldest first: copies, and arrivals at barriers.

    An operation is finished as late as it may be: when the threads that can still run all wait, the oldest one that a
    thread waits for is finished, and so on until a thread goes on. So a thread that does not wait for an operation does
    not see what it brings, even where it waited for another that was started later.
    """

    def __init__(self) -> None:
        self._under_way: list[tuple[Callable[[], object], Collection[int]]] = []

    def start_batch(self) -> None:
        """Forgets the operations of the last batch."""
        self._under_way.clear()

    def start(self, finish: Callable[[], object], barriers: Collection[int] = ()) -> None:
        """Starts an operation, of which `finish` does all that can be seen, and that counts at `barriers` (places)."""
        self._under_way.append((finish, barriers))

    def finish_one(self, awaited: Set[int] = frozenset()) -> bool:
        """Finishes the oldest operation that counts at one of these barriers, else the oldest; False: there is none."""
        if not self._under_way:
            return False
        matches = (i for i, (_, barriers) in enumerate(self._under_way) if not awaited.isdisjoint(barriers))
        finish, _ = self._under_way.pop(next(matches, 0))
        finish()
        return True
