"""Section 0 of the protocol: what this card's sensors can do, found out rather than assumed; and what it does idle.

Also the reference kernels of section 7, which tell a config that is slow from a card that has become slow.
"""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from kernrec.measure.device.interface import Device, SensorReading
from kernrec.measure.protocol import energy_counter
from kernrec.measure.protocol.measure_config import LEAST_SAMPLES, POLL_S, SensorTraits, energy, latency
from kernrec.measure.protocol.statistics import summarize_latency

IDLE_S = 3.0
_LOAD_S = 3.0
_REFERENCE_WINDOW_S = 1.5


@dataclass(frozen=True)
class Probe:
    """What was found of the sensors. None: the card does not tell.

    call_s: cost of one look at them. tick_s: period of the energy counter. lag_s: how much later than the load begins
    the counter's line bends, the rise of power included. ratio: counter energy over integrated instantaneous power,
    under load. idle_w: with the context alive. load_w: under the compute-bound reference kernel.
    """

    call_s: float
    tick_s: float | None
    lag_s: float | None
    ratio: float | None
    idle_w: float | None
    load_w: float | None
    sm_clock_hz: float | None

    @property
    def probed(self) -> SensorTraits:
        """What the protocol needs of it."""
        return SensorTraits(self.tick_s, self.ratio)

    def why_no_energy(self) -> str | None:
        """Why energy is not measured on this card, in one line; None where it is."""
        if self.tick_s is None:
            return "the card's energy counter does not move"
        if not self.probed.energy:
            return f"the energy counter shows {self.ratio:.2f} of the integrated power, so it is not trusted"
        return None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the pipe and for `kernrec doctor --json`."""
        return asdict(self)


def probe(device: Device) -> Probe:
    """Watch the sensors idle and under a load, for about eight seconds."""
    idle = watch(device, IDLE_S)
    costs = np.diff([s.time_s for s in idle])
    loaded: list[SensorReading] = []
    reference = device.references()["compute"]
    try:
        launch_s = median(reference.times(LEAST_SAMPLES))
        start = device.now()
        found = energy(device, reference, launch_s, _LOAD_S, loaded)
    finally:
        reference.close()
    times = [s.time_s for s in loaded]
    tick_s = lag_s = None
    if all(s.energy_j is not None for s in loaded):
        joules = [s.energy_j or 0.0 for s in loaded]
        ticks = energy_counter.ticks(times, joules)
        tick_s = ticks.period_s if ticks is not None and found.slope is not None else None
        if found.slope is not None and (before := _idle_slope(idle)) is not None:
            lag_s = _bend(idle, loaded, before, found.slope.power_w, found.window_s) - start
    return Probe(
        call_s=max(0.0, float(np.median(costs)) - POLL_S) if len(costs) else 0.0,
        tick_s=tick_s,
        lag_s=lag_s,
        ratio=found.slope.power_w / found.integrated_w if found.slope and found.integrated_w else None,
        idle_w=idle_power(idle),
        load_w=found.slope.power_w if found.slope else found.integrated_w,
        sm_clock_hz=device.sm_clock_hz(),
    )


def watch(device: Device, seconds: float) -> list[SensorReading]:
    """Samples of the sensors for a while, nothing running."""
    samples = [device.sample()]
    while samples[-1].time_s - samples[0].time_s < seconds:
        device.rest(POLL_S)
        samples.append(device.sample())
    return samples


def idle_power(samples: list[SensorReading]) -> float | None:
    """Watts over a trace without load: of the counter where it ticks, else of the power sensor."""
    times = [s.time_s for s in samples]
    slope = _idle_slope(samples)
    if slope is not None:
        return slope.power_w
    known = [(s.time_s, s.power_w) for s in samples if s.power_w is not None]
    return energy_counter.mean_power([t for t, _ in known], [p for _, p in known], times[0], times[-1])


def references(device: Device, probed: SensorTraits, with_energy: bool) -> dict[str, dict[str, float]]:
    """Latency, and energy where it can be measured and is wanted, of the two reference kernels."""
    found: dict[str, dict[str, float]] = {}
    for name, loaded in device.references().items():
        try:
            trace: list[SensorReading] = []
            found[name] = {"latency_s": summarize_latency(latency(device, loaded, None, trace).samples).median}
            if with_energy and probed.energy:
                seconds = max(_REFERENCE_WINDOW_S, 12 * (probed.tick_s or 0.0))
                sustained = energy(device, loaded, found[name]["latency_s"], seconds, trace)
                if sustained.slope is not None:
                    found[name]["energy_j"] = sustained.slope.power_w * sustained.launch_s
        finally:
            loaded.close()
    return found


def _idle_slope(samples: list[SensorReading]) -> energy_counter.PowerSlope | None:
    if any(s.energy_j is None for s in samples):
        return None
    times = [s.time_s for s in samples]
    return energy_counter.power_from_ticks(times, [s.energy_j or 0.0 for s in samples], times[0], times[-1])


def _bend(
    idle: list[SensorReading],
    loaded: list[SensorReading],
    before: energy_counter.PowerSlope,
    load_w: float,
    window_s: float,
) -> float:
    """Where the counter's idle line and its line under load meet."""
    first = energy_counter.ticks([s.time_s for s in idle], [s.energy_j or 0.0 for s in idle])
    last = energy_counter.ticks([s.time_s for s in loaded], [s.energy_j or 0.0 for s in loaded])
    assert first is not None  # both traces gave a slope
    assert last is not None
    steady = last.time_s >= last.time_s[-1] - window_s
    t0, e0 = float(first.time_s.mean()), float(first.energy_j.mean())
    t1, e1 = float(last.time_s[steady].mean()), float(last.energy_j[steady].mean())
    return (e1 - e0 - load_w * t1 + before.power_w * t0) / (before.power_w - load_w)
