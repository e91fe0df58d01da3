"""Define the actor process that owns one GPU of a cluster and makes the measurements that `Driver` assigns.

The actor sends each record to the `Driver` process at once and stores nothing, so it may die at any time. All machines
of a campaign must have the same version and sources of kernrec.
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
from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.plan import PlannedProblem
from kernrec.measure.campaign.results import CampaignBudget, Progress
from kernrec.measure.device import nvml
from kernrec.measure.measuring_device import MeasuringDevice, device_of
from kernrec.measure.request import CollectRequest
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store.measurement import Limits
from kernrec.util.files import files_hash
from kernrec.version import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIXES = (".py", ".cu", ".cuh", ".toml")


@cache
def sources_hash() -> str:
    files = (path for path in _PACKAGE.rglob("*") if path.suffix in _SUFFIXES)
    return f"{__version__}-{files_hash(_PACKAGE, files)[:12]}"


@dataclass(frozen=True)
class Greeting:
    """Reply to `hello`. `Driver` can read the reply even if the machines have different versions of kernrec."""

    node: str
    sources: str


@dataclass(frozen=True)
class GpuIdentity:
    """Identity of a GPU that an actor has opened, and the software on its machine."""

    gpu: str
    node: str
    uuid_hash: str | None = None
    """Hash of the GPU's UUID, or None if the actor replays a recording."""
    driver: str | None = None
    compiler: str | None = None
    """Name and version of the compiler, or None if the actor replays a recording."""
    measures_energy: bool = True
    limits: Limits = (None, None, None, False)

    @property
    def title(self) -> str:
        return f"{self.gpu} on {self.node}"


@dataclass
class Answer:
    """Reply of a GPU's actor to `GpuActor.open` or `GpuActor.measure`."""

    title: str
    """Name of the GPU and its machine. Only the machine's name if the GPU is not open yet."""
    identity: GpuIdentity | None = None
    """Identity of the GPU, or None if it could not be opened."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Duration of the measurements in seconds. A simulated GPU reports simulated time."""
    spent: bool = False
    error: str | None = None
    """Reason why the GPU leaves the campaign, or None if the GPU stays. The reason is empty if the user did not request
    this GPU model."""


class GpuLost(Exception):  # noqa: N818 - the loss of a GPU is not an error in this program
    """Error for a GPU whose process or machine has ended. The message is a one-line reason."""


Reply = Greeting | Answer | GpuLost | Mapping[str, Any]
"""Reply from a GPU's actor. While it measures, the actor sends records, followed by an `Answer`."""


class GpuActor:
    """Actor that measures on one GPU, and sends the records to the `Driver` process."""

    def __init__(self) -> None:
        self._answer = Answer(socket.gethostname())
        self._records: queue.SimpleQueue[Mapping[str, Any] | Answer] = queue.SimpleQueue()
        self._campaign: Campaign | None = None

    def hello(self) -> Greeting:
        return Greeting(socket.gethostname(), sources_hash())

    def open(self, request: CollectRequest) -> Answer:
        """Open the GPU, if it is not open yet."""
        opening = self._answer.identity is None
        return self._answered(lambda: self._open(request) if opening else None)

    def _open(self, request: CollectRequest) -> None:
        self._scratch = TemporaryDirectory(prefix="kernrec-")
        device = _device(request, Path(self._scratch.name))
        self._answer.title = f"{device.gpu} on {socket.gethostname()}"
        self._campaign = campaign = Campaign(
            WorkerClient(device.opening),
            self,
            # Set only a time limit. The limit on configs holds for all GPUs together, so `Driver` enforces it.
            device.settings(replace(request, budget=CampaignBudget(request.budget.seconds))),
            self._take,
            device.compile_queue(),
        )
        campaign.begin()
        info = campaign.session.opened_info
        self._answer.identity = GpuIdentity(
            info.gpu, socket.gethostname(), info.uuid_hash, info.driver, None if device.replayed else compiler(),
            campaign.session.probe.measures_energy, info.measured_device().limits,
        )  # fmt: skip

    def measure(self, visit: PlannedProblem) -> Iterator[Mapping[str, Any] | Answer]:
        """Measure the configs in `visit`. Yield each record as soon as it exists, and the `Answer` at the end."""
        campaign = self._campaign
        assert campaign is not None

        def make() -> None:
            begun_s = campaign.session.clock()
            if not campaign.spent:
                campaign.measure(with_own_kernels(visit))
            self._answer.seconds = campaign.session.clock() - begun_s
            self._answer.spent = campaign.spent

        threading.Thread(target=lambda: self._records.put(self._answered(make)), daemon=True).start()
        while not isinstance(item := self._records.get(), Answer):
            yield item
        yield item

    def append(self, *records: Mapping[str, Any]) -> None:
        for record in records:
            self._records.put(record)

    def _answered(self, task: Callable[[], None]) -> Answer:
        self._answer = Answer(self._answer.title, self._answer.identity)
        try:
            task()
        except KernrecError as failure:
            self._answer.error = str(failure)
        except Exception as failure:  # Report any error to `Driver`.
            self._answer.error = " ".join(f"{type(failure).__name__}: {failure}".split())[:500]
        return self._answer

    def _take(self, progress: Progress) -> None:
        if progress.note is not None:
            self._answer.notes.append(progress.note)


def with_own_kernels(planned: PlannedProblem) -> PlannedProblem:
    """Replace the kernel objects from `Driver` by this process's kernel objects, which cache results."""
    tasks = [
        task if task.kernel is None else replace(task, kernel=find_kernel(task.kernel_name)) for task in planned.tasks
    ]
    return replace(planned, tasks=tuple(tasks))


def _device(request: CollectRequest, scratch: Path) -> MeasuringDevice:
    if request.recording is None:
        if request.gpu not in ("auto", "all"):
            present = find_gpu(nvml.choose_gpu("auto").name)
            if find_gpu(request.gpu).name != present.name:
                raise UsageError("")  # A request for other GPUs is not an error of this GPU, so there is no message.
        request = replace(request, gpu="auto")
    return device_of(request, scratch)
