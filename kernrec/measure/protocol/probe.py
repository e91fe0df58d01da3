"""Measure properties of a GPU's sensors, idle power, and the two reference kernels.

The reference kernels never change, so they distinguish a slow config from a GPU that has become slow. A probe is cached
until the machine reboots or gets another driver.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.measure.device.interface import Device, DeviceInfo, SensorReading
from kernrec.measure.protocol import energy_counter
from kernrec.measure.protocol.measure_config import (
    LEAST_SAMPLES,
    POLL_S,
    VERSION,
    SensorTraits,
    measure_energy,
    measure_latency,
)
from kernrec.util.files import write_whole

IDLE_S = 3.0
"""Seconds over which idle power is measured."""
_LOAD_S = 3.0
_REFERENCE_WINDOW_S = 1.5
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Linux's identifier of a boot; other systems have no cache."""


@dataclass(frozen=True)
class Probe:
    """Properties of a GPU's sensors; None for what the GPU does not report."""

    call_s: float
    """Seconds to read all sensors once."""
    tick_s: float | None
    """Seconds between two updates of the energy counter."""
    lag_s: float | None
    """Seconds from the start of a load to the bend in the counter's curve, including the rise of power."""
    ratio: float | None
    """Ratio of the counter's energy to the integral of instantaneous power, under load."""
    idle_w: float | None
    """Idle power in watts with the CUDA context alive."""
    load_w: float | None
    """Power in watts of the compute-bound reference kernel."""
    sm_clock_hz: float | None

    @property
    def traits(self) -> SensorTraits:
        """Return the properties that the protocol needs."""
        return SensorTraits(self.tick_s, self.ratio)

    def why_no_energy(self) -> str | None:
        """Return in one line why energy cannot be measured on this GPU; None if it can."""
        if self.tick_s is None:
            return "the GPU's energy counter does not change"
        if not self.traits.measures_energy:
            return f"the energy counter shows {self.ratio:.2f} of the integrated power, so it is not trusted"
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for other processes and for `kernrec doctor --json`."""
        return asdict(self)


def probe_sensors(device: Device) -> Probe:
    """Probe the sensors of an idle and a loaded GPU, for about eight seconds."""
    idle = read_idle_sensors(device, IDLE_S)
    costs = np.diff([reading.time_s for reading in idle])
    loaded: list[SensorReading] = []
    reference = device.references()["compute"]
    try:
        launch_s = median(reference.times(LEAST_SAMPLES))
        start = device.now()
        window = measure_energy(device, reference, launch_s, _LOAD_S, loaded)
    finally:
        reference.close()
    tick_s = lag_s = None
    if all(reading.energy_j is not None for reading in loaded):
        ticks = _ticks(loaded)
        tick_s = ticks.period_s if ticks is not None and window.slope is not None else None
        if window.slope is not None and (idle_slope := _idle_slope(idle)) is not None:
            lag_s = _bend(idle, loaded, (idle_slope.power_w, window.slope.power_w), window.window_s) - start
    return Probe(
        call_s=max(0.0, float(np.median(costs)) - POLL_S) if len(costs) else 0.0,
        tick_s=tick_s,
        lag_s=lag_s,
        ratio=window.slope.power_w / window.integrated_w if window.slope and window.integrated_w else None,
        idle_w=idle_power(idle),
        load_w=window.slope.power_w if window.slope else window.integrated_w,
        sm_clock_hz=device.sm_clock_hz(),
    )


def read_idle_sensors(device: Device, seconds: float) -> list[SensorReading]:
    """Read the sensors repeatedly for some seconds, with nothing running."""
    readings = [device.read_sensors()]
    while readings[-1].time_s - readings[0].time_s < seconds:
        device.rest(POLL_S)
        readings.append(device.read_sensors())
    return readings


def idle_power(readings: list[SensorReading]) -> float | None:
    """Return the mean watts of a trace without load, from the energy counter if it was updated, else the power
    sensor."""
    slope = _idle_slope(readings)
    if slope is not None:
        return slope.power_w
    power = [(reading.time_s, reading.power_w) for reading in readings if reading.power_w is not None]
    start_s, end_s = readings[0].time_s, readings[-1].time_s
    return energy_counter.mean_power([t for t, _ in power], [p for _, p in power], start_s, end_s)


def measure_references(device: Device, traits: SensorTraits, with_energy: bool) -> dict[str, dict[str, float]]:
    """Measure the reference kernels; return `latency_s`, and `energy_j` if wanted and measurable, by kernel."""
    costs: dict[str, dict[str, float]] = {}
    for name, loaded in device.references().items():
        try:
            trace: list[SensorReading] = []
            latency_s = measure_latency(device, loaded, None, trace)[0].latency_s
            assert latency_s is not None
            costs[name] = {"latency_s": latency_s}
            if with_energy and traits.measures_energy:
                seconds = max(_REFERENCE_WINDOW_S, 12 * (traits.tick_s or 0.0))
                sustained = measure_energy(device, loaded, latency_s, seconds, trace)
                if sustained.slope is not None:
                    costs[name]["energy_j"] = sustained.slope.power_w * sustained.launch_s
        finally:
            loaded.close()
    return costs


def _ticks(readings: list[SensorReading]) -> energy_counter.CounterTicks | None:
    times = [reading.time_s for reading in readings]
    return energy_counter.find_ticks(times, [reading.energy_j or 0.0 for reading in readings])


def _idle_slope(readings: list[SensorReading]) -> energy_counter.PowerSlope | None:
    if any(reading.energy_j is None for reading in readings):
        return None
    times = [reading.time_s for reading in readings]
    energy_j = [reading.energy_j or 0.0 for reading in readings]
    return energy_counter.power_from_ticks(times, energy_j, times[0], times[-1])


def _bend(
    idle: list[SensorReading], loaded: list[SensorReading], power_w: tuple[float, float], window_s: float
) -> float:
    """Return the time at which the counter's idle and loaded regression lines meet.

    `power_w` is (while idle, under load); in the last `window_s` seconds of `loaded` the load was steady.
    """
    idle_ticks, load_ticks = _ticks(idle), _ticks(loaded)
    assert idle_ticks is not None  # Both traces have a slope here.
    assert load_ticks is not None
    steady = load_ticks.time_s >= load_ticks.time_s[-1] - window_s
    t0, e0 = float(idle_ticks.time_s.mean()), float(idle_ticks.energy_j.mean())
    t1, e1 = float(load_ticks.time_s[steady].mean()), float(load_ticks.energy_j[steady].mean())
    idle_w, load_w = power_w
    return (e1 - e0 - load_w * t1 + idle_w * t0) / (idle_w - load_w)


def save_probe(info: DeviceInfo, probe: Probe) -> None:
    """Cache the probe of a GPU; ignore a cache that cannot be written."""
    if (path := _path(info)) is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"of": _validity(info), "probe": probe.as_dict()}).encode())


def load_probe(info: DeviceInfo) -> Probe | None:
    """Return the cached probe of a GPU since the last boot; None if there is none."""
    if (path := _path(info)) is None:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(path.read_text())
        if cached["of"] == _validity(info):
            return Probe(**cached["probe"])
    return None


def _path(info: DeviceInfo) -> Path | None:
    return paths.cache() / "probe" / f"{info.uuid_hash}.json" if info.uuid_hash and _BOOT.exists() else None


def _validity(info: DeviceInfo) -> list[str | int | None]:
    return [_BOOT.read_text().strip(), info.driver, info.nvml, VERSION]
