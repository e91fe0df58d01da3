"""Asynchronous copies to shared memory that were started and not yet waited for, per thread and in order.

The bytes reach shared memory only when the thread waits for them: a kernel that forgets to wait reads what was there
before.
"""

import numpy as np

from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class _Copy:
    """A copy that some lanes started."""

    lanes: Array
    """Numbers of the lanes that it is still to be done for."""

    group: Array
    """Commit group of each lane."""

    view: Array
    """Shared memory as elements."""

    index: Array
    """First element of each lane's destination in `view`."""

    data: Array
    """(lanes, elements)."""

    def apply(self, done: Array) -> "_Copy | None":
        """Copies for the lanes of the mask `done`; the rest of the copy, or None."""
        count = int(np.count_nonzero(done))
        if count == 0:
            return self
        elements = range(self.data.shape[1])
        if count == len(self.lanes):
            for k in elements:
                self.view[k:][self.index] = self.data[:, k]
            return None
        for k in elements:
            self.view[k:][self.index[done]] = self.data[done, k]
        left = ~done
        return _Copy(self.lanes[left], self.group[left], self.view, self.index[left], self.data[left])


class AsyncCopies:
    """The copies in flight of a batch."""

    def __init__(self, lanes: int) -> None:
        """`lanes`: of the batch."""
        self._committed = np.zeros(lanes, np.int64)  # groups that each lane committed
        self._pending: list[_Copy] = []

    def start_batch(self) -> None:
        """Forgets the copies of the last batch."""
        self._committed[:] = 0
        self._pending.clear()

    def start(self, lanes: Array, view: Array, index: Array, data: Array) -> None:
        """Starts a copy of `data` (lanes, elements) to `view[index + element]`."""
        self._pending.append(_Copy(lanes, self._committed[lanes], view, index, data))

    def commit(self, lanes: Array) -> None:
        """Ends the present commit group of these lanes."""
        self._committed[lanes] += 1

    def wait(self, lanes: Array, allowed: int | None) -> None:
        """Completes the copies of `lanes` but for the `allowed` newest groups (None: all, committed or not)."""
        if not self._pending:
            return
        waiting = np.zeros(len(self._committed), np.bool_)
        waiting[lanes] = True
        left = []
        for copy in self._pending:
            done = waiting[copy.lanes]
            if allowed is not None:
                done &= copy.group < self._committed[copy.lanes] - allowed
            rest = copy.apply(done)
            if rest is not None:
                left.append(rest)
        self._pending = left
