"""Manage one device during a campaign: worker process, probe and prepared problem, with a restart after a crash."""

import math
import time
from dataclasses import replace
from typing import Any

from kernrec.errors import KernrecError
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.device.interface import CardSettings, DeviceInfo, MeasurementFailure
from kernrec.measure.protocol import measure_config
from kernrec.measure.protocol.drift import References
from kernrec.measure.protocol.measure_config import SensorTraits
from kernrec.measure.protocol.probe import Probe, load_probe, save_probe
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store.device_report import DeviceReport
from kernrec.store.measurement import Measurement, Tier

LEAST_LIMIT_S = 5.0
"""Minimum time limit of a config in seconds."""
LIMIT_BESTS = 20.0
"""Time limit of a config as a multiple of the best time so far."""
IDLE_EVERY_S = 600.0
"""Seconds between two measurements of idle power."""
PREPARE_LIMIT_S = 900.0
"""Time limit in seconds for inputs and the float64 reference, which is computed on the CPU."""
_CONTROL_LIMIT_S = 60.0
"""Time limit in seconds for all other requests."""
_ATTEMPTS = 3
"""Attempts at a request that must succeed, before the campaign gives up the device."""


class DeviceSession:
    """One device that is open for a campaign."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client
        self.info: DeviceInfo | None = None
        """Description of the device; None until `open`."""
        self.probe: Probe | None = None
        """Probe of the sensors; None if energy cannot be measured."""
        self.traits = SensorTraits()
        self.idle_w: float | None = None
        self._idle_measured_s = -math.inf
        self._planned: PlannedProblem | None = None
        self._prepared = False
        self._started_s = time.monotonic()

    @property
    def opened_info(self) -> DeviceInfo:
        """Return the worker's description of the open device."""
        assert self.info is not None
        return self.info

    def open(self) -> list[str]:
        """Start the worker and probe the sensors; return notes for the user, one line each."""
        self.client.start()
        self.info = DeviceInfo.from_dict(self.client.info)
        if self.info.energy is None:
            self.probe = load_probe(self.info)
            if self.probe is None:
                self.probe = Probe(**self.request(_CONTROL_LIMIT_S, "probe"))
                save_probe(self.info, self.probe)
            self.traits = self.probe.traits
            self.client.add_to_opening(traits=vars(self.traits))  # Later worker processes need this.
            self.request(_CONTROL_LIMIT_S, "traits", traits=vars(self.traits))
        notes = []
        if reason := self.info.energy or (self.probe and self.probe.why_no_energy()):
            notes.append(f"energy is not measured: {reason}")
        if self.info.other_processes:
            notes.append(f"{self.info.other_processes} other processes use this GPU: expect noise")
        return notes

    def clock(self) -> float:
        """Return the seconds since the campaign began; use the device's own clock if it has one."""
        virtual = self.info is not None and self.info.virtual
        return self.client.device_s if virtual else time.monotonic() - self._started_s

    def begin_problem(self, planned: PlannedProblem | None) -> None:
        """Set the problem of later requests; None for no problem."""
        self._planned, self._prepared = planned, False

    def ensure_prepared(self) -> None:
        """Create the inputs and the reference of the present problem, unless they exist."""
        if not self._prepared:
            assert self._planned is not None
            self.request(PREPARE_LIMIT_S, "prepare", **self._planned.preparation)
            self._prepared = True

    def request(self, limit_s: float, do: str, **items: Any) -> Any:
        """Return the answer to a request that must succeed; repeat it in a new process if the worker is lost.

        Raises:
            MeasurementFailure: The request failed and the worker is still alive.
            KernrecError: The worker was lost in every attempt.
        """
        error: KernrecError | None = None
        for _ in range(_ATTEMPTS):
            try:
                if not self.client.alive:
                    self._prepared = False
                    self.client.start()
                if self._planned is not None and not self._prepared and do != "prepare":
                    self.client.request(PREPARE_LIMIT_S, "prepare", **self._planned.preparation)
                    self._prepared = True
                return self.client.request(limit_s, do, **items)
            except MeasurementFailure as failure:
                if self.client.alive:
                    raise
                error = failure
            except KernrecError as failure:
                error = failure
        raise KernrecError(f"the device was given up after {_ATTEMPTS} tries: {error}")

    def measure_references(self, with_energy: bool) -> tuple[References, CardSettings]:
        """Measure the reference kernels; return their costs and the GPU's present settings."""
        answer = self.request(_CONTROL_LIMIT_S, "references", energy=with_energy)
        return answer["references"], CardSettings(**answer["settings"])

    def take_settings(self, settings: CardSettings) -> None:
        """Use these GPU settings from now on."""
        self.info = replace(self.opened_info, settings=settings)

    def refresh_idle_power(self) -> None:
        """Repeat the measurement of idle power if it is old."""
        if self.traits.measures_energy and self.clock() - self._idle_measured_s >= IDLE_EVERY_S:
            self.idle_w = self.request(_CONTROL_LIMIT_S, "idle")
            self._idle_measured_s = self.clock()

    def is_present(self, measurement: Measurement) -> bool:
        """Return whether a measurement has the GPU's present limits and clocks."""
        now, then = self.opened_info.measured_device(), measurement.device
        limits = ("power_limit_w", "locked_sm_clock_hz", "locked_memory_clock_hz")
        return all(getattr(then, name) == getattr(now, name) for name in limits) and bool(then.mig) == bool(now.mig)

    def measure(self, task: Task, tier: Tier, best_s: float | None) -> DeviceReport:
        """Measure a config.

        Args:
            task: The config.
            tier: Thoroughness.
            best_s: Least latency so far.

        Raises:
            MeasurementFailure: The config fails, or crashes the worker.
        """
        answer = self.client.request(
            self._limit_s(tier, best_s), "measure", kernel=task.kernel_name, config=task.config,
            problem=task.problem.key, tier=tier, best_s=best_s,
        )  # fmt: skip
        return DeviceReport.from_json(answer)

    def _limit_s(self, tier: Tier, best_s: float | None) -> float:
        """Return the time limit of a config in seconds, energy windows included, after which the worker is killed."""
        limit_s = max(LEAST_LIMIT_S, LIMIT_BESTS * (best_s or 0.0))
        if tier == Tier.SCREEN or not self.traits.measures_energy:
            return limit_s
        window_s = measure_config.window_s(self.opened_info.generation, tier, self.traits)
        repeated_s = measure_config.SETTLE_S + window_s + measure_config.LATENCY_CAP_S
        return limit_s + (1 + measure_config.REPEATS) * repeated_s
