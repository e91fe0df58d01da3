"""A card with a clock of its own: kernels of given run times and powers, and sensors that tick, lag and throttle.

Nothing here was measured: it is the stage on which recorded run times are replayed and on which the protocol itself is
tested, against sensors whose truth is known.
"""

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kernrec.measure.device.interface import (
    CardSettings,
    ConfigUnderTest,
    DeviceInfo,
    OutputError,
    PreparedProblem,
    SensorReading,
)


@dataclass(frozen=True)
class SimulatedSensors:
    """How the card's sensors behave: seconds, watts, hertz, degrees Celsius.

    tick_s, lag_s: the energy counter moves every tick and shows what was true a lag before. missing: the share of ticks
    it skips. counter_scale: what it shows over the truth. wrap_j: where it starts again. call_s: cost of a look.
    """

    idle_w: float = 60.0
    tick_s: float | None = 0.1
    lag_s: float = 0.02
    missing: float = 0.0
    counter_scale: float = 1.0
    counter_start_j: float = 1000.0
    wrap_j: float | None = None
    call_s: float = 0.0002
    sm_clock_hz: float | None = 1.7e9
    temperature_c: float | None = 45.0
    reasons_under_load: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SimulatedKernel:
    """What one launch costs: `draw` gives the seconds of each of n launches; power while it runs, None: not known."""

    draw: Callable[[int], np.ndarray]
    power_w: float | None
    errors: OutputError | None = None
    footprint_bytes: int = 1 << 20


def constant_time(seconds: float, power_w: float | None = 300.0, errors: OutputError | None = None) -> SimulatedKernel:
    """A kernel that always takes the same time."""
    return SimulatedKernel(lambda n: np.full(n, seconds), power_w, errors)


class _LoadHistory:
    """What the card did and will have done: spans of load at a constant power, idle before, between and after them."""

    def __init__(self, idle_w: float) -> None:
        self._idle_w = idle_w
        self._start: list[float] = []
        self._end: list[float] = []
        self._power: list[float] = []
        self._energy: list[float] = []  # at the start of each span

    @property
    def end_s(self) -> float:
        """When the last of it is done."""
        return self._end[-1] if self._end else 0.0

    def add(self, start_s: float, seconds: float, power_w: float) -> None:
        """One more span, which begins no earlier than the last ends."""
        if self._end and self._end[-1] == start_s and self._power[-1] == power_w:
            self._end[-1] += seconds
            return
        self._energy.append(self.energy_j(start_s))
        self._start.append(start_s)
        self._end.append(start_s + seconds)
        self._power.append(power_w)

    def energy_j(self, time_s: float) -> float:
        """Energy from the beginning until a time."""
        i = bisect.bisect_right(self._start, time_s) - 1
        if i < 0:
            return self._idle_w * time_s
        busy = min(time_s, self._end[i]) - self._start[i]
        return self._energy[i] + busy * self._power[i] + max(0.0, time_s - self._end[i]) * self._idle_w

    def power_w(self, time_s: float) -> float:
        """Power at a time."""
        i = bisect.bisect_right(self._start, time_s) - 1
        return self._power[i] if i >= 0 and time_s < self._end[i] else self._idle_w


class SimulatedCard:
    """A `Device` whose kernels come from `kernel_of` and whose sensors are `sensors`; time moves when it is used."""

    def __init__(
        self,
        facts: DeviceInfo,
        kernel_of: Callable[[ConfigUnderTest], SimulatedKernel],
        sensors: SimulatedSensors | None = None,
        references: Mapping[str, SimulatedKernel] | None = None,
        seed: int = 0,
    ) -> None:
        self.facts = facts
        self.sensors = sensors or SimulatedSensors()
        self._kernel_of = kernel_of
        self._references = references or {"compute": constant_time(2e-4, 400.0), "memory": constant_time(3e-4, 350.0)}
        self._now = 0.0
        self._work = _LoadHistory(self.sensors.idle_w)
        self._random = np.random.default_rng(seed)
        self._skipped: dict[int, bool] = {}

    def set_references(self, references: Mapping[str, SimulatedKernel]) -> None:
        """From now on the reference kernels are these."""
        self._references = references

    def settings(self) -> CardSettings:
        return self.facts.settings

    def prepare(self, case: PreparedProblem) -> None:
        self._now += 0.01

    def load(self, subject: ConfigUnderTest) -> "LoadedSimulatedConfig":
        return LoadedSimulatedConfig(self, self._kernel_of(subject))

    def references(self) -> Mapping[str, "LoadedSimulatedConfig"]:
        return {name: LoadedSimulatedConfig(self, kernel) for name, kernel in self._references.items()}

    def sample(self) -> SensorReading:
        self._now += self.sensors.call_s
        busy = self._now < self._work.end_s
        known = self.facts.energy is None
        return SensorReading(
            time_s=self._now,
            energy_j=self._counter() if known and self.sensors.tick_s else None,
            power_w=self._work.power_w(self._now) if known else None,
            sm_clock_hz=self.sensors.sm_clock_hz,
            memory_clock_hz=None,
            temperature_c=self.sensors.temperature_c,
            reasons=self.sensors.reasons_under_load if busy else frozenset({"GpuIdle"}),
        )

    def sm_clock_hz(self) -> float | None:
        return self.sensors.sm_clock_hz

    def now(self) -> float:
        return self._now

    def rest(self, seconds: float) -> None:
        self._now += seconds

    def run(self, seconds: float, power_w: float | None) -> float:
        """Queue work; the time at which it is done."""
        self._work.add(max(self._now, self._work.end_s), seconds, self.sensors.idle_w if power_w is None else power_w)
        return self._work.end_s

    def wait(self) -> None:
        """Until the queue is empty."""
        self._now = max(self._now, self._work.end_s)

    def _counter(self) -> float:
        period = self.sensors.tick_s or 1.0
        tick = int((self._now - self.sensors.lag_s) / period)
        while tick > 0 and self._skips(tick):
            tick -= 1
        shown = self.sensors.counter_start_j + self.sensors.counter_scale * self._work.energy_j(max(0.0, tick * period))
        return shown % self.sensors.wrap_j if self.sensors.wrap_j else shown

    def _skips(self, tick: int) -> bool:
        if tick not in self._skipped:
            self._skipped[tick] = bool(self._random.random() < self.sensors.missing)
        return self._skipped[tick]


class LoadedSimulatedConfig:
    """A `LoadedConfig` of the simulated card."""

    renewed = False

    def __init__(self, card: SimulatedCard, kernel: SimulatedKernel) -> None:
        self._card = card
        self._kernel = kernel
        self._ends: list[tuple[float, int]] = []  # when submitted work is done, and how many launches it is
        self._marks: list[float] = []
        self.footprint_bytes = kernel.footprint_bytes

    def errors(self) -> OutputError | None:
        self.times(1)
        return self._kernel.errors

    def times(self, launches: int) -> list[float]:
        drawn = self._kernel.draw(launches)
        self._card.run(float(drawn.sum()), self._kernel.power_w)
        self._card.wait()
        return drawn.tolist()

    def back_to_back(self, launches: int) -> float:
        return float(np.mean(self.times(min(launches, 64)))) if launches else 0.0

    def submit(self, launches: int) -> None:
        seconds = float(self._kernel.draw(min(launches, 64)).mean()) * launches
        self._ends.append((self._card.run(seconds, self._kernel.power_w), launches))

    def outstanding(self) -> int:
        now = self._card.now()
        self._ends = [(end, launches) for end, launches in self._ends if end > now]
        return sum(launches for _, launches in self._ends)

    def mark(self) -> None:
        self._marks.append(self._card.run(0.0, self._kernel.power_w))

    def between_marks(self) -> float:
        self._card.wait()
        first, last = self._marks[0], self._marks[-1]
        self._marks.clear()
        return last - first

    def close(self) -> None:
        self._ends.clear()
