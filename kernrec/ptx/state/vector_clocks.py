"""Vector clocks: how far each warp knows the others, in kernels whose warps are ordered by more than block barriers.

Every warp counts its own releases; `seen[w, u]` is how far warp w knows what warp u did. A barrier in shared memory
takes along what its arrivals know, and gives it to those who see the phase complete (PTX ISA, section 8, "Memory
consistency model": release and acquire patterns). Copies that a barrier counts have a column for that barrier, in which
time is the number of its phases: who saw a phase complete saw the copies of it.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from kernrec.ptx.state.types import Array

_ROOM = 32  # columns for barriers that are added at once


def merged(first: Array, second: Array) -> Array:
    """Two snapshots in one; a snapshot made before a barrier was added knows nothing of its copies."""
    size = max(len(first), len(second))
    both: Array = np.maximum(*(np.pad(row, (0, size - len(row))) for row in (first, second)))
    return both


class VectorClocks:
    """Clocks of the warps of a batch and of the barriers in its shared memory, which are named by their places."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.seen = np.zeros((warps, warps + _ROOM), np.int32)
        """How far each warp knows every warp, and the copies of every barrier; on the diagonal its own time."""
        self._columns: dict[int, int] = {}  # by barrier: its column
        self._phase: dict[int, int] = {}  # by barrier: time of copies that finish now
        self._arrived: dict[int, Array] = {}  # by barrier: what the arrivals of this phase know
        self._completed: dict[int, Array] = {}  # by barrier: what the last phase brought along
        self.start_batch()

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self.seen[:] = 0
        np.fill_diagonal(self.seen, 1)
        for by_barrier in (self._columns, self._phase, self._arrived, self._completed):
            by_barrier.clear()

    def column(self, place: int) -> int:
        """The column of the copies that a barrier counts."""
        column = self._columns.get(place)
        if column is None:
            column = self._columns[place] = self.warps + len(self._columns)
            if column >= self.seen.shape[1]:
                self.seen = np.pad(self.seen, ((0, 0), (0, _ROOM)))
                for rows in (self._arrived, self._completed):
                    rows.update({key: np.pad(row, (0, _ROOM)) for key, row in rows.items()})
        return column

    def place_of(self, column: int) -> int:
        """The barrier of a column."""
        return next(place for place, own in self._columns.items() if own == column)

    def now(self, place: int) -> int:
        """The time of a copy that finishes now."""
        return self._phase.get(place, 1)

    def snapshot(self, warp: int) -> Array:
        """The knowledge of a warp now, for an arrival that may come later and tells nothing of what follows."""
        row: Array = self.seen[warp].copy()
        self.seen[warp, warp] += 1
        return row

    def arrive(self, row: Array, place: int) -> None:
        """An arrival at a barrier brings along what a snapshot holds."""
        before = self._arrived.get(place)
        row = np.pad(row, (0, self.seen.shape[1] - len(row)))
        self._arrived[place] = row if before is None else np.maximum(before, row)

    def release(self, warp: int, place: int) -> None:
        """A warp arrives at a barrier."""
        self.arrive(self.snapshot(warp), place)

    def complete(self, place: int) -> None:
        """A phase of a barrier completes."""
        column = self.column(place)
        row = self._arrived.get(place)
        row = np.zeros(self.seen.shape[1], np.int32) if row is None else row.copy()
        row[column] = self.now(place)
        self._phase[place] = self.now(place) + 1
        self._completed[place] = row

    def acquire(self, warp: int, place: int) -> None:
        """A warp saw the last phase of a barrier complete."""
        row = self._completed.get(place)
        if row is not None:
            self.learn(warp, row)

    def learn(self, warp: int, row: Array) -> None:
        """A warp knows from now on what a snapshot of this batch holds."""
        own = self.seen[warp, : len(row)]
        np.maximum(own, row, out=own)

    def join(self, warps: Array, snapshots: Sequence[Array] = ()) -> None:
        """Warps pass a barrier together, at which others arrived when they knew what these snapshots hold."""
        self.seen[warps] = reduce(merged, snapshots, self.seen[warps].max(axis=0))
        self.seen[warps, warps] += 1
