"""Drive a campaign on all GPUs of a cluster: assign visits to GPUs, and store the measurements.

    chooser of a GPU model -> visit -> call of a GPU's actor -> journal on disk -> chooser learns

A visit is a batch of measurements of one problem. Within a visit, the reference kernels run between blocks of
measurements. The chooser learns only from completed blocks. If a GPU is lost, another GPU continues its visit, and
repeats the measurements that are not in completed blocks.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kernrec.cluster.gpu_actor import Answer, GpuIdentity, GpuLost, Greeting, Reply, sources_hash
from kernrec.errors import KernrecError, UsageError
from kernrec.measure.campaign.ingest import ingest, measurements_of
from kernrec.measure.campaign.journal import Journal
from kernrec.measure.campaign.plan import Chooser, PlannedProblem
from kernrec.measure.campaign.results import Progress
from kernrec.measure.device.replay import chosen_gpus
from kernrec.measure.request import CollectRequest, CollectResult, Report, Stopping
from kernrec.store.measurement import Limits, Measurement, Tier

if TYPE_CHECKING:
    from kernrec.cluster.ray_cluster import RayCluster

_LOOK_S = 2.0
"""Seconds between two checks for new GPUs."""
_OPEN_S = 20.0
"""Seconds to wait for the first GPUs before `Driver` assigns measurements."""
_STORE_S = 60.0
"""Minimum seconds between two transfers from the journal to the database."""
_PAUSE = 20.0
"""Minimum time between two transfers as a multiple of the first transfer's duration."""
_NO_GPU_S = 60.0
"""Seconds without any GPU after which the campaign ends. Machines may restart in this time."""
_MOST_LOSSES = 3
"""Number of crashes in a row after which a GPU is excluded."""


@dataclass
class _Device:
    number: int
    greeted: bool = False
    identity: GpuIdentity | None = None
    """Identity of the GPU, or None until the actor has opened it."""
    busy: bool = True
    visit: PlannedProblem | None = None
    records: list[Mapping[str, Any]] = field(default_factory=list)
    """Records of the current block."""
    rows: list[Measurement] = field(default_factory=list)
    """Measurements in the completed blocks of `visit`."""
    resting: bool = False
    """Whether this GPU has nothing to measure. `Driver` checks again when another GPU joins, leaves or is done."""
    spent: bool = False
    losses: int = 0


@dataclass
class _Kind:
    """GPU model in the campaign. All GPUs of the model must have the same limits of power and clocks."""

    limits: Limits
    chooser: Chooser
    lost: list[PlannedProblem] = field(default_factory=list)
    """Unfinished measurements of lost GPUs, which other GPUs continue."""
    over: bool = False
    """Whether nothing is left to measure, or all GPUs of the model have used up their time."""


class Driver:
    def __init__(
        self,
        cluster: "RayCluster",
        request: CollectRequest,
        chooser: Callable[[str, Limits], Chooser],
        journal: Journal,
        report: Report,
        stopping: Stopping,
    ) -> None:
        """Prepare a campaign. The problems come from the chooser, not from the request. Raise `UsageError` if the
        request's recording contains nothing to replay."""
        self._cluster, self._request, self._make_chooser = cluster, request, chooser
        self._journal, self._report, self._stopping = journal, report, stopping
        self._stored = 0  # Number of rows that this campaign has added to the database.
        self._store_s = time.monotonic() + _STORE_S  # Time of the next transfer to the database.
        self._replayed = chosen_gpus(request.recording, request.gpu) if request.recording is not None else ()
        self._devices: dict[str, _Device] = {}
        self._number = 0
        self._kinds: dict[str, _Kind] = {}
        # Names of the initial actors that have not replied yet, or None if no actor has joined.
        self._first: set[str] | None = None
        # Number of measurements, keyed by (GPU, problem, `Measurement.tier`).
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def run(self) -> CollectResult:
        """Run the campaign, and return its result. Rows that are not in the database yet stay in the journal."""
        error, stopped = None, False
        try:
            stopped = not self._serve()
        except KernrecError as failure:
            error = str(failure)
        return CollectResult(stored=self._stored, stopped=stopped, error=error)

    def _serve(self) -> bool:
        """Process replies until the campaign ends. Return False if the caller stopped the campaign."""
        looked_s, begun_s = -_LOOK_S, time.monotonic()
        alone_s = begun_s
        while not (self._kinds and all(kind.over for kind in self._kinds.values())):
            if self._stopping():
                return False
            self._store()
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S:
                looked_s = now_s
                self._join()
            if any(map(self._is_there, self._devices.values())):
                alone_s = now_s
            elif now_s - alone_s > _NO_GPU_S:
                raise KernrecError(
                    f"no GPU of the cluster answered for {_NO_GPU_S:g} s; run the same command to resume"
                )
            if not self._first or now_s - begun_s >= _OPEN_S:
                self._give_out()
            for name, answer in self._cluster.wait(0.2):
                self._take(name, answer)
        return True

    def _store(self) -> None:
        if (begun_s := time.monotonic()) < self._store_s:
            return
        with suppress(UsageError):  # Another process may be using the database. The rows stay in the journal.
            self._stored += ingest(self._journal, ended_only=True)
        now_s = time.monotonic()
        self._store_s = now_s + max(_STORE_S, _PAUSE * (now_s - begun_s))

    def _is_there(self, device: _Device) -> bool:
        return device.greeted and (device.identity is None or not self._kinds[device.identity.gpu].over)

    def _join(self) -> None:
        joined = list(self._cluster.join())
        for name in joined:
            self._devices[name] = _Device(self._number)
            self._number += 1
            self._cluster.call(name, "hello")
        if self._first is None and joined:
            self._first = set(joined)

    def _give_out(self) -> None:
        for gpu, kind in self._kinds.items():
            every = self._devices.items()
            devices = {name: device for name, device in every if device.identity and device.identity.gpu == gpu}
            for name, device in devices.items():
                if not (device.busy or device.resting or device.spent):
                    visit = kind.lost.pop(0) if kind.lost else kind.chooser.next(name, list(devices))
                    device.resting = visit is None
                    if visit is not None:
                        device.visit = visit
                        self._call(name, "measure", visit)
            idle = devices and not any(device.busy for device in devices.values())
            left = kind.lost or not all(device.resting or device.spent for device in devices.values())
            if idle and (not left or all(device.spent for device in devices.values())):
                kind.over = True

    def _call(self, name: str, method: str, *arguments: object) -> None:
        self._devices[name].busy = True
        self._cluster.call(name, method, *arguments)

    def _take(self, name: str, answer: Reply) -> None:
        device = self._devices.get(name)
        if isinstance(answer, Mapping):
            self._journal.append(answer)
            if device is not None and device.visit is not None and device.identity is not None:
                device.records.append(answer)
                if "row" not in answer:
                    self._end_block(device, device.visit, device.identity)
            return
        if device is None:
            return
        if isinstance(answer, Greeting):
            device.greeted = True
            if answer.sources == sources_hash():
                self._call(name, "open", self._request_of(device))
            else:
                self._refuse(
                    name, answer.node, f"its kernrec ({answer.sources}) is not the driver's ({sources_hash()})"
                )
            return
        if isinstance(answer, GpuLost):
            self._lose(name, str(answer))
            return
        device.busy = False
        for note in answer.notes:
            self._note(answer.title, note)
        if device.identity is None:
            self._welcome(name, device, answer)
        elif (visit := device.visit) is not None:
            device.losses = 0
            kind = self._kinds[device.identity.gpu]
            if answer.error is None:
                kind.chooser.done(visit, answer.seconds)
            else:
                kind.lost.append(replace(visit, earlier=(*visit.earlier, *device.rows)))
            device.visit, device.records, device.rows = None, [], []
            self._wake(device.identity.gpu)
            device.spent = answer.spent
        if answer.error is not None:
            self._drop(name)
            if answer.error:
                self._note(answer.title, f"{answer.error}; the campaign continues without this GPU")

    def _request_of(self, device: _Device) -> CollectRequest:
        request = replace(self._request, problems=None, seed=self._request.seed + device.number)
        if gpus := self._replayed:
            assert request.recording is not None
            gpu = gpus[device.number % len(gpus)]
            request = replace(request, recording=request.recording.absolute(), gpu=gpu)
        return request

    def _welcome(self, name: str, device: _Device, answer: Answer) -> None:
        """Add a GPU to the campaign after its actor has opened it. Exclude the GPU if that failed."""
        self._heard(name)
        identity = answer.identity
        if identity is None or answer.error is not None:
            return
        if reason := self._refusal(identity):
            self._refuse(name, identity.node, reason)
            return
        others = {str(other.driver) for other in self._identities(identity.gpu)} - {str(identity.driver)}
        if others:
            self._note(
                identity.title,
                f"driver versions differ: {identity.driver} here, {', '.join(sorted(others))} on other nodes; each row"
                " records its driver",
            )
        device.identity = identity
        if identity.gpu not in self._kinds:
            self._kinds[identity.gpu] = _Kind(identity.limits, self._make_chooser(identity.gpu, identity.limits))
        self._kinds[identity.gpu].over = False
        self._wake(identity.gpu)

    def _refusal(self, device: GpuIdentity) -> str | None:
        kind = self._kinds.get(device.gpu)
        if kind is not None and device.limits != kind.limits:
            first, own = _limits_text(kind.limits), _limits_text(device.limits)
            return f"its power limit and clocks ({own}) differ from those of the first GPU ({first})"
        if self._request.needs_energy and not device.measures_energy:
            return "it measures no energy"
        for other in self._identities():
            if other.compiler != device.compiler:
                return f"its compiler {device.compiler} differs from {other.node}'s ({other.compiler})"
            if other.uuid_hash is not None and other.uuid_hash == device.uuid_hash:
                return "its GPU is in the campaign already"
        return None

    def _identities(self, gpu: str | None = None) -> list[GpuIdentity]:
        identities = [device.identity for device in self._devices.values() if device.identity is not None]
        return [identity for identity in identities if gpu in (None, identity.gpu)]

    def _refuse(self, name: str, node: str, reason: str) -> None:
        """Exclude a GPU from the campaign. Its actor keeps running, so that Ray starts no other actor there."""
        self._drop(name)
        self._report(Progress(node, "", "", 0, 0, note=f"{node} is excluded: {reason}"))

    def _drop(self, name: str) -> None:
        self._heard(name)
        device = self._devices.pop(name)
        if device.identity is not None:
            self._wake(device.identity.gpu)

    def _lose(self, name: str, why: str) -> None:
        """Give the unfinished measurements of a crashed GPU to other GPUs. Restart its actor, or exclude the GPU."""
        device = self._devices[name]
        title = name if device.identity is None else device.identity.title
        if device.identity is not None and (visit := device.visit) is not None:
            self._kinds[device.identity.gpu].lost.append(replace(visit, earlier=(*visit.earlier, *device.rows)))
        losses = device.losses + 1
        if losses >= _MOST_LOSSES:
            self._drop(name)
            self._note(title, f"{why}; the campaign continues without this GPU")
            return
        if device.identity is not None:
            self._wake(device.identity.gpu)
            self._note(title, f"{why}; another GPU measures the rest of its configs, and this one is restarted")
        self._devices[name] = _Device(device.number, losses=losses)
        self._cluster.call(name, "hello")

    def _heard(self, name: str) -> None:
        if self._first:
            self._first.discard(name)

    def _wake(self, gpu: str) -> None:
        for device in self._devices.values():
            if device.identity is not None and device.identity.gpu == gpu:
                device.resting = False

    def _end_block(self, device: _Device, visit: PlannedProblem, identity: GpuIdentity) -> None:
        gpu = identity.gpu
        rows, device.records = list(measurements_of(device.records)), []
        device.rows += rows
        for row in rows:
            self._kinds[gpu].chooser.learn(row)
            tier = row.tier
            self._counts[gpu, visit.problem.key, tier] += 1
            done = self._counts[gpu, visit.problem.key, tier]
            total = max(done, visit.most or len(visit.tasks)) if tier is Tier.SCREEN else done
            self._report(Progress(identity.title, visit.name, tier, done, total, measurement=row))

    def _note(self, title: str, text: str) -> None:
        self._report(Progress(title, "", "", 0, 0, note=f"{title}: {text}"))


def _limits_text(limits: Limits) -> str:
    power_w, core_hz, memory_hz, divided = limits
    power = "default limit" if power_w is None else f"{power_w:g} W"
    clocks = [f"{hz / 1e6:g} MHz" for hz in (core_hz, memory_hz) if hz is not None] or ["not locked"]
    return ", ".join([power, *clocks, *["divided (MIG)"] * divided])
