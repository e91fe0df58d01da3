"""A GPU of a cluster: an actor that has one GPU and makes the visits that the driver assigns to it.

Each record of a visit is sent to the driver at once, which writes it to its journal; the answer follows. An actor
stores nothing, so its process or machine may die at any time.
"""

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec.cluster.versions import sources_hash
from kernrec.compile.nvrtc import compiler
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.chooser import Visit
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import CampaignBudget, Progress
from kernrec.measure.measuring_device import MeasuringDevice, card_device, new_session, recorded_device
from kernrec.measure.request import CollectRequest
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store.measurement import MeasuredDevice, Measurement

Limits = tuple[float | None, float | None, float | None, bool]
"""Power limit in W, locked core and memory clocks in Hz, whether the GPU is divided (MIG)."""


def limits_of(device: MeasuredDevice) -> Limits:
    """Return the limits and clocks of a GPU; measurements at others do not count for it."""
    return device.power_limit_w, device.locked_sm_clock_hz, device.locked_memory_clock_hz, bool(device.mig)


@dataclass(frozen=True)
class Greeting:
    """Answer to `hello`. Classes of other answers may differ if the sources do."""

    node: str
    """Name of the machine."""
    sources: str
    """Hash of kernrec's sources there."""


@dataclass(frozen=True)
class CardIdentity:
    """An open GPU, and the software of its machine."""

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
        """Name for people."""
        return f"{self.gpu} on {self.node}"


@dataclass
class Answer:
    """Answer to `open` or `measure`."""

    title: str
    """Name of the GPU, as far as it is known."""
    identity: CardIdentity | None = None
    """None if the GPU could not be opened."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user, one line each."""
    seconds: float = 0.0
    """Seconds of the visit on the device's clock."""
    over: bool = False
    """Whether nothing is left to measure in the visit."""
    spent: bool = False
    """Whether the GPU's time is spent."""
    error: str | None = None
    """Reason why the GPU takes no part any more, in one line; empty if nobody asked for it."""


class SentRecords:
    """Records of a visit on their way to the driver, in place of a journal."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Mapping[str, Any] | Answer] = queue.SimpleQueue()

    def append(self, *records: Mapping[str, Any]) -> None:
        """Send records."""
        for record in records:
            self._queue.put(record)

    def until(self, answer: Callable[[], Answer]) -> Iterator[Mapping[str, Any] | Answer]:
        """Yield the records that are appended while `answer` runs in another thread, and its result last."""
        threading.Thread(target=lambda: self._queue.put(answer()), daemon=True).start()
        while not isinstance(item := self._queue.get(), Answer):
            yield item
        yield item


class Card:
    """The actor of one GPU."""

    def __init__(self) -> None:
        """Prepare a GPU; `open` opens it."""
        self._answer = Answer(socket.gethostname())
        self._records = SentRecords()
        self._campaign: Campaign | None = None
        self._earlier: tuple[Measurement, ...] = ()

    def hello(self) -> Greeting:
        """Return the machine and the hash of its sources."""
        return Greeting(socket.gethostname(), sources_hash())

    def open(self, request: CollectRequest) -> Answer:
        """Open the GPU unless it is open; the request names the device, the effort and the time."""
        opening = self._answer.identity is None
        return self._answered(lambda: self._open(request) if opening else None)

    def _open(self, request: CollectRequest) -> None:
        self._scratch = TemporaryDirectory(prefix="kernrec-")
        device = _device(request, Path(self._scratch.name))
        self._answer.title = f"{device.gpu} on {socket.gethostname()}"
        budget = CampaignBudget(request.budget.seconds)
        self._campaign = campaign = Campaign(
            WorkerClient(device.opening),
            [],
            self._records,
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

    def measure(self, visit: Visit) -> Iterator[Mapping[str, Any] | Answer]:
        """Make a visit: yield each record, and then the answer."""
        campaign = self._campaign
        assert campaign is not None

        def make() -> None:
            begun_s = campaign.session.clock()
            self._earlier = visit.earlier
            self._answer.over = campaign.spent or campaign.measure(with_own_kernels(visit.planned))
            self._answer.seconds = campaign.session.clock() - begun_s
            self._answer.spent = campaign.spent

        yield from self._records.until(lambda: self._answered(make))

    def _answered(self, task: Callable[[], None]) -> Answer:
        self._answer = Answer(self._answer.title, self._answer.identity)
        try:
            task()
        except KernrecError as failure:
            self._answer.error = str(failure)
        except Exception as failure:  # report any error to the driver
            self._answer.error = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
        return self._answer

    def _take(self, progress: Progress) -> None:
        if progress.note is not None:
            self._answer.notes.append(progress.note)


def with_own_kernels(planned: PlannedProblem) -> PlannedProblem:
    """Replace the driver's kernels in a problem by those of this process, whose compiled forms are cached."""
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
        raise UsageError("")  # no error: nobody requested this GPU
    return card_device(card, scratch)
