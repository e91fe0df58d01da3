"""`kernrec collect --cluster` as a library call: a campaign on all cards of a cluster, rows in the driver's database.

    Cluster starts a process for each card  ->  CardWorker runs a campaign  <->  Coordinator grants, keeps, replies

The loop here passes messages between them. What a cluster is made of is behind `Cluster`: Ray's (`ray_cluster.py`), or
threads of this process, with which tests try the same campaign.
"""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from kernrec.cluster.coordinator import CampaignPlan, Coordinator
from kernrec.cluster.messages import Message, decode, encode
from kernrec.cluster.versions import sources_hash
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import Progress
from kernrec.measure.collect import (
    CollectRequest,
    CollectResult,
    concluded,
    open_journal,
    plan_for_card,
    planning_context,
    recorded_work_on,
    replayed_gpus,
)
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.measuring_device import new_session

_LOOK_S = 2.0
"""How often it is seen whether cards have joined."""
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


def collect_on(
    cluster: Cluster,
    request: CollectRequest,
    report: Callable[[Progress], None] = lambda progress: None,
    stopping: Callable[[], bool] = lambda: False,
) -> CollectResult:
    """Measure what is requested on a cluster, which is closed at the end. Arguments and errors as `collect`."""
    try:
        with open_journal(request, report) as (journal, leftover):
            return _Run(cluster, request, journal, report, stopping).run(leftover)
    finally:
        cluster.close()


class _Run:
    """One run of the driver."""

    def __init__(
        self,
        cluster: Cluster,
        request: CollectRequest,
        journal: Journal,
        report: Callable[[Progress], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._request = request
        self._journal = journal
        self._stopping = stopping
        self._session = new_session()
        self._replayed = replayed_gpus(request) if request.device == DeviceKind.REPLAY else []
        plan = CampaignPlan(
            lambda gpu: planned_on(gpu, request), request.database, request.resume, request.budget.configs
        )
        self._coordinator = Coordinator(plan, journal, sources_hash(), report)

    def run(self, leftover: int) -> CollectResult:
        """Pass messages until all is measured."""
        error: str | None = None
        stopped = False
        try:
            stopped = not self._serve()
        except KernrecError as failure:
            error = str(failure)
        result = CollectResult(self._coordinator.results, 0, leftover, stopped, error)
        return concluded(result, self._journal, self._request.database)

    def _serve(self) -> bool:
        """Whether everything was measured; False: it was told to stop."""
        coordinator, cluster = self._coordinator, self._cluster
        looked_s, alone_s = 0.0, time.monotonic()
        present: set[str] = set()
        while not coordinator.finished or present:
            if self._stopping():
                return False
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S and not coordinator.finished:
                looked_s = now_s
                for card in cluster.join(self._setup):
                    present.add(card)
                    cluster.turn(card, "{}")
            if present:
                alone_s = now_s
            elif now_s - alone_s > _NO_CARD_S:
                raise KernrecError(
                    f"no card of the cluster answers for {_NO_CARD_S:g} s; the same command goes on when there is one"
                )
            for card, text, why in cluster.wait(0.2):
                if text is None or "ended" in (message := decode(text)):
                    present.discard(card)
                    self._coordinator.lose(card, why if text is None else str(message["ended"]))
                    cluster.end(card)
                else:
                    self._reply(card, coordinator.take(card, message))
                for waiting in coordinator.waiting:
                    self._reply(waiting, coordinator.retry(waiting))
        return True

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


def planned_on(gpu: str, request: CollectRequest) -> list[PlannedProblem]:
    """The problems of a request on a kind of GPU, as `collect` plans them. Raises as `collect`."""
    if request.device == DeviceKind.REPLAY:
        return recorded_work_on(gpu, request).problems
    return plan_for_card(request, find_gpu(gpu), planning_context(request))
