"""A cluster whose cards are threads of this process: a whole campaign without Ray, machines added and killed."""

import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from kernrec.cluster.card_worker import CardWorker


class ThreadCluster:
    """Machines with one card each; the journals of a machine are in its folder."""

    def __init__(self, folder: Path, machines: int, at_message: "Callable[[ThreadCluster, int], None] | None" = None):
        """Make a cluster.

        Args:
            folder: of the machines' folders.
            machines: to begin with.
            at_message: is called with the cluster and the number of messages so far, before each is passed on.
        """
        self._folder = folder
        self._machines = machines
        self._at_message = at_message
        self._cards: dict[str, CardWorker] = {}
        self._messages: queue.SimpleQueue[tuple[str, str | None, str]] = queue.SimpleQueue()
        self._count = 0

    def join(self, setup_of: Callable[[int], dict[str, object]]) -> list[str]:
        """Start the cards of machines that have none yet."""
        new = []
        while len(self._cards) < self._machines:
            number = len(self._cards)
            setup = setup_of(number) | {"folder": str(self._folder / f"machine-{number}")}
            self._cards[f"machine-{number}"] = CardWorker(setup)
            new.append(f"machine-{number}")
        return new

    def add_machine(self) -> None:
        """One more machine."""
        self._machines += 1

    def kill(self, card: str) -> None:
        """A machine dies: nothing that it says arrives any more."""
        worker = self._cards[card]
        for _ in range(8):
            worker._inbox.put({"stop": True})
        if worker._thread is not None:
            worker._thread.join(30.0)
        self._messages.put((card, None, "the machine died"))

    def turn(self, card: str, reply: str) -> None:
        """As of `Cluster`."""
        worker = self._cards[card]
        threading.Thread(target=lambda: self._messages.put((card, worker.turn(reply), "")), daemon=True).start()

    def wait(self, seconds: float) -> Iterable[tuple[str, str | None, str]]:
        """As of `Cluster`."""
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            return []
        self._count += 1
        if self._at_message is not None:
            self._at_message(self, self._count)
        return [message]

    def end(self, card: str) -> None:
        """As of `Cluster`."""

    def close(self) -> None:
        """As of `Cluster`."""
        for worker in self._cards.values():
            for _ in range(8):
                worker._inbox.put({"stop": True})
            if worker._thread is not None:
                worker._thread.join(30.0)
