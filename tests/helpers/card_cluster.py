"""A cluster in this process: the driver's calls are made one after the other, machines are added and killed between."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kernrec.cluster.card import Card
from kernrec.cluster.driver import CardLost, Reply

Event = Callable[["CardCluster", int], None]


class CardCluster:
    """Machines with one card each."""

    def __init__(self, folder: Path, machines: int, at_call: Event = lambda cluster, number: None) -> None:
        """Make a cluster.

        Args:
            folder: of the machines' folders.
            machines: to begin with.
            at_call: is called with the cluster and the number of calls that have ended, after each of them.
        """
        self._folder, self._machines, self._at_call = folder, machines, at_call
        self._cards: dict[str, Card] = {}
        self._calls: list[tuple[str, str, tuple[Any, ...]]] = []
        self._dead: set[str] = set()
        self._count = 0

    def join(self) -> list[str]:
        """As of `Cluster`."""
        new = [f"machine-{number}" for number in range(len(self._cards), self._machines)]
        self._cards |= {name: self.make_card(name) for name in new}
        return new

    def make_card(self, name: str) -> Card:
        """The actor on a machine."""
        return Card()

    def add_machine(self) -> None:
        """One more machine."""
        self._machines += 1

    def kill(self, card: str) -> None:
        """A machine dies, for good: no answer of it arrives any more."""
        self._dead.add(card)
        self._end(self._cards[card])

    def call(self, card: str, method: str, *arguments: object) -> None:
        """As of `Cluster`."""
        self._calls.append((card, method, arguments))

    def wait(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """As of `Cluster`: the oldest call is made now; each record of a visit counts as a call."""
        if not self._calls:
            return
        card, method, arguments = self._calls.pop(0)
        if card in self._dead and method == "hello":  # it waits for a machine
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
            yield card, CardLost("the machine died")

    def close(self) -> None:
        """As of `Cluster`."""
        for name, card in self._cards.items():
            if name not in self._dead:
                self._end(card)

    @staticmethod
    def _end(card: Card) -> None:
        if card._campaign is not None:
            card._campaign.end()
