"""A card of a cluster: runs the campaign of a single machine on what the driver gives it, with a journal of its own.

The campaign is in a thread; `turn` passes the driver's reply to it and returns its next message. Every row is in this
card's journal, on its own disk, before it is sent; the journal is emptied when the driver has acknowledged what it
holds and no block is open. What a run that was killed left in it is sent when a card's next run begins.
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec import paths
from kernrec.cluster.messages import CardIdentity, Message, decode, encode, limits_of, problem_from_data
from kernrec.cluster.scheduler import Phase
from kernrec.cluster.shared_search import SharedSearch
from kernrec.cluster.versions import sources_hash
from kernrec.compile.nvrtc import compiler
from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.journal import Journal, JournalInUse
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem
from kernrec.measure.campaign.results import CampaignBudget, MeasuringEffort, Progress
from kernrec.measure.device.interface import DeviceKind
from kernrec.measure.device.replay import load_recordings
from kernrec.measure.measuring_device import MeasuringDevice, card_device, recorded_device
from kernrec.measure.worker.worker_client import Stopped, WorkerClient
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.op import Problem, problem_from_key
from kernrec.store.measurement import Measurement

_DELIVERY_S = 1.0
"""How often rows are sent to the driver, at least, while a batch is measured."""


_MOST_REPLAYS = 256
"""Processes of one machine that replay at once."""


@dataclass(frozen=True)
class CardSetup:
    """What a card's process is told at its start; plain values."""

    session: str
    """Of the rows that it makes; no other card has it."""
    campaign: str
    """Names its journal, with the card: a later run that fills the same database has the same name."""
    folder: str | None = None
    """Of journals, on its own disk; None: the user's folder for what has to outlive a killed program."""
    device: str = DeviceKind.CUDA
    gpu: str | None = None
    """Of a recording: the GPU to replay."""
    recording: str | None = None
    """A file that this machine can read."""
    seed: int = 0
    seconds: float | None = None
    effort: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `MeasuringEffort`."""


class CardWorker:
    """One card in its own process."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """Prepare a card; the first `turn` starts it. setup: fields of `CardSetup`."""
        self._setup = CardSetup(**setup)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def turn(self, reply: str) -> str:
        """Pass on the driver's reply to the last message, and return the next message; the first reply is ignored."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._inbox.put(decode(reply))
        return encode(self._outbox.get())

    def _run(self) -> None:
        why = ""
        try:
            with TemporaryDirectory(prefix="kernrec-") as scratch:
                self._measure(Path(scratch))
        except Stopped:
            pass
        except KernrecError as error:
            why = str(error)
        except Exception as error:  # whatever it is, the driver should hear of it
            why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        self._outbox.put({"ended": why, "node": socket.gethostname()})

    def _measure(self, scratch: Path) -> None:
        setup = self._setup
        device, problem_of = _device(setup, scratch)
        folder = paths.state() / "cluster" if setup.folder is None else Path(setup.folder)
        with _journal(folder, f"{setup.campaign}-{device.uuid_hash or device.gpu}", device.replayed) as journal:
            _CardCampaign(setup, device, problem_of, journal, self._ask).run()

    def _ask(self, message: Message) -> Message:
        self._outbox.put(message)
        reply = self._inbox.get()
        if reply.get("stop"):
            raise Stopped
        return reply


class _SendingJournal(Journal):
    """A journal that also keeps its new records for the driver."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.unsent: list[Mapping[str, Any]] = []

    def append(self, *records: Mapping[str, Any]) -> None:
        super().append(*records)
        self.unsent += records

    def left_behind(self) -> list[dict[str, Any]]:
        """What an earlier run left in the file."""
        return list(self._records())

    def forget(self) -> None:
        """The driver has everything: empty the file."""
        self.drain(lambda records: None)


def _journal(folder: Path, name: str, replayed: bool) -> _SendingJournal:
    """The journal of a card; of a recording, which many processes can replay at once, the first that is free."""
    for number in range(_MOST_REPLAYS if replayed else 0):
        with suppress(JournalInUse):
            return _SendingJournal(folder / f"{name}-{number}.journal")
    return _SendingJournal(folder / f"{name}.journal")


class _CardCampaign:
    """The campaign of one card, whose problems come from the driver."""

    def __init__(
        self,
        setup: CardSetup,
        device: MeasuringDevice,
        problem_of: Callable[[str], Problem],
        journal: _SendingJournal,
        ask: Callable[[Message], Message],
    ) -> None:
        self._setup = setup
        self._device = device
        self._problem_of = problem_of
        self._journal = journal
        self._send = ask
        self._sent_s = time.monotonic()
        self._notes: list[str] | None = []
        self._search: SharedSearch | None = None
        self._earlier: list[Measurement] = []

    def run(self) -> None:
        """Measure until the driver says that it is enough."""
        setup, device = self._setup, self._device
        effort, budget = MeasuringEffort(**setup.effort), CampaignBudget(setup.seconds)
        hooks = CampaignHooks(lambda problem: self._earlier, lambda: False, self._take)
        self._campaign = Campaign(
            WorkerClient(device.opening),
            self._problems(),
            self._journal,
            device.settings(setup.session, effort, budget, setup.seed),
            hooks,
            device.compile_queue(),
        )
        try:
            self._campaign.run()
        finally:
            if self._journal.unsent:
                with suppress(Stopped):
                    self._ask()
                    self._journal.forget()

    def _problems(self) -> Iterator[PlannedProblem]:
        self._hello()
        left_job: Message | None = None
        while True:
            closed = {} if left_job is None else {"left_job": left_job}
            reply = self._ask(want="job", **closed)
            self._journal.forget()
            if reply.get("done"):
                return
            planned, guide = problem_from_data(reply["problem"], self._problem_of, self._compiles, self._setup.seed)
            self._earlier = [Measurement.from_columns(row) for row in reply["earlier"]]
            begun_s = self._campaign.session.clock()
            if reply["phase"] == Phase.SCREEN:
                self._search = SharedSearch(len(planned.tasks), guide, self._ask)
                self._search.take(reply)
                yield _screened(planned, self._search, reply["share"])
            else:
                self._search = None
                yield _finished(planned, guide, reply["share"])
            result = self._campaign.results[-1]
            search = self._search
            failed = search is not None and search.granted > 0 and not result.measured
            spent = search is not None and (search.granted > 0 or search.left > 0)  # its time, or all that can be tried
            seconds = self._campaign.session.clock() - begun_s
            left_job = {"done": search is None or failed, "spent": spent, "seconds": seconds}

    @property
    def _compiles(self) -> bool:
        return not self._device.replayed

    def _hello(self) -> None:
        """Say what this card is, and hand over what an earlier run left."""
        info = self._campaign.session.opened_info
        identity = CardIdentity(
            info.gpu, socket.gethostname(), info.uuid_hash, sources_hash(), info.driver,
            compiler() if self._compiles else None, self._campaign.session.traits.measures_energy,
            limits_of(info.measured_device()),
        )  # fmt: skip
        left = self._journal.left_behind()
        reply = self._send({"hello": identity.as_dict() | {"left": left}})
        if "refused" in reply:
            raise Stopped
        self._journal.forget()
        notes, self._notes = self._notes or [], None
        for note in notes:
            self._ask(note=note)

    def _take(self, progress: Progress) -> None:
        """Called after each measurement and with notes: what is due is sent."""
        if progress.note is not None and self._notes is not None:
            self._notes.append(progress.note)  # nobody knows this card yet
        elif progress.note is not None:
            self._ask(note=progress.note)
        elif time.monotonic() - self._sent_s >= _DELIVERY_S:
            self._ask(step=[progress.done, progress.total])

    def _ask(self, **message: Any) -> Message:
        """Send a message with the records that were not sent yet; when this returns, the driver has them."""
        records, self._journal.unsent = self._journal.unsent, []
        reply = self._send({"records": records, **message} if records else message)
        self._sent_s = time.monotonic()
        if self._search is not None:
            self._search.take(reply)
        return reply


def _screened(planned: PlannedProblem, search: SharedSearch, share: float) -> PlannedProblem:
    return replace(planned, search=search, energy=EnergyRule.NONE, finals=False, share=share)


def _finished(planned: PlannedProblem, guide: ExpectedImprovement | None, share: float) -> PlannedProblem:
    return replace(planned, search=guide, most=0, share=share)


def _device(setup: CardSetup, scratch: Path) -> tuple[MeasuringDevice, Callable[[str], Problem]]:
    """(the card, what gives a problem by its key)."""
    if setup.device == DeviceKind.REPLAY:
        recordings = load_recordings(Path(str(setup.recording)), setup.gpu)
        problems = {recording.problem.key: recording.problem for recording in recordings}
        return recorded_device(Path(str(setup.recording)), recordings[0].gpu, setup.seed), problems.__getitem__
    from kernrec.measure.device.nvml import choose_cards

    (card,) = choose_cards("auto")
    if setup.gpu is not None and find_gpu(card.name).name != setup.gpu:
        raise Stopped
    return card_device(card, scratch), problem_from_key
