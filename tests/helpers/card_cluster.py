"""An in-process cluster that runs the driver's calls one by one, so that tests can add and kill machines in between."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kernrec.cluster.driver import GpuLost, Reply
from kernrec.cluster.gpu_actor import GpuActor

Event = Callable[["CardCluster", int], None]


class CardCluster:
    """In-process stand-in for `Cluster` whose machines have one GPU each."""

    def __init__(self, folder: Path, machines: int, at_call: Event = lambda cluster, number: None) -> None:
        """Create a cluster.

        Args:
            folder: parent folder of the machines' folders.
            machines: initial number of machines.
            at_call: called after each call, with the cluster and the number of calls so far.
        """
        self._folder, self._machines, self._at_call = folder, machines, at_call
        self._cards: dict[str, GpuActor] = {}
        self._calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self._dead: set[str] = set()
        self._count = 0

    def join(self) -> list[str]:
        """See `Cluster.join`."""
        new = [f"machine-{number}" for number in range(len(self._cards), self._machines)]
        self._cards |= {name: self.make_card(name) for name in new}
        return new

    def make_card(self, name: str) -> GpuActor:
        """Return the actor for the GPU of machine `name`."""
        return GpuActor()

    def add_machine(self) -> None:
        """Add a machine, which joins at the next `join`."""
        self._machines += 1

    def kill(self, card: str) -> None:
        """Kill the machine of a GPU for good; its later replies are lost."""
        self._dead.add(card)
        self._end(self._cards[card])

    def call(self, card: str, method: str, *arguments: object) -> None:
        """See `Cluster.call`."""
        self._calls.append((card, method, arguments))

    def wait(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """See `Cluster.wait`; run the oldest call now, and count each record of a visit as a call."""
        if not self._calls:
            return
        card, method, arguments = self._calls.pop(0)
        if card in self._dead and method == "hello":  # the call waits for a new machine
            return
        replies: Iterable[Reply] = ()
        if card not in self._dead:
            reply = getattr(self._cards[card], method)(*arguments)
            replies = reply if method == "measure" else (reply,)
        for reply in replies:
            self._count += 1
            self._at_call(self, self._count)
            if card in self._dead:
                break
            yield card, reply
        if card in self._dead:
            yield card, GpuLost("the machine died")

    def close(self) -> None:
        """See `Cluster.close`."""
        for name, card in self._cards.items():
            if name not in self._dead:
                self._end(card)

    @staticmethod
    def _end(card: GpuActor) -> None:
        if card._campaign is not None:
            card._campaign.end()
