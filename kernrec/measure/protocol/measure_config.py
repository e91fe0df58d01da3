"""The measuring protocol: MEASURING.md, sections 1 to 5 and 7, in its order and with its numbers.

    correct?  ->  three launches: hopeless?  ->  samples until the median is known  ->  energy under sustained load

It runs where the device is, in the child process. What it gives is the part of a database row that only the device can
know; who asked, when and in which block is added by the campaign. A change here that changes results gets a new
`VERSION`, which is stored with every row.
"""

import math
from dataclasses import dataclass
from typing import Any

from kernrec.measure.device.interface import ConfigUnderTest, Device, LoadedConfig, MeasurementFailure, SensorReading
from kernrec.measure.protocol import energy_counter
from kernrec.measure.protocol.statistics import converged, hopeless, summarize_latency

VERSION = 1

# Section 4: latency.
FIRST_LAUNCHES = 3
HOPELESS = 2.0
"""A config slower than the best so far by this factor is not sampled any further."""
LEAST_SAMPLES = 10
HALF_WIDTH = 0.01
LATENCY_CAP_S = 0.5
GROUP = 5
"""Samples taken between two looks at whether they are enough."""
SHORT_S = 50e-6
"""Launches shorter than this are timed back to back."""
SHORT_SAMPLE_S = 1e-3
"""Run time of one such sample."""

# Section 5: energy.
AHEAD_S = 0.1
SETTLE_S = 0.7
POLL_S = 0.002
SPARE_TICKS = 2
"""More ticks than ten are waited for, because the window does not begin and end on one."""

# Section 0: the window that the sensor's period and averaging ask for, by generation, (coarse, final) in seconds.
# Period and averaging: https://github.com/JimZeyuYang/GPU_Power_Benchmark. Blackwell: as Hopper, for want of figures.
WINDOWS_S = {
    "volta": (0.5, 2.0),
    "turing": (1.0, 5.0),
    "ampere": (1.0, 5.0),
    "ada": (1.0, 5.0),
    "hopper": (1.0, 5.0),
    "blackwell": (1.0, 5.0),
}

FINAL_ROUNDS = 4
"""Section 5: a final config is measured in as many randomised, interleaved rounds."""
FINALS = 8
REPEATS = 2
"""Section 7: how often a measurement that heat or the board's protection disturbed is repeated before quarantine."""


@dataclass(frozen=True)
class SensorTraits:
    """What the probe found of this card's sensors (section 0). tick_s: None where there is no energy counter."""

    tick_s: float | None = None
    ratio: float | None = None

    @property
    def energy(self) -> bool:
        """Whether the counter's energy is to be believed."""
        return self.tick_s is not None and energy_counter.trusted(self.ratio)


@dataclass(frozen=True)
class Latency:
    """Event-timed seconds of launches; stopped: too slow to be worth more samples."""

    samples: tuple[float, ...]
    converged: bool
    stopped: bool
    launches: int
    window_s: float
    l2_policy: str


@dataclass(frozen=True)
class Energy:
    """Energy of one launch under sustained load. slope: None where the window was too short for the counter."""

    launch_s: float
    launches: int
    window_s: float
    slope: energy_counter.PowerSlope | None
    integrated_w: float | None


def measure(
    device: Device, subject: ConfigUnderTest, tier: str, best_s: float | None, probed: SensorTraits
) -> dict[str, Any]:
    """Measure one config; the columns of its row that the device knows.

    tier: `screen` (latency), `coarse` or `final` (energy too). best_s: the least latency on this problem so far. A
    config that computes wrong values, or that is disturbed again and again, raises `MeasurementFailure`.
    """
    loaded = device.load(subject)
    try:
        columns = _correct(loaded)
        columns |= {"input_footprint": loaded.footprint_bytes / device.facts.l2_bytes}
        for _ in range(1 + REPEATS):
            row, disturbed = _once(device, loaded, tier, best_s, probed)
            if disturbed is None:
                return columns | row
        raise MeasurementFailure(
            "quarantined", f"clocks were lowered ({disturbed}) in each of {1 + REPEATS} measurements"
        )
    finally:
        loaded.close()


def _once(
    device: Device, loaded: LoadedConfig, tier: str, best_s: float | None, probed: SensorTraits
) -> tuple[dict[str, Any], str | None]:
    trace = [device.sample()]
    burst = latency(device, loaded, best_s if tier == "screen" else None, trace)
    columns = _latency_columns(burst)
    clock = device.sm_clock_hz()
    if tier != "screen" and probed.energy and not loaded.renewed:
        sustained = energy(device, loaded, columns["latency_s"], window_s(device.facts.generation, tier, probed), trace)
        columns |= _energy_columns(sustained, probed)
    trace.append(device.sample())
    return columns | _state_columns(trace, clock), energy_counter.slowed(
        energy_counter.shares(s.reasons for s in trace)
    )


def _correct(loaded: LoadedConfig) -> dict[str, Any]:
    """Section 2: the numeric error; a config that computes something else is a stored outcome and is never timed."""
    errors = loaded.errors()
    if errors is None:
        return {}
    columns: dict[str, Any] = {"checked_against": errors.reference}
    if errors.unwritten:
        text = f"{errors.unwritten} elements of the output were not written, or are not numbers"
        raise MeasurementFailure("incorrect", text, columns=columns)
    columns |= {"numeric_error": errors.largest, "tolerance": errors.tolerance or None}
    if not errors.largest <= errors.tolerance:
        most = f"at most {errors.tolerance:.3g} is allowed" if errors.tolerance else "whole numbers have to be equal"
        text = f"error {errors.largest:.3g} of the output's scale, {most}"
        raise MeasurementFailure("incorrect", text, columns=columns)
    return columns


def latency(device: Device, loaded: LoadedConfig, best_s: float | None, trace: list[SensorReading]) -> Latency:
    """Section 4: three launches, then samples until the median is known to 1 % or half a second has passed.

    best_s: stop after the three launches where they are twice as slow. trace: samples of the sensors are added to it.
    """
    loaded.times(1)  # the first launch loads the code
    start = device.now()
    samples = loaded.times(FIRST_LAUNCHES)
    launches, policy, each = 1 + FIRST_LAUNCHES, "flushed, inputs renewed" if loaded.renewed else "flushed", 1
    if short := sorted(samples)[FIRST_LAUNCHES // 2] < SHORT_S and not loaded.renewed:
        each = max(2, math.ceil(SHORT_SAMPLE_S / min(samples)))
        policy = f"rotating, {each} back to back"

    def more(count: int) -> list[float]:
        nonlocal launches
        launches += count * each
        return [loaded.back_to_back(each) for _ in range(count)] if short else loaded.times(count)

    if short:  # timed alone they seem longer than they are, which is no reason to give one up
        samples = more(FIRST_LAUNCHES)
    trace.append(device.sample())
    if hopeless(samples, best_s, HOPELESS):
        return Latency(tuple(samples), False, True, launches, device.now() - start, policy)
    while not (enough := converged(samples, HALF_WIDTH, LEAST_SAMPLES)) and device.now() - start < LATENCY_CAP_S:
        samples += more(GROUP)
        trace.append(device.sample())
    return Latency(tuple(samples), enough, False, launches, device.now() - start, policy)


def energy(device: Device, loaded: LoadedConfig, launch_s: float, seconds: float, trace: list[SensorReading]) -> Energy:
    """Section 5: power as the slope of the counter over its ticks under a load without gaps, once the card has settled.

    launch_s: run time of a launch, roughly. seconds: the window after settling. The launch time that power is
    multiplied with is that of the same window: under a power cap it differs from the burst's.
    """
    ahead = max(2, round(AHEAD_S / launch_s))  # of very long launches one waits while another runs
    batch = max(1, ahead // 4)
    readings: list[SensorReading] = []
    begin = end = device.now()
    marked = launches = 0
    while True:
        while loaded.outstanding() + batch <= ahead:
            loaded.submit(batch)
            launches += batch if marked else 0
        readings.append(device.sample())
        now = readings[-1].time_s
        if not marked and now - begin >= SETTLE_S:
            loaded.mark()
            marked, launches, begin, end = 1, 0, now, now + seconds
        elif launches and now >= end:
            loaded.mark()
            break
        device.rest(POLL_S)
    busy_s = loaded.between_marks()
    trace += readings
    times = [reading.time_s for reading in readings]
    slope = None
    if all(reading.energy_j is not None for reading in readings):
        slope = energy_counter.power_from_ticks(times, [reading.energy_j or 0.0 for reading in readings], begin, end)
    known = [(reading.time_s, reading.power_w) for reading in readings if reading.power_w is not None]
    integrated = energy_counter.mean_power([t for t, _ in known], [p for _, p in known], begin, end)
    return Energy(busy_s / launches, launches, end - begin, slope, integrated)


def window_s(generation: str, tier: str, probed: SensorTraits) -> float:
    """How long power is watched: what the sensor's generation asks for, and long enough for ten ticks."""
    coarse, final = WINDOWS_S.get(generation, WINDOWS_S["hopper"])
    wanted = final if tier == "final" else coarse
    return max(wanted, (energy_counter.LEAST_TICKS + SPARE_TICKS) * (probed.tick_s or 0.0))


def _latency_columns(found: Latency) -> dict[str, Any]:
    s = summarize_latency(found.samples)
    return {
        "latency_s": s.median,
        "latency_samples_s": list(found.samples),
        "latency_n": s.n,
        "latency_mad_s": s.mad,
        "latency_q10_s": s.q10,
        "latency_q90_s": s.q90,
        "latency_low_s": s.low,
        "latency_high_s": s.high,
        "latency_outliers": s.outliers,
        "latency_converged": found.converged,
        "latency_window_s": found.window_s,
        "l2_policy": found.l2_policy,
        "launches": found.launches,
    }


def _energy_columns(found: Energy, probed: SensorTraits) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "sustained_latency_s": found.launch_s,
        "energy_window_s": found.window_s,
        "launches": found.launches,
    }
    if (slope := found.slope) is None:
        return columns
    ratio = slope.power_w / found.integrated_w if found.integrated_w else probed.ratio
    return columns | {
        "energy_j": slope.power_w * found.launch_s,
        "energy_low_j": slope.low_w * found.launch_s if slope.low_w > 0.0 else None,
        "energy_high_j": slope.high_w * found.launch_s,
        "power_w": slope.power_w,
        "energy_method": "slope of the energy counter over its ticks",
        "energy_ticks": slope.ticks,
        "energy_tick_s": slope.period_s,
        "energy_counter_ratio": ratio,
    }


def _state_columns(trace: list[SensorReading], clock_hz: float | None) -> dict[str, Any]:
    """Section 7. The mean clock is the kernel's own where it could be asked, else that of the driver's readings."""
    loaded = [s for s in trace if "GpuIdle" not in s.reasons]
    clocks = [s.sm_clock_hz for s in loaded if s.sm_clock_hz]
    seen = clocks + ([clock_hz] if clock_hz else [])
    memory = [s.memory_clock_hz for s in loaded if s.memory_clock_hz]
    return {
        "temperature_start_c": trace[0].temperature_c,
        "temperature_end_c": trace[-1].temperature_c,
        "sm_clock_mean_hz": clock_hz or (sum(clocks) / len(clocks) if clocks else None),
        "sm_clock_min_hz": min(seen) if seen else None,
        "memory_clock_hz": memory[-1] if memory else None,
        "event_reasons": energy_counter.shares(s.reasons for s in trace),
    }
