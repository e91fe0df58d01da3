"""Which sectors of global memory each thread block touches: what blocks share is what caches can save.

Counting requests says how much a block requests; how much of that another block requests too is seen only in the
addresses. `TouchedSectors` marks, for each buffer and block, the 4-byte words that were read and written: neighboring
blocks may share a 32-byte sector and no byte of it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from kernrec.ptx.state.access_cost import AccessPattern
from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

SECTOR = 32
"""Bytes that move between caches and memory together."""
_WORD = 4
_WORDS = SECTOR // _WORD
_MARKS_OF_SECTOR = np.uint64  # as wide as the marks of its words
_MOST_MARKED = 1 << 14  # at once
_FINE_BYTES = 1 << 30  # a larger buffer is marked by sectors: address space is limited


class Buffer(Protocol):
    """A buffer of global memory."""

    name: str
    size: int
    """In bytes."""


@dataclass(frozen=True)
class Touched:
    """Words that a block touched of a part of a buffer; the part is the same for all blocks that are compared."""

    marks: Array
    """Whether it touched each 4-byte word (of a very large buffer each sector) from the first one on: bool, whole
    sectors."""

    first: int
    """Number of the first word (or sector) in the buffer."""

    fine: bool
    """Whether there is a mark for each word."""

    @property
    def words(self) -> Array:
        """4-byte words, ascending (of a very large buffer the first words of its sectors)."""
        words: Array = (np.flatnonzero(self.marks) + self.first) * (1 if self.fine else _WORDS)
        return words

    @cached_property
    def _sector_marks(self) -> Array:
        marks: Array = self.marks.view(_MARKS_OF_SECTOR) != 0 if self.fine else self.marks
        return marks

    @property
    def sectors(self) -> int:
        """Number of sectors of 32 bytes."""
        return int(np.count_nonzero(self._sector_marks))

    def new_bytes(self, other: "Touched") -> float:
        """Bytes that `other`, the next block, moves beside those of this one, if more blocks follow in the same way.

        A block that touches the rest of a sector where this one stops, and so on, moves its own bytes, wherever its
        sectors begin; where it touches bytes elsewhere, whole sectors move.
        """
        sectors = int(np.count_nonzero(other._sector_marks > self._sector_marks))
        new = other.marks > self.marks
        words = int(np.count_nonzero(new))
        if not (self.fine and words):
            return float(sectors * SECTOR)
        begins, ends = new[1:] > new[:-1], new[1:] < new[:-1]
        # Runs of new words that go on where this block stopped, or end where it begins.
        before, behind = np.count_nonzero(begins & self.marks[:-1]), np.count_nonzero(ends & self.marks[1:])
        share = max(int(before), int(behind)) / (int(np.count_nonzero(begins)) + int(new[0]))
        return share * words * _WORD + (1.0 - share) * sectors * SECTOR


def without_repeats(values: Array) -> Array:
    """Values without those that equal the one before: of ascending ones each once, faster than `np.unique`."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    distinct: Array = values[first]
    return distinct


def among(values: Array, ascending: Array) -> Array:
    """Which values are among others, which ascend."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    present: Array = ascending[place] == values
    return present


def _unit(buffer: Buffer) -> int:
    """Bytes that a mark stands for."""
    return _WORD if buffer.size <= _FINE_BYTES else SECTOR


class _Window:
    """Marks of the part of a buffer that was touched so far: a bitmap of all of it would be slow to come by."""

    def __init__(self, rows: int, first: int) -> None:
        self.first = first
        """Unit of the buffer that the first mark stands for."""
        self.marks = np.zeros((rows, 0), np.bool_)
        """(rows, units)."""

    def mark(self, rows: Array, units: Array, low: int, high: int) -> None:
        """Marks units of rows; none of them is less than `low` or more than `high`."""
        width = self.marks.shape[1]
        if low < self.first or high >= self.first + width:
            # Twice as wide each time; pages that are never marked cost no memory.
            first = max(min(low, self.first - width), 0) if low < self.first else self.first
            end = max(high + 1, self.first + (2 if high >= self.first + width else 1) * width)
            first, end = first // _WORDS * _WORDS, -(-end // _WORDS) * _WORDS
            wider = np.zeros((len(self.marks), end - first), np.bool_)
            wider[:, self.first - first : self.first - first + width] = self.marks
            self.first, self.marks = first, wider
        # An index along one axis is some times as fast as one along each.
        self.marks.reshape(-1)[(rows * self.marks.shape[1] + (units - self.first)).reshape(-1)] = True


class TouchedSectors:
    """The words that each of the thread blocks with the linear numbers `blocks` touches; other blocks are ignored."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self._rows = {block: row for row, block in enumerate(dict.fromkeys(blocks))}
        self._batch: Array = np.zeros(0, np.int64)  # row of each block of the present batch
        self._warps = 1  # of a block
        self._idle = False  # whether the present batch has none of the blocks
        self._marks: dict[tuple[str, bool], _Window] = {}
        self._buffers: dict[str, Buffer] = {}
        # Accesses of the batch that are not yet marked: bytes of the buffer that patterns are relative to.
        self._waiting: dict[tuple[str, bool, int, AccessPattern], tuple[list[int], list[Array]]] = {}

    def start_batch(self, block_numbers: Sequence[int], warps: int) -> None:
        """The thread blocks with these linear numbers run next, each of so many warps."""
        self._mark_waiting()
        rest = len(self._rows)  # one row for all the others
        self._idle = not any(block in self._rows for block in block_numbers)
        self._batch = np.array([self._rows.get(block, rest) for block in block_numbers], np.int64)
        self._warps = warps

    def record_pattern(
        self, region: Buffer, size: int, pattern: AccessPattern, places: Iterable[int] | Array, kind: str
    ) -> None:
        """Marks what an access touches, at each of some places.

        Args:
            region: the buffer.
            size: bytes that a lane accesses.
            pattern: of the lanes.
            places: bytes of the buffer that the pattern is relative to.
            kind: `read`, `write` or `atomic` (both).
        """
        if self._idle:
            return
        self._buffers[region.name] = region
        for written in (False, True) if kind == "atomic" else (kind == "write",):
            single, many = self._waiting.setdefault((region.name, written, size, pattern), ([], []))
            if isinstance(places, np.ndarray):
                many.append(places)
            else:
                single.extend(places)

    def record(self, region: Buffer, size: int, block_of: Array, places: Array, kind: str) -> None:
        """Marks what an access touches.

        Args:
            region: the buffer.
            size: bytes that a lane accesses.
            block_of: position of each lane's block in the batch; (lanes).
            places: byte of the buffer that each lane accesses; (lanes).
            kind: `read`, `write` or `atomic` (both).
        """
        if self._idle:
            return
        self._buffers[region.name] = region
        unit = _unit(region)
        for written in (False, True) if kind == "atomic" else (kind == "write",):
            first = places // unit
            for word in range(max(size // unit, 1)):
                self._mark(region, written, self._batch[block_of], first, np.array([word]))

    def _mark_waiting(self) -> None:
        """Marks the accesses of the batch, those of one pattern together: in a loop many are at the same places."""
        waiting, self._waiting = self._waiting, {}
        for (name, written, size, pattern), (single, many) in waiting.items():
            region = self._buffers[name]
            unit = _unit(region)
            begins = np.unique(np.concatenate([np.array(single, np.int64), *many]))
            for rest in {*(begins % unit).tolist()}:
                blocks, words = pattern.words_by_block(rest, size, unit, self._warps)
                starts = begins[begins % unit == rest] // unit
                at_once = max(_MOST_MARKED // len(words), 1)
                for first in range(0, len(starts), at_once):
                    self._mark(region, written, self._batch[blocks], words, starts[first : first + at_once])

    def _mark(self, region: Buffer, written: bool, rows: Array, units: Array, starts: Array) -> None:
        """Marks units of rows, each behind each start."""
        low, high = int(units.min() + starts.min()), int(units.max() + starts.max())
        window = self._marks.get((region.name, written))
        if window is None:
            window = self._marks[region.name, written] = _Window(len(self._rows) + 1, low)
        window.mark(rows, units + starts[:, None], low, high)

    def by_block(self, written: bool) -> dict[str, dict[int, Touched]]:
        """By buffer and block: what the block read, or wrote."""
        self._mark_waiting()
        result: dict[str, dict[int, Touched]] = {}
        for (buffer, write), window in self._marks.items():
            if write == written:
                fine = _unit(self._buffers[buffer]) == _WORD
                result[buffer] = {b: Touched(window.marks[row], window.first, fine) for b, row in self._rows.items()}
        return result
