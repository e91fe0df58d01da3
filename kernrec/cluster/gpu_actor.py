"""Define the actor that owns one GPU of a cluster and makes the visits that the driver assigns.

The actor sends each record of a visit to the driver at once, and the answer at the end. The driver writes the records
to its journal. An actor stores nothing, so its process or machine may die at any time. All machines of a campaign must
have the same sources.
"""

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernrec.compile.nvrtc import compiler
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import find_kernel
from kernrec.measure.campaign.campaign import Campaign, CampaignHooks
from kernrec.measure.campaign.plan import PlannedProblem, Visit
from kernrec.measure.campaign.results import CampaignBudget, Progress
from kernrec.measure.measuring_device import MeasuringDevice, gpu_device, new_session, recorded_device
from kernrec.measure.request import CollectRequest
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store.measurement import MeasuredDevice, Measurement
from kernrec.util.files import files_hash
from kernrec.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIXES = (".py", ".cu", ".cuh", ".toml")


@cache
def sources_hash() -> str:
    """Return kernrec's version with a hash of its sources and kernels."""
    files = (path for path in _PACKAGE.rglob("*") if path.suffix in _SUFFIXES)
    return f"{__version__}-{files_hash(_PACKAGE, files)[:12]}"


Limits = tuple[float | None, float | None, float | None, bool]
"""Power limit in W, locked core and memory clocks in Hz, whether the GPU is divided (MIG)."""


def limits_of(device: MeasuredDevice) -> Limits:
    """Return the present limits and clocks of a GPU; measurements at other limits do not count as done."""
    return device.power_limit_w, device.locked_sm_clock_hz, device.locked_memory_clock_hz, bool(device.mig)


@dataclass(frozen=True)
class Greeting:
    """Answer to `hello`. Other answers may have incompatible classes if the machines' sources differ."""

    node: str
    """Name of the machine."""
    sources: str
    """Hash of kernrec's sources on that machine."""


@dataclass(frozen=True)
class GpuIdentity:
    """Identity of an open GPU, and the software of its machine."""

    gpu: str
    """Name in the catalog."""
    node: str
    """Name of the GPU's machine."""
    uuid_hash: str | None = None
    """Hash of the GPU's UUID; None for a recording."""
    driver: str | None = None
    compiler: str | None = None
    """Name and version of the compiler; None for a recording, which needs no compiler."""
    measures_energy: bool = True
    limits: Limits = (None, None, None, False)

    @property
    def title(self) -> str:
        """Return a readable name."""
        return f"{self.gpu} on {self.node}"


@dataclass
class Answer:
    """Answer to `open` or `measure`."""

    title: str
    """Name of the GPU, as far as known."""
    identity: GpuIdentity | None = None
    """Identity of the GPU; None if it could not be opened."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user, one line each."""
    seconds: float = 0.0
    """Seconds of the visit on the device's clock."""
    over: bool = False
    """Whether the visit is complete."""
    spent: bool = False
    """Whether the GPU's time is spent."""
    error: str | None = None
    """Reason in one line why the GPU leaves the campaign; empty if nobody requested the GPU."""


class SentRecords:
    """Queue of a visit's records on their way to the driver; replaces a journal."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Mapping[str, Any] | Answer] = queue.SimpleQueue()

    def append(self, *records: Mapping[str, Any]) -> None:
        """Queue records for the driver."""
        for record in records:
            self._queue.put(record)

    def until(self, answer: Callable[[], Answer]) -> Iterator[Mapping[str, Any] | Answer]:
        """Run `answer` in another thread; yield the records appended meanwhile, then its result."""
        threading.Thread(target=lambda: self._queue.put(answer()), daemon=True).start()
        while not isinstance(item := self._queue.get(), Answer):
            yield item
        yield item


class GpuActor:
    """The actor of one GPU."""

    def __init__(self) -> None:
        """Prepare a GPU; `open` opens it."""
        self._answer = Answer(socket.gethostname())
        self._records = SentRecords()
        self._campaign: Campaign | None = None
        self._earlier: tuple[Measurement, ...] = ()

    def hello(self) -> Greeting:
        """Return the machine's name and the hash of its sources."""
        return Greeting(socket.gethostname(), sources_hash())

    def open(self, request: CollectRequest) -> Answer:
        """Open the GPU unless it is open; the request contains the device, effort and time."""
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
        self._answer.identity = GpuIdentity(
            info.gpu, socket.gethostname(), info.uuid_hash, info.driver, None if device.replayed else compiler(),
            campaign.session.traits.measures_energy, limits_of(info.measured_device()),
        )  # fmt: skip

    def measure(self, visit: Visit) -> Iterator[Mapping[str, Any] | Answer]:
        """Make a visit; yield each record, then the answer."""
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
        except Exception as failure:  # Report any error to the driver.
            self._answer.error = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
        return self._answer

    def _take(self, progress: Progress) -> None:
        if progress.note is not None:
            self._answer.notes.append(progress.note)


def with_own_kernels(planned: PlannedProblem) -> PlannedProblem:
    """Replace the driver's kernels in a problem by this process's equal kernels, whose compiled forms are cached."""
    tasks = [
        task if task.kernel is None else replace(task, kernel=find_kernel(task.kernel_name)) for task in planned.tasks
    ]
    return replace(planned, tasks=tuple(tasks))


def _device(request: CollectRequest, scratch: Path) -> MeasuringDevice:
    if request.recording is not None:
        return recorded_device(request.recording, request.gpu, request.seed)
    from kernrec.measure.device.nvml import choose_gpus

    (present,) = choose_gpus("auto")
    if request.gpu not in ("auto", "all") and find_gpu(request.gpu).name != find_gpu(present.name).name:
        raise UsageError("")  # This is no error, because nobody requested this GPU.
    return gpu_device(present, scratch)
