"""The driver of a campaign on all cards of a cluster: passes messages between them and the coordinator.

    Cluster starts a process for each card  ->  CardWorker runs a campaign  <->  Coordinator grants, keeps, replies

What a cluster is made of is behind `Cluster`: Ray's (`ray_cluster.py`), or threads of this process, with which tests
try the same campaign.
"""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from kernrec.cluster.campaign_plan import CampaignPlan
from kernrec.cluster.coordinator import Coordinator
from kernrec.cluster.messages import Message, decode, encode
from kernrec.cluster.versions import sources_hash
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.early_ingest import EarlyIngest
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.results import Progress
from kernrec.measure.collect import CollectRequest, CollectResult, concluded, replayed_gpus
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.measuring_device import new_session

_LOOK_S = 2.0
"""How often it is seen whether cards have joined."""
_HELLO_S = 20.0
"""How long nothing is given out while cards that were there at the start have not said what they still have: rows of an
earlier run, which are not measured again."""
_NO_CARD_S = 60.0
"""How long nothing may happen while no card is there, as while machines start again."""


class Cluster(Protocol):
    """The processes of a campaign's cards."""

    def join(self, setup_of: "Callable[[int], dict[str, object]]") -> list[str]:
        """Start processes for cards that have none yet; returns the names of the new ones.

        Args:
            setup_of: the setup of a process, by a number that no other has.
        """

    def turn(self, card: str, reply: str) -> None:
        """Pass a reply to a card, whose next message `wait` gives."""

    def wait(self, seconds: float) -> Iterable[tuple[str, str | None, str]]:
        """(card, its message or None for one that is lost, why it was lost) of those that came within some seconds."""

    def end(self, card: str) -> None:
        """The process of a card is not needed any more."""

    def close(self) -> None:
        """End all that was started."""


class Driver:
    """One run of the driver."""

    def __init__(
        self,
        cluster: Cluster,
        request: CollectRequest,
        plan: CampaignPlan,
        journal: Journal,
        caller: tuple[Callable[[Progress], None], Callable[[], bool]],
    ) -> None:
        """Prepare a run.

        Args:
            cluster: its cards.
            request: where to measure, at which effort and within which time; its problems do not count.
            plan: what to measure.
            journal: of the database.
            caller: what is called with each measurement and note, and what says whether to stop.

        Raises:
            UsageError: nothing can be replayed.
        """
        report, self._stopping = caller
        self._cluster = cluster
        self._request = request
        self._journal = journal
        self._early = EarlyIngest(journal, request.database)
        self._session = new_session()
        self._replayed = replayed_gpus(request) if request.device == DeviceKind.REPLAY else []
        self._coordinator = Coordinator(plan, journal, sources_hash(), report)

    def run(self, leftover: int) -> CollectResult:
        """Pass messages until all is measured."""
        error: str | None = None
        stopped = False
        try:
            stopped = not self._serve()
        except KernrecError as failure:
            error = str(failure)
        self._early.end()
        result = CollectResult(self._coordinator.results, self._early.stored, leftover, stopped, error)
        return concluded(result, self._journal, self._request.database)

    def _serve(self) -> bool:
        """Whether everything was measured; False: it was told to stop."""
        coordinator, cluster = self._coordinator, self._cluster
        looked_s, alone_s = 0.0, time.monotonic()
        gathering = _Gathering()
        present: set[str] = set()
        spent = False
        while present or not (coordinator.finished or spent):
            if self._stopping():
                return False
            self._early.look()
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S and not coordinator.finished:
                looked_s = now_s
                joined = cluster.join(self._setup)
                if joined and gathering.begin(now_s):
                    coordinator.expect(joined)
                for card in joined:
                    present.add(card)
                    cluster.turn(card, "{}")
            if gathering.ends(now_s):
                coordinator.expect(())
                self._retry()
            if present:
                alone_s = now_s
            elif now_s - alone_s > _NO_CARD_S:
                raise KernrecError(
                    f"no card of the cluster answers for {_NO_CARD_S:g} s; the same command goes on when there is one"
                )
            for card, text, why in cluster.wait(0.2):
                message = {"ended": why} if text is None else decode(text)
                if "ended" in message:
                    present.discard(card)
                    if text is not None and not message["ended"] and coordinator.needs(card):
                        spent = True  # its time: it is not started again
                    else:
                        cluster.end(card)
                    coordinator.lose(card, str(message["ended"]), str(message.get("node", "")))
                else:
                    self._reply(card, coordinator.take(card, message))
                self._retry()
        return True

    def _retry(self) -> None:
        for card in self._coordinator.waiting:
            self._reply(card, self._coordinator.retry(card))

    def _reply(self, card: str, reply: Message | None) -> None:
        if reply is not None:
            self._cluster.turn(card, encode(reply))

    def _setup(self, number: int) -> dict[str, object]:
        request = self._request
        setup: dict[str, object] = {
            "session": f"{self._session}-{number}",
            "effort": asdict(request.effort) | {"configs": None},
            "seconds": request.budget.seconds,
            "seed": request.seed + number,
            "campaign": campaign_name(request.database),
        }
        if gpus := self._replayed:
            recording = str(Path(str(request.recording)).absolute())
            setup |= {"device": request.device, "recording": recording, "gpu": gpus[number % len(gpus)]}
        elif request.gpu not in ("auto", "all"):
            setup |= {"gpu": find_gpu(request.gpu).name}
        return setup


def campaign_name(database: Path) -> str:
    """Names the journals of the cards: rows that one left behind go into the database that they were made for."""
    return sha256(f"{socket.gethostname()} {database.absolute()}".encode()).hexdigest()[:12]


class _Gathering:
    """The wait for the cards that join first: work is spread over all of them. Who joins later is not waited for."""

    def __init__(self) -> None:
        self._begun = self._ended = False
        self._until_s = 0.0

    def begin(self, now_s: float) -> bool:
        """Cards joined; whether they are the first, and are waited for from now on."""
        first, self._begun = not self._begun, True
        if first:
            self._until_s = now_s + _HELLO_S
        return first

    def ends(self, now_s: float) -> bool:
        """Whether the wait is over; True once."""
        over = self._begun and not self._ended and now_s >= self._until_s
        self._ended |= over
        return over
