"""Measure one config: check correctness, and measure latency, energy and the state of the GPU.

    correct?  ->  three launches: hopeless?  ->  samples until the median is known  ->  energy under sustained load

A change that affects results needs a new protocol version (`NEWEST_PROTOCOL`), which is stored in every row. Statistics
are medians and quantiles, because run times have a long tail that distorts means and standard deviations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernrec.measure.device.interface import ConfigUnderTest, Device, LoadedConfig, MeasurementFailure, SensorReading
from kernrec.measure.protocol import energy_counter
from kernrec.store.measurement import (
    NEWEST_PROTOCOL,
    DeviceReport,
    EnergyReport,
    GpuState,
    LatencyReport,
    NumericCheck,
    Outcome,
    Tier,
)

CONFIDENCE = 0.9
"""Confidence of all stored and predicted intervals."""
OUTLIER_MADS = 5.0
"""Distance of outliers from the median, in median absolute deviations."""


def summarize_latency(samples: Sequence[float]) -> LatencyReport:
    """Return the statistics of one or more positive samples."""
    values = np.sort(np.asarray(samples, dtype=np.float64))
    median = float(np.median(values))
    deviation = np.abs(values - median)
    mad = float(np.median(deviation))
    q10, q90 = (float(q) for q in np.quantile(values, (0.1, 0.9)))
    low = high = None
    if (rank := interval_rank(len(values))) is not None:
        low, high = float(values[rank]), float(values[len(values) - 1 - rank])
    return LatencyReport(
        latency_s=median,
        latency_samples_s=tuple(samples),
        latency_n=len(values),
        latency_mad_s=mad,
        latency_q10_s=q10,
        latency_q90_s=q90,
        latency_low_s=low,
        latency_high_s=high,
        latency_outliers=int((deviation > OUTLIER_MADS * mad).sum()),
    )


def interval_rank(n: int) -> int | None:
    """Return the index of the lower end of the median's 90 % interval in `n` sorted samples. The upper end has the same
    index, counted from the last sample. Return None if there are too few samples.

    The number of samples below the median is binomial(n, 1/2) for any distribution (Conover, Practical Nonparametric
    Statistics, section 3.2).
    """
    tail, rank = 0.0, -1
    while rank + 1 < n / 2:
        tail += math.comb(n, rank + 1) * 0.5**n if n < 1000 else _normal_mass(n, rank + 1)
        if 2.0 * tail > 1.0 - CONFIDENCE:
            break
        rank += 1
    return rank if rank >= 0 else None


def _normal_mass(n: int, k: int) -> float:
    """Approximate the probability of `k` heads in `n` coin tosses for large `n`, without underflow."""
    return math.sqrt(2.0 / (math.pi * n)) * math.exp(-((2 * k - n) ** 2) / (2 * n))


def converged(samples: Sequence[float], half_width: float, least: int) -> bool:
    """Return whether there are at least `least` samples, and the relative half-width of the median's interval is below
    `half_width`."""
    if len(samples) < max(1, least):
        return False
    summary = summarize_latency(samples)
    median, low, high = summary.latency_s, summary.latency_low_s, summary.latency_high_s
    if median is None or low is None or high is None:
        return False
    return (high - low) / (2.0 * median) < half_width


def hopeless(samples: Sequence[float], best_s: float | None, factor: float) -> bool:
    """Return whether a config's median latency exceeds `factor` times the lowest latency so far."""
    return best_s is not None and float(np.median(samples)) > factor * best_s


VERSION = NEWEST_PROTOCOL

# Constants of the latency measurement.
FIRST_LAUNCHES = 3
"""Number of launches after which a config is abandoned if it is hopelessly slow."""
HOPELESS = 2.0
"""Minimum factor by which a hopelessly slow config exceeds the lowest latency so far."""
LEAST_SAMPLES = 10
HALF_WIDTH = 0.01
"""Relative half-width of the median's 90 % interval below which sampling stops."""
LATENCY_CAP_S = 0.5
"""Seconds after which sampling stops in any case."""
GROUP = 5
"""Number of samples between two checks of convergence."""
SHORT_S = 50e-6
"""Latency in seconds below which launches are timed in batches, back to back."""
SHORT_SAMPLE_S = 1e-3
"""Seconds per batch of back-to-back launches. Each batch is one sample."""

# Constants of the energy measurement.
QUEUE_AHEAD_S = 0.1
"""Maximum seconds of work to queue, because an unbounded queue would exhaust memory."""
SETTLE_S = 0.7
"""Seconds of load before the energy window begins, so that the GPU settles."""
POLL_S = 0.002
"""Seconds between two readings of the sensors."""
SPARE_TICKS = 2
"""Extra counter updates in an energy window, because the window does not begin and end on an update."""

WINDOWS_S = {
    "volta": (0.5, 2.0),
    "turing": (1.0, 5.0),
    "ampere": (1.0, 5.0),
    "ada": (1.0, 5.0),
    "hopper": (1.0, 5.0),
    "blackwell": (1.0, 5.0),
}
"""Seconds of an energy measurement in `Tier.COARSE` and in `Tier.FINAL`, keyed by GPU generation.

Each duration is longer than the update and averaging periods of the sensors. Source:
https://github.com/JimZeyuYang/GPU_Power_Benchmark. No periods are published for Blackwell, so Hopper's are used.
"""

FINAL_ROUNDS = 4
"""Number of times that each config is measured in the final tier."""
FINALS = 8
"""Number of configs measured in the final tier."""
REPEATS = 2
"""Number of times that a measurement is repeated if heat or the board's protection lowered the clocks."""


@dataclass(frozen=True)
class Probe:
    """Properties of a GPU's sensors, measured by `probe_sensors`. None means that the GPU does not report the value."""

    tick_s: float | None = None
    """Seconds between two updates of the energy counter, or None if there were too few updates."""
    ratio: float | None = None
    """Energy from the counter, divided by energy from the power sensor, under load."""
    idle_w: float | None = None
    """Idle power in watts, while a CUDA context exists."""
    load_w: float | None = None
    """Power in watts while the compute-bound reference kernel runs."""
    sm_clock_hz: float | None = None

    @property
    def measures_energy(self) -> bool:
        return self.tick_s is not None and energy_counter.is_trusted(self.ratio)

    def why_no_energy(self) -> str | None:
        """Return why the energy of this GPU cannot be measured, or None if it can."""
        if self.tick_s is None:
            return "the GPU's energy counter does not change"
        if not self.measures_energy:
            return f"the energy counter shows {self.ratio:.2f} of the integrated power, so it is not trusted"
        return None


@dataclass(frozen=True)
class EnergyWindow:
    """Power and launch time of one config under sustained load."""

    launch_s: float
    """Mean seconds per launch in the window."""
    launches: int
    window_s: float
    slope: energy_counter.PowerSlope | None
    """Power from the energy counter, or None if the window has too few counter updates."""
    integrated_w: float | None
    """Mean power from the power sensor, in watts."""


def measure_config(
    device: Device, subject: ConfigUnderTest, tier: Tier, best_s: float | None, probe: Probe
) -> DeviceReport:
    """Measure one config.

    Args:
        tier: Tier of the measurement. `Tier.SCREEN` measures only latency, and the other tiers also energy.
        best_s: Lowest latency in seconds on this problem so far, or None if there is none. In `Tier.SCREEN`, a much
            slower config is abandoned.

    Raises:
        MeasurementFailure: The config computes wrong values, or the clocks were lowered in every attempt.
    """
    loaded = device.load(subject)
    try:
        check = _check(loaded)
        for _ in range(1 + REPEATS):
            report, slowdown = _measure_once(device, loaded, tier, best_s, probe)
            if slowdown is None:
                footprint = loaded.footprint_bytes / device.info.l2_bytes
                return replace(report, **vars(check), input_footprint=footprint)
        text = f"clocks were lowered ({slowdown}) in each of {1 + REPEATS} measurements"
        raise MeasurementFailure(Outcome.QUARANTINED, text)
    finally:
        loaded.close()


def _measure_once(
    device: Device, loaded: LoadedConfig, tier: Tier, best_s: float | None, probe: Probe
) -> tuple[DeviceReport, str | None]:
    """Return (report, reason). The reason names the event that lowered the clocks, or is None."""
    trace = [device.read_sensors()]
    latency, launches = measure_latency(device, loaded, best_s if tier == Tier.SCREEN else None, trace)
    energy = EnergyReport()
    clock_hz = device.sm_clock_hz()
    if tier != Tier.SCREEN and probe.measures_energy and not loaded.renewed:
        assert latency.latency_s is not None
        seconds = window_s(device.info.generation, tier, probe)
        sustained = measure_energy(device, loaded, latency.latency_s, seconds, trace)
        energy, launches = _energy_report(sustained, probe), sustained.launches
    trace.append(device.read_sensors())
    state = _gpu_state(trace, clock_hz)
    assert state.event_reasons is not None
    report = DeviceReport(**vars(latency), **vars(energy), **vars(state), launches=launches)
    return report, next((name for name in energy_counter.SLOWDOWNS if state.event_reasons.get(name, 0.0) > 0.0), None)


def _check(loaded: LoadedConfig) -> NumericCheck:
    """Return the numeric error of a config's outputs. Raise `MeasurementFailure` if the outputs are wrong."""
    errors = loaded.errors()
    if errors is None:
        return NumericCheck()
    if errors.unwritten:
        text = f"{errors.unwritten} elements of the output were not written, or are NaN"
        report = DeviceReport(checked_against=errors.reference)
        raise MeasurementFailure(Outcome.INCORRECT, text, report=report)
    check = NumericCheck(errors.largest, errors.tolerance or None, errors.reference)
    if not errors.largest <= errors.tolerance:
        most = f"at most {errors.tolerance:.3g} is allowed" if errors.tolerance else "whole numbers have to be equal"
        text = f"error {errors.largest:.3g} of the output's scale, {most}"
        raise MeasurementFailure(Outcome.INCORRECT, text, report=DeviceReport(**vars(check)))
    return check


def measure_latency(
    device: Device, loaded: LoadedConfig, best_s: float | None, trace: list[SensorReading]
) -> tuple[LatencyReport, int]:
    """Time launches until the median is known to 1 %, but at most for half a second. Stop early if the config is
    hopelessly slow.

    Append sensor readings to `trace`. Return the statistics of the latency, and the number of launches.
    """
    loaded.times(1)  # The first launch loads the kernel's code, so ignore its time.
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

    if short:  # The overhead of timing would make a short launch look hopelessly slow, so time batches of launches.
        samples = more(FIRST_LAUNCHES)
    trace.append(device.read_sensors())
    enough = False
    if not hopeless(samples, best_s, HOPELESS):
        while not (enough := converged(samples, HALF_WIDTH, LEAST_SAMPLES)) and device.now() - start < LATENCY_CAP_S:
            samples += more(GROUP)
            trace.append(device.read_sensors())
    elapsed_s = device.now() - start
    report = replace(summarize_latency(samples), latency_converged=enough, latency_window_s=elapsed_s, l2_policy=policy)
    return report, launches


def measure_energy(
    device: Device, loaded: LoadedConfig, launch_s: float, seconds: float, trace: list[SensorReading]
) -> EnergyWindow:
    """Measure the power of a config while launches run without gaps.

    The launch time is measured in the same window, because it is longer under a power cap. Energy per launch is the
    power times this launch time.

    Args:
        launch_s: Approximate duration of a launch in seconds.
        seconds: Duration of the window, which begins after the GPU has settled.
        trace: List to which all sensor readings are appended.
    """
    # Always keep a launch waiting in the queue, so that the GPU is never idle.
    ahead = max(2, round(QUEUE_AHEAD_S / launch_s))
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
    slope, integrated = energy_counter.powers(readings, begin, end)
    return EnergyWindow(busy_s / launches, launches, end - begin, slope, integrated)


def window_s(generation: str, tier: Tier, probe: Probe) -> float:
    """Return the duration of an energy window in seconds, long enough for the sensors and ten counter updates."""
    coarse, final = WINDOWS_S.get(generation, WINDOWS_S["hopper"])
    least_s = (energy_counter.LEAST_TICKS + SPARE_TICKS) * (probe.tick_s or 0.0)
    return max(final if tier == Tier.FINAL else coarse, least_s)


def _energy_report(window: EnergyWindow, probe: Probe) -> EnergyReport:
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
        energy_counter_ratio=slope.power_w / window.integrated_w if window.integrated_w else probe.ratio,
        energy_window_s=window.window_s,
    )


def _gpu_state(trace: list[SensorReading], clock_hz: float | None) -> GpuState:
    """Return the GPU's state during a measurement. `clock_hz` is the mean SM clock, or None."""
    loaded = [reading for reading in trace if "GpuIdle" not in reading.reasons]
    clocks = [reading.sm_clock_hz for reading in loaded if reading.sm_clock_hz]
    all_clocks = clocks + ([clock_hz] if clock_hz else [])
    memory_clocks = [reading.memory_clock_hz for reading in loaded if reading.memory_clock_hz]
    return GpuState(
        temperature_start_c=trace[0].temperature_c,
        temperature_end_c=trace[-1].temperature_c,
        sm_clock_mean_hz=clock_hz or (sum(clocks) / len(clocks) if clocks else None),
        sm_clock_min_hz=min(all_clocks) if all_clocks else None,
        memory_clock_hz=memory_clocks[-1] if memory_clocks else None,
        event_reasons=energy_counter.reason_shares(reading.reasons for reading in trace),
    )
