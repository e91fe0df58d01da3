"""What was started and goes on beside the threads: copies in bulk, and arrivals at barriers once something is done.

An operation is finished as late as it may be: when the threads that can still run all wait, the oldest one is finished,
and so on until a thread goes on. So a thread that does not wait for an operation does not see what it brings.
"""

from collections import deque
from collections.abc import Callable


class AsyncEngine:
    """The operations under way of a batch of blocks, oldest first."""

    def __init__(self) -> None:
        self._under_way: deque[Callable[[], object]] = deque()

    def start_batch(self) -> None:
        """Forgets the operations of the last batch."""
        self._under_way.clear()

    def start(self, finish: Callable[[], object]) -> None:
        """Starts an operation, of which `finish` does all that can be seen."""
        self._under_way.append(finish)

    def finish_oldest(self) -> bool:
        """Finishes one operation; whether there was any."""
        if not self._under_way:
            return False
        self._under_way.popleft()()
        return True
