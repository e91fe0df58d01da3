"""Measure the properties of a GPU's sensors, its idle power and the two reference kernels.

The reference kernels never change: if they become slower, the GPU has become slow. A probe is cached until the machine
reboots or its driver changes.
"""

import json
from contextlib import suppress
from pathlib import Path
from statistics import median

from kernrec import paths
from kernrec.measure.device.interface import Device, DeviceInfo, SensorReading
from kernrec.measure.protocol import energy_counter
from kernrec.measure.protocol.measure_config import (
    LEAST_SAMPLES,
    POLL_S,
    VERSION,
    Probe,
    measure_energy,
    measure_latency,
)
from kernrec.util.files import write_whole

IDLE_S = 3.0
"""Seconds during which idle power is measured."""
_LOAD_S = 3.0
_REFERENCE_WINDOW_S = 1.5
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""File in which Linux identifies the current boot. On other systems, probes are not cached."""


def probe_sensors(device: Device) -> Probe:
    """Probe the sensors of a GPU when it is idle and under load. The probe takes about eight seconds."""
    idle = read_idle_sensors(device, IDLE_S)
    reference = device.references()["compute"]
    try:
        launch_s = median(reference.times(LEAST_SAMPLES))
        window = measure_energy(device, reference, launch_s, _LOAD_S, [])
    finally:
        reference.close()
    return Probe(
        tick_s=window.slope.period_s if window.slope else None,
        ratio=window.slope.power_w / window.integrated_w if window.slope and window.integrated_w else None,
        idle_w=idle_power(idle),
        load_w=window.slope.power_w if window.slope else window.integrated_w,
        sm_clock_hz=device.sm_clock_hz(),
    )


def read_idle_sensors(device: Device, seconds: float) -> list[SensorReading]:
    """Read the sensors repeatedly for some seconds while the GPU is idle."""
    readings = [device.read_sensors()]
    while readings[-1].time_s - readings[0].time_s < seconds:
        device.rest(POLL_S)
        readings.append(device.read_sensors())
    return readings


def idle_power(readings: list[SensorReading]) -> float | None:
    """Return the mean power in watts of an idle GPU."""
    slope, mean_w = energy_counter.powers(readings, readings[0].time_s, readings[-1].time_s)
    return mean_w if slope is None else slope.power_w


def measure_references(device: Device, probe: Probe, with_energy: bool) -> dict[str, dict[str, float]]:
    """Return the costs of each reference kernel, keyed by name: `latency_s` and, if measured, `energy_j`."""
    costs: dict[str, dict[str, float]] = {}
    for name, loaded in device.references().items():
        try:
            trace: list[SensorReading] = []
            latency_s = measure_latency(device, loaded, None, trace)[0].latency_s
            assert latency_s is not None
            costs[name] = {"latency_s": latency_s}
            if with_energy and probe.measures_energy:
                seconds = max(_REFERENCE_WINDOW_S, 12 * (probe.tick_s or 0.0))
                sustained = measure_energy(device, loaded, latency_s, seconds, trace)
                if sustained.slope is not None:
                    costs[name]["energy_j"] = sustained.slope.power_w * sustained.launch_s
        finally:
            loaded.close()
    return costs


def save_probe(info: DeviceInfo, probe: Probe) -> None:
    """Cache the probe of a GPU if the cache can be written."""
    if (path := _path(info)) is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"of": _validity(info), "probe": vars(probe)}).encode())


def load_probe(info: DeviceInfo) -> Probe | None:
    """Return the cached probe of a GPU. Return None if the machine has rebooted or its driver has changed since the
    probe."""
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
