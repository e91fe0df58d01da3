"""What was started and goes on beside the threads: copies in bulk, and arrivals at barriers once something is done.

An operation is finished as late as it may be: when the threads that can still run all wait, the oldest one that a
thread waits for is finished, and so on until a thread goes on. So a thread that does not wait for an operation does not
see what it brings, even where it waited for another that was started later.
"""

from collections.abc import Callable, Collection, Set


class AsyncEngine:
    """The operations under way of a batch of blocks, oldest first."""

    def __init__(self) -> None:
        self._under_way: list[tuple[Callable[[], object], Collection[int]]] = []

    def start_batch(self) -> None:
        """Forgets the operations of the last batch."""
        self._under_way.clear()

    def start(self, finish: Callable[[], object], barriers: Collection[int] = ()) -> None:
        """Starts an operation, of which `finish` does all that can be seen.

        `barriers`: places of those that it counts at."""
        self._under_way.append((finish, barriers))

    def finish_one(self, awaited: Set[int] = frozenset()) -> bool:
        """Finishes the oldest operation that counts at one of these barriers, else the oldest.

        Returns:
            Whether there was any."""
        if not self._under_way:
            return False
        matches = (i for i, (_, barriers) in enumerate(self._under_way) if not awaited.isdisjoint(barriers))
        finish, _ = self._under_way.pop(next(matches, 0))
        finish()
        return True
