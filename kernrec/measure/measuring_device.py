"""Describe the device of a campaign (a GPU of this machine or a replayed recording), and measure a user's kernel."""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernrec.errors import unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Kernel
from kernrec.measure.campaign.compile_queue import CompileQueue
from kernrec.measure.campaign.ingest import earlier_measurements
from kernrec.measure.campaign.plan import check_memory
from kernrec.measure.campaign.results import EFFORTS, CampaignSettings
from kernrec.measure.device import nvml
from kernrec.measure.device.gpu_limits import restore_abandoned
from kernrec.measure.device.replay import PROTOCOL_VERSION as REPLAY_VERSION
from kernrec.measure.device.replay import chosen_gpus
from kernrec.measure.protocol.measure_config import VERSION
from kernrec.measure.request import CollectRequest, CollectResult, WantedProblem
from kernrec.op import Problem
from kernrec.recommender import Answer, Query, Recommender
from kernrec.store.measurement import InputInfo, Measurement
from kernrec.version import __version__

STANDARD_INPUTS = InputInfo("numpy default_rng", 0, "normal; weights of a sum over the root of its terms")
"""Input values with which the library's kernels are measured on a GPU."""


@dataclass(frozen=True)
class MeasuringDevice:
    """Device on which a campaign measures."""

    opening: dict[str, Any]
    """Request with which the worker process opens the device."""
    gpu: str
    sm: int
    uuid_hash: str | None
    """Hash of the GPU's UUID, or None for a replay."""
    inputs: InputInfo

    @property
    def replayed(self) -> bool:
        return self.uuid_hash is None

    def settings(self, request: CollectRequest) -> CampaignSettings:
        return CampaignSettings(
            session=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}-{uuid.uuid4().hex[:8]}",
            finals=request.finals,
            budget=request.budget,
            seed=request.seed,
            measured_by=f"kernrec {__version__}",
            protocol_version=REPLAY_VERSION if self.replayed else VERSION,
            replayed=self.replayed,
            inputs=self.inputs,
        )

    def compile_queue(self) -> CompileQueue | None:
        """Return a queue that compiles configs, or None for a replay, which needs no code."""
        # Leave one CPU core to the worker process, because a delay would distort its measurements.
        processes = max(1, (os.cpu_count() or 1) - 1)
        return None if self.replayed else CompileQueue(self.sm, processes)

    def earlier(self, database: Path, problem: Problem) -> list[Measurement]:
        """Return this device's own measurements of a problem from a database."""
        rows = earlier_measurements(database, problem, self.gpu)
        return [measurement for measurement in rows if measurement.device_uuid_hash == self.uuid_hash]


def device_of(request: CollectRequest, scratch: Path) -> MeasuringDevice:
    """Return the device that a request names: a GPU of this machine, or a recorded GPU.

    Args:
        scratch: Folder for temporary files of the device's process.

    Raises:
        UsageError: There is no such GPU, or the catalog does not contain it.
        KernrecError: There is no driver, or kernrec cannot restore the limits that a killed run has set on the GPU.
    """
    if request.recording is not None:
        (name,) = chosen_gpus(request.recording, request.gpu)
        opening = {"device": "replay", "file": str(request.recording.absolute()), "gpu": name, "seed": request.seed}
        return MeasuringDevice(opening, name, find_gpu(name).sm, None, InputInfo())
    present = nvml.choose_gpu(request.gpu)
    gpu, inputs = find_gpu(present.name), STANDARD_INPUTS
    restore_abandoned(present)
    opening = {"device": "cuda", "uuid": present.uuid, "scratch": str(scratch / present.uuid_hash)}
    if (kernel := request.kernel) is not None:
        inputs = inputs_of(kernel)
        opening["kernel"] = {"name": kernel.name, "spec": kernel.spec, "source": kernel.source}
        opening["folder"] = str(request.folder.absolute())
    return MeasuringDevice(opening, gpu.name, gpu.sm, present.uuid_hash, inputs)


def inputs_of(kernel: Kernel) -> InputInfo:
    if not kernel.declares_problem:
        return STANDARD_INPUTS
    samples = ", ".join(f"{name} {sample}" for name, sample in kernel.initial_values.items())
    if kernel.inouts:
        samples = f"{samples}; {', '.join(sorted(kernel.inouts))} as earlier launches left it"
    return replace(STANDARD_INPUTS, input_distribution=samples)


_SHOWN = ("config", "latency_s", "energy_j", "device")


@dataclass(frozen=True)
class KernelMeasurement:
    """A user's kernel and a problem to measure on a GPU."""

    kernel: Kernel
    problem: Problem
    gpu: GPU
    request: CollectRequest

    @classmethod
    def prepared(
        cls, kernel: Kernel, problem: Problem, gpu: GPU, database: Path, folder: Path, effort: str
    ) -> "KernelMeasurement":
        """Prepare a measurement, after checking that this machine can make it.

        Args:
            folder: Folder of the files that the kernel's spec names.
            effort: `quick`, `normal` or `exhaustive`.

        Raises:
            KernrecError: This machine cannot make the measurement.
        """
        if effort not in EFFORTS:
            raise unknown("effort", effort, EFFORTS)
        present = nvml.local_gpu(gpu)
        check_memory(problem, gpu)
        problems = [WantedProblem(problem.key, problem)]
        request = CollectRequest(
            problems, database, gpu=present.uuid, effort=EFFORTS[effort], kernel=kernel, folder=folder
        )
        return cls(kernel, problem, gpu, request)

    def answer(self, query: Query) -> Answer:
        """Return the recommendation for the kernel, including the new measurements."""
        on_gpu = Recommender([self.request.database]).on(self.gpu, query.conditions)
        return on_gpu.answer_kernel(self.kernel, self.problem, query)

    def best(self, collected: CollectResult) -> Sequence[dict[str, Any]]:
        """Return the fastest and the lowest-energy config for each problem, as plain values for JSON."""
        objects = []
        for result in collected.results:
            rows: dict[str, Any] = {"kernel": self.kernel.name, "problem": result.problem, "gpu": self.gpu.name}
            for name, measurement in (("fastest", result.best), ("lowest energy", result.lowest_energy)):
                columns = {} if measurement is None else measurement.columns()
                rows[name] = {key: columns[key] for key in _SHOWN} if columns else None
            objects.append(rows)
        return objects
