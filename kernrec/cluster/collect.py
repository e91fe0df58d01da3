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
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, PlanOptions, plan_library, plan_recordings
from kernrec.measure.campaign.results import Progress
from kernrec.measure.collect import CollectRequest, CollectResult
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.device.replay import load_recordings, recorded_gpus
from kernrec.measure.measuring_device import new_session
from kernrec.op import Problem
from kernrec.store import Database

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
        with Journal(journal_path(request.database)) as journal:
            if request.database.exists():  # one that cannot take rows is an error now
                Database.open(request.database, read_only=False).close()
            leftover = ingest(journal, request.database, lambda text: report(Progress("", "", "", 0, 0, note=text)))
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
        stored = 0
        try:
            stored = ingest(self._journal, self._request.database)
        except KernrecError as failure:
            error = error or f"{failure}; what was measured is safe in {self._journal.path}"
        results = self._coordinator.results
        if error is None and not stopped and any(it.measured for it in results) and not any(it.best for it in results):
            error = "no config could be measured; the reasons are above"
        return CollectResult(results, stored, leftover, stopped, error)

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
        if request.device == DeviceKind.REPLAY:
            gpus = _replayed_gpus(request)
            recording = str(Path(str(request.recording)).absolute())
            setup |= {"device": request.device, "recording": recording, "gpu": gpus[number % len(gpus)]}
        elif request.gpu not in ("auto", "all"):
            setup |= {"gpu": find_gpu(request.gpu).name}
        return setup


def campaign_name(database: Path) -> str:
    """Names the journals of the cards: rows that one left behind go into the database that they were made for."""
    return sha256(f"{socket.gethostname()} {database.absolute()}".encode()).hexdigest()[:12]


def _replayed_gpus(request: CollectRequest) -> list[str | None]:
    assert request.recording is not None
    if request.gpu == "all":
        return list(recorded_gpus(request.recording))
    return [None if request.gpu == "auto" else find_gpu(request.gpu).name]


def planned_on(gpu: str, request: CollectRequest) -> list[PlannedProblem]:
    """The problems of a request on a kind of GPU, as `collect` plans them. Raises as `collect`."""
    if request.device == DeviceKind.REPLAY:
        assert request.recording is not None
        recordings = load_recordings(request.recording, gpu)
        if request.problems is not None:
            keys = {problem.key for _, problem in request.problems}
            recordings = [recording for recording in recordings if recording.problem.key in keys]
            if not recordings:
                raise UsageError(f"{request.recording} holds none of the requested problems of {gpu}")
        return plan_recordings(recordings, request.effort.configs, request.seed)
    from kernrec.recommender.context import Context
    from kernrec.recommender.estimate.model_store import ModelStore
    from kernrec.store import Stack

    problems: Iterable[tuple[str, Problem]] = request.problems or ()
    context = Context([], models=ModelStore(request.database.parent / "models", Stack([])))
    options = PlanOptions(request.effort.configs, request.effort.drawn, request.seed)
    return plan_library(problems, find_gpu(gpu), context, options)
