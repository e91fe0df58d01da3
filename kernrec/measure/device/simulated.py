"""Simulate a GPU with its own clock, to replay recorded run times and to test the protocol."""

import bisect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kernrec.measure.device.interface import (
    ConfigUnderTest,
    DeviceInfo,
    OutputError,
    PreparedProblem,
    SensorReading,
)
from kernrec.store.measurement import GpuSettings

_IDLE = frozenset({"GpuIdle"})


@dataclass(frozen=True)
class SimulatedSensors:
    """Behavior of a simulated GPU's sensors."""

    idle_w: float = 60.0
    tick_s: float | None = 0.1
    """Seconds between two updates of the energy counter, or None if the GPU has no energy counter."""
    lag_s: float = 0.02
    """Delay of the energy counter in seconds."""
    missing: float = 0.0
    """Fraction of the energy counter's updates that are skipped."""
    counter_scale: float = 1.0
    """Energy according to the counter, divided by the true energy."""
    counter_start_j: float = 1000.0
    wrap_j: float | None = None
    """Energy in joules at which the counter restarts at zero, or None if it never restarts."""
    call_s: float = 0.0002
    """Seconds that one reading of all sensors takes."""
    sm_clock_hz: float | None = 1.7e9
    temperature_c: float | None = 45.0
    reasons_under_load: frozenset[str] = frozenset()
    """Clock event reasons that are reported while a kernel runs."""


@dataclass(frozen=True)
class SimulatedKernel:
    draw: Callable[[int], np.ndarray]
    """Function that takes a number n and returns the seconds of each of n launches."""
    power_w: float | None
    """Power in watts during the launch, or None if it is unknown."""
    errors: OutputError | None = None
    footprint_bytes: int = 1 << 20


def constant_time(seconds: float, power_w: float | None = 300.0, errors: OutputError | None = None) -> SimulatedKernel:
    return SimulatedKernel(lambda n: np.full(n, seconds), power_w, errors)


class _LoadHistory:
    """Power of the simulated GPU over time: spans of constant power, and idle power between spans."""

    def __init__(self, idle_w: float) -> None:
        self._idle_w = idle_w
        self._start: list[float] = []
        self._end: list[float] = []
        self._power: list[float] = []
        self._energy: list[float] = []  # energy at the start of each span

    @property
    def end_s(self) -> float:
        return self._end[-1] if self._end else 0.0

    def add(self, start_s: float, seconds: float, power_w: float) -> None:
        """Add a span. The span must not begin before the last span ends."""
        if self._end and self._end[-1] == start_s and self._power[-1] == power_w:
            self._end[-1] += seconds
            return
        self._energy.append(self.energy_j(start_s))
        self._start.append(start_s)
        self._end.append(start_s + seconds)
        self._power.append(power_w)

    def energy_j(self, time_s: float) -> float:
        """Return the energy in joules from time zero to a time."""
        i = bisect.bisect_right(self._start, time_s) - 1
        if i < 0:
            return self._idle_w * time_s
        busy = min(time_s, self._end[i]) - self._start[i]
        return self._energy[i] + busy * self._power[i] + max(0.0, time_s - self._end[i]) * self._idle_w

    def power_w(self, time_s: float) -> float:
        i = bisect.bisect_right(self._start, time_s) - 1
        return self._power[i] if i >= 0 and time_s < self._end[i] else self._idle_w


class SimulatedGpu:
    """A `Device` with a simulated clock. Launches, sensor readings and rests advance the clock."""

    def __init__(
        self,
        info: DeviceInfo,
        kernel_of: Callable[[ConfigUnderTest], SimulatedKernel],
        sensors: SimulatedSensors | None = None,
        seed: int = 0,
    ) -> None:
        """Create a simulated GPU. `kernel_of` returns a config's simulated kernel, or raises `MeasurementFailure`."""
        self.info = info
        self.sensors = sensors or SimulatedSensors()
        self._kernel_of = kernel_of
        self._references = {"compute": constant_time(2e-4, 400.0), "memory": constant_time(3e-4, 350.0)}
        self._now = 0.0
        self._load = _LoadHistory(self.sensors.idle_w)
        self._random = np.random.default_rng(seed)
        self._skipped: dict[int, bool] = {}
        self._shown = (-1, 0.0)  # number of the energy counter's last update, and the counter's value after it

    def settings(self) -> GpuSettings:
        return self.info.settings

    def prepare(self, prepared: PreparedProblem) -> None:
        self._now += 0.01

    def load(self, subject: ConfigUnderTest) -> "LoadedSimulatedConfig":
        return LoadedSimulatedConfig(self, self._kernel_of(subject))

    def references(self) -> Mapping[str, "LoadedSimulatedConfig"]:
        return {name: LoadedSimulatedConfig(self, kernel) for name, kernel in self._references.items()}

    def read_sensors(self) -> SensorReading:
        self._now += self.sensors.call_s
        busy = self._now < self._load.end_s
        with_energy = self.info.energy is None
        return SensorReading(
            time_s=self._now,
            energy_j=self._counter() if with_energy and self.sensors.tick_s else None,
            power_w=self._load.power_w(self._now) if with_energy else None,
            sm_clock_hz=self.sensors.sm_clock_hz,
            memory_clock_hz=None,
            temperature_c=self.sensors.temperature_c,
            reasons=self.sensors.reasons_under_load if busy else _IDLE,
        )

    def sm_clock_hz(self) -> float | None:
        return self.sensors.sm_clock_hz

    def now(self) -> float:
        return self._now

    def rest(self, seconds: float) -> None:
        self._now += seconds

    def run(self, seconds: float, power_w: float | None) -> float:
        """Queue work of a given duration and power, and return the time at which it ends."""
        self._load.add(max(self._now, self._load.end_s), seconds, self.sensors.idle_w if power_w is None else power_w)
        return self._load.end_s

    def wait(self) -> None:
        """Advance the clock until all queued work has ended."""
        self._now = max(self._now, self._load.end_s)

    def _counter(self) -> float:
        period = self.sensors.tick_s or 1.0
        tick = int((self._now - self.sensors.lag_s) / period)
        while tick > 0 and self._skips(tick):
            tick -= 1
        tick = max(tick, 0)
        if self._shown[0] != tick:  # Cache the value, because each update is read about a hundred times.
            shown = self.sensors.counter_start_j + self.sensors.counter_scale * self._load.energy_j(tick * period)
            self._shown = tick, shown % self.sensors.wrap_j if self.sensors.wrap_j else shown
        return self._shown[1]

    def _skips(self, tick: int) -> bool:
        if tick not in self._skipped:
            self._skipped[tick] = bool(self._random.random() < self.sensors.missing)
        return self._skipped[tick]


class LoadedSimulatedConfig:
    renewed = False

    def __init__(self, gpu: SimulatedGpu, kernel: SimulatedKernel) -> None:
        self._gpu = gpu
        self._kernel = kernel
        # queued work as (end time, number of launches), earliest first
        self._ends: deque[tuple[float, int]] = deque()
        self._outstanding = 0
        self._marks: list[float] = []
        self.footprint_bytes = kernel.footprint_bytes

    def errors(self) -> OutputError | None:
        self.times(1)
        return self._kernel.errors

    def times(self, launches: int) -> list[float]:
        drawn = self._kernel.draw(launches)
        self._gpu.run(float(drawn.sum()), self._kernel.power_w)
        self._gpu.wait()
        return list(drawn.tolist())

    def back_to_back(self, launches: int) -> float:
        return float(np.mean(self.times(min(launches, 64)))) if launches else 0.0

    def submit(self, launches: int) -> None:
        seconds = float(self._kernel.draw(min(launches, 64)).mean()) * launches
        self._ends.append((self._gpu.run(seconds, self._kernel.power_w), launches))
        self._outstanding += launches

    def outstanding(self) -> int:
        now = self._gpu.now()
        while self._ends and self._ends[0][0] <= now:
            self._outstanding -= self._ends.popleft()[1]
        return self._outstanding

    def mark(self) -> None:
        self._marks.append(self._gpu.run(0.0, self._kernel.power_w))

    def between_marks(self) -> float:
        self._gpu.wait()
        first, last = self._marks[0], self._marks[-1]
        self._marks.clear()
        return last - first

    def close(self) -> None:
        self._ends.clear()
        self._outstanding = 0
