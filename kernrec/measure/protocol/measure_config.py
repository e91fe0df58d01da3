"""The measuring protocol: correctness, latency, energy and the state of the GPU, for one config.

    correct?  ->  three launches: hopeless?  ->  samples until the median is known  ->  energy under sustained load

It runs in the worker process, where the device is, and returns the part of a measurement that only the device can know
(`DeviceReport`); the campaign adds the rest. A change that affects results needs a new version (`NEWEST_PROTOCOL`),
which is stored with every row.
"""

import math
from dataclasses import dataclass, replace

from kernrec.measure.device.interface import ConfigUnderTest, Device, LoadedConfig, MeasurementFailure, SensorReading
from kernrec.measure.protocol import energy_counter
from kernrec.measure.protocol.statistics import converged, hopeless, summarize_latency
from kernrec.store.device_report import CardState, DeviceReport, EnergyReport, LatencyReport, NumericCheck
from kernrec.store.measurement import NEWEST_PROTOCOL, Outcome, Tier

VERSION = NEWEST_PROTOCOL

# Latency.
FIRST_LAUNCHES = 3
"""Launches after which a hopeless config is given up."""
HOPELESS = 2.0
"""Factor over the best time so far from which on a config is hopeless."""
LEAST_SAMPLES = 10
HALF_WIDTH = 0.01
"""Half of the 90 % interval over the median at which sampling stops."""
LATENCY_CAP_S = 0.5
"""Seconds after which sampling stops, converged or not."""
GROUP = 5
"""Samples taken between two checks of convergence."""
SHORT_S = 50e-6
"""Launches shorter than this are timed back to back."""
SHORT_SAMPLE_S = 1e-3
"""Run time of one such sample."""

# Energy.
QUEUE_AHEAD_S = 0.1
"""Most seconds of queued work: an unbounded queue exhausts memory."""
SETTLE_S = 0.7
"""Seconds under load before the energy window begins."""
POLL_S = 0.002
"""Time between two readings of the sensors."""
SPARE_TICKS = 2
"""Counter updates to wait for beyond the required ones, because the window does not begin and end on an update."""

WINDOWS_S = {
    "volta": (0.5, 2.0),
    "turing": (1.0, 5.0),
    "ampere": (1.0, 5.0),
    "ada": (1.0, 5.0),
    "hopper": (1.0, 5.0),
    "blackwell": (1.0, 5.0),
}
"""Energy windows (coarse, final) in seconds by generation, long enough for its sensor's period and averaging.

Periods and averaging: https://github.com/JimZeyuYang/GPU_Power_Benchmark. Without figures of its own, Blackwell has
those of Hopper.
"""

FINAL_ROUNDS = 4
"""Number of randomized, interleaved rounds of final measurements."""
FINALS = 8
"""Configs measured in the final tier."""
REPEATS = 2
"""Repetitions of a measurement if clocks were lowered by heat or by the board's protection."""


@dataclass(frozen=True)
class SensorTraits:
    """Properties of this GPU's energy counter, from the probe."""

    tick_s: float | None = None
    """Seconds between two updates; None without an energy counter."""
    ratio: float | None = None
    """Energy by the counter over the integral of the power sensor; None if they cannot be compared."""

    @property
    def measures_energy(self) -> bool:
        """Whether there is a counter and it agrees with the power sensor."""
        return self.tick_s is not None and energy_counter.is_trusted(self.ratio)


@dataclass(frozen=True)
class EnergyWindow:
    """Result for one config under sustained load."""

    launch_s: float
    """Mean time of a launch in the window."""
    launches: int
    window_s: float
    slope: energy_counter.PowerSlope | None
    """Power by the energy counter; None if the window had too few counter updates."""
    integrated_w: float | None
    """Mean power by the power sensor."""


def measure_config(
    device: Device, subject: ConfigUnderTest, tier: Tier, best_s: float | None, traits: SensorTraits
) -> DeviceReport:
    """Measure one config.

    Args:
        device: Device to measure on.
        subject: The config.
        tier: Screen measures latency; coarse and final also measure energy.
        best_s: Least latency on this problem so far; the screen tier gives up configs that are hopelessly slower.
        traits: Properties of the device's energy counter.

    Raises:
        MeasurementFailure: The config computes wrong values, or every repetition was disturbed.
    """
    loaded = device.load(subject)
    try:
        check = _check(loaded)
        for _ in range(1 + REPEATS):
            report, slowdown = _measure_once(device, loaded, tier, best_s, traits)
            if slowdown is None:
                return replace(report, check=check, input_footprint=loaded.footprint_bytes / device.info.l2_bytes)
        text = f"clocks were lowered ({slowdown}) in each of {1 + REPEATS} measurements"
        raise MeasurementFailure(Outcome.QUARANTINED, text)
    finally:
        loaded.close()


def _measure_once(
    device: Device, loaded: LoadedConfig, tier: Tier, best_s: float | None, traits: SensorTraits
) -> tuple[DeviceReport, str | None]:
    """Return (the measurement, the reason for lowered clocks that voids it or None)."""
    trace = [device.read_sensors()]
    latency, launches = measure_latency(device, loaded, best_s if tier == Tier.SCREEN else None, trace)
    energy = EnergyReport()
    clock_hz = device.sm_clock_hz()
    if tier != Tier.SCREEN and traits.measures_energy and not loaded.renewed:
        assert latency.latency_s is not None
        seconds = window_s(device.info.generation, tier, traits)
        sustained = measure_energy(device, loaded, latency.latency_s, seconds, trace)
        energy, launches = _energy_report(sustained, traits), sustained.launches
    trace.append(device.read_sensors())
    state = _card_state(trace, clock_hz)
    assert state.event_reasons is not None
    report = DeviceReport(latency, energy, state, launches=launches)
    return report, energy_counter.slowdown_reason(state.event_reasons)


def _check(loaded: LoadedConfig) -> NumericCheck:
    """Return the numeric error. A config with wrong results is a stored outcome and is never timed."""
    errors = loaded.errors()
    if errors is None:
        return NumericCheck()
    if errors.unwritten:
        text = f"{errors.unwritten} elements of the output were not written, or are not numbers"
        report = DeviceReport(check=NumericCheck(checked_against=errors.reference))
        raise MeasurementFailure(Outcome.INCORRECT, text, report=report)
    check = NumericCheck(errors.largest, errors.tolerance or None, errors.reference)
    if not errors.largest <= errors.tolerance:
        most = f"at most {errors.tolerance:.3g} is allowed" if errors.tolerance else "whole numbers have to be equal"
        text = f"error {errors.largest:.3g} of the output's scale, {most}"
        raise MeasurementFailure(Outcome.INCORRECT, text, report=DeviceReport(check=check))
    return check


def measure_latency(
    device: Device, loaded: LoadedConfig, best_s: float | None, trace: list[SensorReading]
) -> tuple[LatencyReport, int]:
    """Time launches until the median is known to 1 % or half a second has passed; return (statistics, number of
    launches).

    Stops after three launches if the config is hopelessly slower than `best_s`. Readings of the sensors are appended to
    `trace`.
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

    if short:  # single short launches seem too slow, and would look hopeless
        samples = more(FIRST_LAUNCHES)
    trace.append(device.read_sensors())
    enough = False
    if not hopeless(samples, best_s, HOPELESS):
        while not (enough := converged(samples, HALF_WIDTH, LEAST_SAMPLES)) and device.now() - start < LATENCY_CAP_S:
            samples += more(GROUP)
            trace.append(device.read_sensors())
    summary, elapsed_s = summarize_latency(samples), device.now() - start
    report = LatencyReport(
        latency_s=summary.median,
        latency_samples_s=tuple(samples),
        latency_n=summary.n,
        latency_mad_s=summary.mad,
        latency_q10_s=summary.q10,
        latency_q90_s=summary.q90,
        latency_low_s=summary.low,
        latency_high_s=summary.high,
        latency_outliers=summary.outliers,
        latency_converged=enough,
        latency_window_s=elapsed_s,
        l2_policy=policy,
    )
    return report, launches


def measure_energy(
    device: Device, loaded: LoadedConfig, launch_s: float, seconds: float, trace: list[SensorReading]
) -> EnergyWindow:
    """Measure power under a load without gaps, as the slope of the energy counter over its updates.

    Power is multiplied by the launch time in the same window: under a power cap it differs from the time in a burst.

    A launch takes about `launch_s`. The window of `seconds` begins after the GPU has settled; readings of the sensors
    are appended to `trace`.
    """
    ahead = max(2, round(QUEUE_AHEAD_S / launch_s))  # even very long launches have one waiting
    batch = max(1, ahead // 4)
    readings: list[SensorReading] = []
    begin = end = device.now()
    marked = launches = 0
    while True:
        while loaded.outstanding() + batch <= ahead:
            loaded.submit(batch)
            launches += batch if marked else 0
        readings.append(device.read_sensors())
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
    power = [(reading.time_s, reading.power_w) for reading in readings if reading.power_w is not None]
    integrated = energy_counter.mean_power([t for t, _ in power], [p for _, p in power], begin, end)
    return EnergyWindow(busy_s / launches, launches, end - begin, slope, integrated)


def window_s(generation: str, tier: Tier, traits: SensorTraits) -> float:
    """Return the seconds of an energy window: what the sensor's generation needs, and enough for ten counter
    updates."""
    coarse, final = WINDOWS_S.get(generation, WINDOWS_S["hopper"])
    least_s = (energy_counter.LEAST_TICKS + SPARE_TICKS) * (traits.tick_s or 0.0)
    return max(final if tier == Tier.FINAL else coarse, least_s)


def _energy_report(window: EnergyWindow, traits: SensorTraits) -> EnergyReport:
    if (slope := window.slope) is None:
        return EnergyReport(sustained_latency_s=window.launch_s, energy_window_s=window.window_s)
    return EnergyReport(
        sustained_latency_s=window.launch_s,
        energy_j=slope.power_w * window.launch_s,
        energy_low_j=slope.low_w * window.launch_s if slope.low_w > 0.0 else None,
        energy_high_j=slope.high_w * window.launch_s,
        power_w=slope.power_w,
        energy_method="slope of the energy counter over its ticks",
        energy_ticks=slope.ticks,
        energy_tick_s=slope.period_s,
        energy_counter_ratio=slope.power_w / window.integrated_w if window.integrated_w else traits.ratio,
        energy_window_s=window.window_s,
    )


def _card_state(trace: list[SensorReading], clock_hz: float | None) -> CardState:
    """Return the state of the GPU over a trace; `clock_hz` is the mean SM clock that a kernel measured, if any."""
    loaded = [reading for reading in trace if "GpuIdle" not in reading.reasons]
    clocks = [reading.sm_clock_hz for reading in loaded if reading.sm_clock_hz]
    all_clocks = clocks + ([clock_hz] if clock_hz else [])
    memory_clocks = [reading.memory_clock_hz for reading in loaded if reading.memory_clock_hz]
    return CardState(
        temperature_start_c=trace[0].temperature_c,
        temperature_end_c=trace[-1].temperature_c,
        sm_clock_mean_hz=clock_hz or (sum(clocks) / len(clocks) if clocks else None),
        sm_clock_min_hz=min(all_clocks) if all_clocks else None,
        memory_clock_hz=memory_clocks[-1] if memory_clocks else None,
        event_reasons=energy_counter.reason_shares(reading.reasons for reading in trace),
    )
