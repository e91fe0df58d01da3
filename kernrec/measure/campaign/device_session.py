"""Manage one device during a campaign: the worker process, the prepared problem, and the blocks of measurements.

    references -- measurements of block 0 -- references -- measurements of block 1 -- references

The references are two kernels that are measured between blocks. If their costs change during a block, the GPU has
drifted, and the block's measurements are invalid. A block ends when its problem or the worker process ends, or at its
time limit. The limit is a quarter of the duration of all earlier blocks, but at least 4 s and at most 60 s. If a
campaign is killed, the next campaign repeats only the last block.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernrec.errors import KernrecError
from kernrec.measure.campaign.journal import Records
from kernrec.measure.campaign.plan import PlannedProblem, Task
from kernrec.measure.campaign.schedule import ScheduledMeasurement
from kernrec.measure.device.interface import DeviceInfo, MeasurementFailure
from kernrec.measure.protocol import measure_config
from kernrec.measure.protocol.measure_config import Probe
from kernrec.measure.protocol.probe import load_probe, save_probe
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.store.measurement import DeviceReport, GpuSettings, Measurement, Tier

LATENCY_DRIFT = 0.01
"""Relative change of a reference kernel's latency that counts as drift."""
ENERGY_DRIFT = 0.02

References = Mapping[str, Mapping[str, float]]
"""Costs of each reference kernel, keyed by kernel name: `latency_s`, and `energy_j` if it was measured."""


class DriftMonitor:
    """Monitor that compares the reference kernels' costs with a baseline: their first costs, or their costs after the
    latest drift."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, float]] = {}
        self._baseline: dict[str, dict[str, float]] = {}
        self.latency: float | None = None
        """Latest latency divided by first latency, for the reference kernel that changed most."""
        self.energy: float | None = None
        """Latest energy divided by first energy, for the reference kernel that changed most."""

    def drifted(self, costs: References) -> str | None:
        """Return a message if a cost has changed by more than its limit, else None."""
        changes = [
            (name, words, costs_of[cost] / self._baseline[name][cost] - 1.0, limit)
            for cost, words, limit in (("latency_s", "latency", LATENCY_DRIFT), ("energy_j", "energy", ENERGY_DRIFT))
            for name, costs_of in costs.items()
            if cost in costs_of and cost in self._baseline.get(name, {})
        ]
        texts = [f"{name} {words} {change:+.1%}" for name, words, change, limit in changes if abs(change) > limit]
        return f"reference kernels drifted: {', '.join(texts)}" if texts else None

    def update(self, costs: References) -> str | None:
        """Store new costs of the reference kernels, and return the result of `drifted`."""
        error = self.drifted(costs)
        for name, costs_of in costs.items():
            for cost, value in costs_of.items():
                self._first.setdefault(name, {}).setdefault(cost, value)
                self._baseline.setdefault(name, {}).setdefault(cost, value)
        self.latency = _largest_change(costs, self._first, "latency_s")
        self.energy = _largest_change(costs, self._first, "energy_j") or self.energy
        if error is not None:
            self.rebase(costs)
        return error

    def rebase(self, costs: References) -> None:
        """Make `costs` the new baseline."""
        for name, costs_of in costs.items():
            self._baseline[name] = {**self._baseline.get(name, {}), **costs_of}


def _largest_change(costs: References, base: References, cost: str) -> float | None:
    ratios = [costs_of[cost] / base[name][cost] for name, costs_of in costs.items() if cost in costs_of]
    return max(ratios, key=lambda ratio: abs(ratio - 1.0)) if ratios else None


def describe_changes(before: GpuSettings, after: GpuSettings) -> str:
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in vars(before)]
    return ", ".join(f"{name} {_shown(old)} -> {_shown(new)}" for name, old, new in pairs if old != new)


def _shown(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


LEAST_LIMIT_S = 5.0
"""Minimum time limit for measuring a config, in seconds."""
LIMIT_BESTS = 20.0
"""Maximum time for measuring a config, as a multiple of the best latency so far."""
IDLE_EVERY_S = 600.0
"""Seconds after which idle power is measured again."""
PREPARE_LIMIT_S = 900.0
"""Time limit in seconds for computing a problem's inputs and reference outputs on the CPU."""
_CONTROL_LIMIT_S = 60.0
"""Time limit in seconds for all other requests to the worker."""
_ATTEMPTS = 3
"""Maximum number of attempts at a request that crashes the worker."""


class DeviceSession:
    """A device that is open during a campaign."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client
        self.info: DeviceInfo | None = None
        """Description of the device, or None before `open`."""
        self.probe = Probe()
        """Properties of the sensors. All are None if the device cannot measure energy."""
        self.idle_w: float | None = None
        self._idle_measured_s = -math.inf
        self._planned: PlannedProblem | None = None
        self._prepared = False
        self._started_s = time.monotonic()

    @property
    def opened_info(self) -> DeviceInfo:
        assert self.info is not None
        return self.info

    def open(self) -> list[str]:
        """Start the worker, open the device, and probe its sensors if no probe is cached. Return notes for the user."""
        self.client.start()
        self.info = DeviceInfo.from_dict(self.client.info)
        if self.info.energy is None:
            if (cached := load_probe(self.info)) is None:
                cached = Probe(**self.request(_CONTROL_LIMIT_S, "probe"))
                save_probe(self.info, cached)
            self.probe = cached
        notes = []
        if reason := self.info.energy or self.probe.why_no_energy():
            notes.append(f"energy is not measured: {reason}")
        if self.info.other_processes:
            notes.append(f"{self.info.other_processes} other processes use this GPU: expect noise")
        return notes

    def clock(self) -> float:
        """Return the seconds since the campaign began. A simulated device has its own clock."""
        virtual = self.info is not None and self.info.virtual
        return self.client.device_s if virtual else time.monotonic() - self._started_s

    def begin_problem(self, planned: PlannedProblem | None) -> None:
        """Set the problem for later requests, or no problem if `planned` is None."""
        self._planned, self._prepared = planned, False

    def ensure_prepared(self) -> None:
        if not self._prepared:
            assert self._planned is not None
            self.request(PREPARE_LIMIT_S, "prepare", **self._planned.preparation)
            self._prepared = True

    def request(self, limit_s: float, do: str, **items: Any) -> Any:
        """Send a request to the worker and return the answer. If the worker crashes, start another.

        Raises:
            MeasurementFailure: The request failed, but the worker is alive.
            KernrecError: The worker crashed in every attempt.
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
        raise KernrecError(f"the device failed {_ATTEMPTS} times: {error}")

    def measure_references(self, with_energy: bool) -> tuple[References, GpuSettings]:
        """Measure the reference kernels. Return their costs and the current settings of the GPU."""
        answer = self.request(_CONTROL_LIMIT_S, "references", energy=with_energy, probe=vars(self.probe))
        return answer["references"], GpuSettings(**answer["settings"])

    def refresh_idle_power(self) -> None:
        if self.probe.measures_energy and self.clock() - self._idle_measured_s >= IDLE_EVERY_S:
            self.idle_w = self.request(_CONTROL_LIMIT_S, "idle")
            self._idle_measured_s = self.clock()

    def has_limits_of(self, measurement: Measurement) -> bool:
        """Return whether the GPU has the same power limit, clocks and MIG mode as during a measurement."""
        return measurement.limits == self.opened_info.measured_device().limits

    def measure(self, task: Task, tier: Tier, best_s: float | None) -> DeviceReport:
        """Measure a config in the worker. Raise `MeasurementFailure` if the config fails or crashes the worker.

        `best_s` is the lowest latency in seconds on this problem so far, or None.
        """
        answer = self.client.request(
            self._limit_s(tier, best_s), "measure", kernel=task.kernel_name, config=task.config,
            problem=task.problem.key, tier=tier, best_s=best_s, probe=vars(self.probe),
        )  # fmt: skip
        return DeviceReport.from_json(answer)

    def _limit_s(self, tier: Tier, best_s: float | None) -> float:
        limit_s = max(LEAST_LIMIT_S, LIMIT_BESTS * (best_s or 0.0))
        if tier == Tier.SCREEN or not self.probe.measures_energy:
            return limit_s
        window_s = measure_config.window_s(self.opened_info.generation, tier, self.probe)
        repeated_s = measure_config.SETTLE_S + window_s + measure_config.LATENCY_CAP_S
        return limit_s + (1 + measure_config.REPEATS) * repeated_s


REFERENCE_S = 60.0
"""Maximum number of seconds between two runs of the reference kernels."""
_FIRST_S, _SHARE = 4.0, 0.25
"""Seconds of the first block. A later block may take the fraction `_SHARE` of the time of all earlier blocks."""


@dataclass(frozen=True)
class Block:
    """Measurements between two runs of the reference kernels."""

    number: int
    since_s: float
    """Time at which the block began, on the campaign's clock."""
    items: list[ScheduledMeasurement] = field(default_factory=list)


class BlockControl:
    """Controller that begins and ends the blocks of a campaign."""

    def __init__(self, session: DeviceSession, journal: Records, name: str, note: Callable[[str], None]) -> None:
        self._session = session
        self._journal = journal
        self._name = name
        self._note = note
        self.drift = DriftMonitor()
        self.present = Block(0, 0.0)
        self._started_s: float | None = None  # time at which the first block began
        self._energy_checked_s = 0.0  # time of the last energy measurement of the reference kernels
        self._energy_unchecked = False  # whether a config's energy was measured after `_energy_checked_s`

    def begin(self, number: int, with_energy: bool) -> str | None:
        """Run the reference kernels and begin a block. Return how the GPU has changed, or None if it has not."""
        session = self._session
        costs, settings = session.measure_references(with_energy)
        # A GPU that is still warm from heavy load may seem to have drifted, so measure the reference kernels again.
        if self.drift.drifted(costs):
            costs, settings = session.measure_references(with_energy)
        error = self.drift.update(costs)
        if with_energy:
            self._energy_checked_s, self._energy_unchecked = session.clock(), False
        before = session.opened_info.settings
        if settings != before:
            error = f"another program changed the GPU: {describe_changes(before, settings)}"
            # Store the new settings with later measurements, and use them to detect the next change.
            session.info = replace(session.opened_info, settings=settings)
            self.drift.rebase(costs)
        session.refresh_idle_power()
        self.present = Block(number, session.clock())
        if self._started_s is None:
            self._started_s = self.present.since_s
        return error

    @property
    def is_due(self) -> bool:
        """Whether the block must end now."""
        since_s = self.present.since_s
        session_s = since_s - (since_s if self._started_s is None else self._started_s)
        due_s = min(REFERENCE_S, max(_FIRST_S, _SHARE * session_s))
        return not self._session.client.alive or self._session.clock() - since_s >= due_s

    def close(self) -> list[ScheduledMeasurement]:
        """End the block and begin the next one. If the GPU changed during the block, return the measurements to repeat.

        Each measurement is repeated only once.
        """
        number, items = self.present.number, self.present.items
        if not items:
            return []
        self._energy_unchecked |= any(item.tier != Tier.SCREEN for item in items)
        with_energy = self._energy_unchecked and self._session.clock() - self._energy_checked_s >= REFERENCE_S
        error = self.begin(number + 1, with_energy)
        if error is None:
            self._journal.append({"closed": number, "session": self._name})
            return []
        self._journal.append({"drifted": number, "session": self._name, "error": error})
        again = [replace(item, again=True) for item in items if not item.again]
        self._note(f"{error}; {len(again)} measurements are repeated")
        return again
