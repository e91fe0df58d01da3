"""A card of a cluster: an actor that has one GPU, makes the visits that the driver gives it, and has a journal.

Every measurement is in the journal on the actor's own disk before the visit's answer is sent. The answer holds all
records of the actor's run. The next call means that the driver has them, and they are deleted. The records that a
killed run left in the journal are in the answer to `open`.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec import paths
from kernrec.cluster.versions import sources_hash
from kernrec.compile.nvrtc import compiler
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.chooser import Visit
from kernrec.measure.campaign.journal import Journal, JournalInUseError, journal_path
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import CampaignBudget, Progress
from kernrec.measure.measuring_device import MeasuringDevice, card_device, new_session, recorded_device
from kernrec.measure.request import CollectRequest
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store.measurement import MeasuredDevice, Measurement

Limits = tuple[float | None, float | None, float | None, bool]
"""Power limit in W, locked core and memory clocks in Hz, whether the card is divided (MIG)."""


def limits_of(device: MeasuredDevice) -> Limits:
    """How a card was set: measurements at other limits and clocks are of another setting."""
    return device.power_limit_w, device.locked_sm_clock_hz, device.locked_memory_clock_hz, bool(device.mig)


@dataclass(frozen=True)
class Greeting:
    """The answer to `hello`; the classes of other answers may differ where the sources do."""

    node: str
    """Name of the machine."""
    sources: str
    """Hash of kernrec's sources there."""


@dataclass(frozen=True)
class CardIdentity:
    """A card that is open, and the software beside it."""

    gpu: str
    """Name in the catalog."""
    node: str
    """Name of its machine."""
    uuid_hash: str | None = None
    """None for a recording."""
    driver: str | None = None
    compiler: str | None = None
    """Name and version; None for a recording, for which nothing is compiled."""
    measures_energy: bool = True
    limits: Limits = (None, None, None, False)

    @property
    def title(self) -> str:
        """As people are told."""
        return f"{self.gpu} on {self.node}"


@dataclass
class Answer:
    """The answer to `open` or `measure`."""

    title: str
    """Of the card, as far as it is known."""
    identity: CardIdentity | None = None
    """None where the card could not be opened."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """All that is in the card's journal."""
    notes: list[str] = field(default_factory=list)
    """For the user, one line each."""
    seconds: float = 0.0
    """That the visit took, of the device's clock."""
    over: bool = False
    """Whether nothing is left to measure in the visit."""
    spent: bool = False
    """Whether the card's time is."""
    error: str | None = None
    """Why the card takes no part any more, in one line; empty where it was not asked for."""


class Card:
    """The actor of one card."""

    def __init__(self) -> None:
        """Prepare a card; `open` opens it."""
        self._answer = Answer(socket.gethostname())
        self._journal: Journal | None = None
        self._campaign: Campaign | None = None
        self._earlier: tuple[Measurement, ...] = ()

    def hello(self) -> Greeting:
        """Where this is, and with which sources."""
        return Greeting(socket.gethostname(), sources_hash())

    def open(self, request: CollectRequest, name: str, folder: Path | None = None) -> Answer:
        """Open the card, unless it is open.

        Args:
            request: names the device, the effort and the time; its problems do not count.
            name: of the campaign in the names of journals: of the driver and its database.
            folder: of journals; None: the user's folder for what has to outlive a killed program.
        """
        opening = self._answer.identity is None
        return self._answered(
            lambda: self._open(request, name, folder or paths.state() / "cluster") if opening else None
        )

    def _open(self, request: CollectRequest, name: str, folder: Path) -> None:
        self._scratch = TemporaryDirectory(prefix="kernrec-")
        device = _device(request, Path(self._scratch.name))
        self._answer.title = f"{device.gpu} on {socket.gethostname()}"
        self._journal = _own_journal(folder, name)
        budget = CampaignBudget(request.budget.seconds)
        self._campaign = campaign = Campaign(
            WorkerClient(device.opening),
            [],
            self._journal,
            device.settings(new_session(), request.campaign_effort, budget, request.seed),
            CampaignHooks(lambda problem: self._earlier, report=self._take),
            device.compile_queue(),
        )
        campaign.begin()
        info = campaign.session.opened_info
        self._answer.identity = CardIdentity(
            info.gpu, socket.gethostname(), info.uuid_hash, info.driver, None if device.replayed else compiler(),
            campaign.session.traits.measures_energy, limits_of(info.measured_device()),
        )  # fmt: skip

    def measure(self, visit: Visit) -> Answer:
        """Make a visit. The driver has the answer before this one."""
        campaign, journal = self._campaign, self._journal
        assert campaign is not None
        assert journal is not None

        def make() -> None:
            journal.clear()
            begun_s = campaign.session.clock()
            self._earlier = visit.earlier
            self._answer.over = campaign.spent or campaign.measure(with_own_kernels(visit.planned))
            self._answer.seconds = campaign.session.clock() - begun_s
            self._answer.spent = campaign.spent

        return self._answered(make)

    def end(self) -> None:
        """The driver has the last answer, and wants no more."""
        if self._journal is not None:
            self._journal.clear()
            self._journal.close()
            self._journal = None
        if self._campaign is not None:
            self._campaign.end()

    def _answered(self, task: Callable[[], None]) -> Answer:
        """The answer once a task was done, which says what went wrong."""
        before, error = self._answer, None
        self._answer = Answer(before.title, before.identity)
        try:
            task()
        except KernrecError as failure:
            error = str(failure)
        except Exception as failure:  # whatever it is, the driver should hear of it
            error = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
        records = [] if self._journal is None else list(self._journal.records())
        self._answer = replace(self._answer, records=records, error=error)
        return self._answer

    def _take(self, progress: Progress) -> None:
        if progress.note is not None:
            self._answer.notes.append(progress.note)


def _own_journal(folder: Path, name: str) -> Journal:
    """Open the first journal that no other card of this machine has, and move records of killed cards into it."""
    own: Journal | None = None
    numbers = count()
    while own is None:
        with suppress(JournalInUseError):
            own = Journal(journal_path(folder / f"{name}-{next(numbers)}"), wait_s=0.0)
    for path in folder.glob(f"{name}-*{own.path.suffix}"):
        with suppress(JournalInUseError), Journal(path, wait_s=0.0) as left:
            own.append(*left.records())
            left.clear()
    return own


def with_own_kernels(planned: PlannedProblem) -> PlannedProblem:
    """A problem with the kernels of this process, whose compiled forms are cached, in place of the driver's."""
    tasks = [
        task if task.kernel is None else replace(task, kernel=find_kernel(task.kernel_name)) for task in planned.tasks
    ]
    return replace(planned, tasks=tuple(tasks))


def _device(request: CollectRequest, scratch: Path) -> MeasuringDevice:
    if request.recording is not None:
        return recorded_device(request.recording, request.gpu, request.seed)
    from kernrec.measure.device.nvml import choose_cards

    (card,) = choose_cards("auto")
    if request.gpu not in ("auto", "all") and find_gpu(request.gpu).name != find_gpu(card.name).name:
        raise UsageError("")  # no error: it was not asked for
    return card_device(card, scratch)
