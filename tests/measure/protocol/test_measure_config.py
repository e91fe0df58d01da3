"""Test measuring one config: its energy, statistics and drift."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.measure.campaign.device_session import DriftMonitor, describe_changes
from kernrec.measure.device.interface import ConfigUnderTest, DeviceInfo, MeasurementFailure, OutputError
from kernrec.measure.device.simulated import SimulatedGpu, SimulatedKernel, SimulatedSensors, constant_time
from kernrec.measure.protocol.energy_counter import WRAP_J, is_trusted, mean_power, power_from_ticks, unwrapped
from kernrec.measure.protocol.measure_config import (
    LATENCY_CAP_S,
    Probe,
    converged,
    interval_rank,
    measure_config,
    measure_energy,
    summarize_latency,
)
from kernrec.measure.protocol.probe import probe_sensors
from kernrec.op import find_op
from kernrec.store.measurement import GpuSettings, Tier

INFO = DeviceInfo(
    gpu="h200-sxm", name="simulated", sm=90, l2_bytes=50 << 20, memory_bytes=1 << 34, generation="hopper", virtual=True
)
SUBJECT = ConfigUnderTest("any", {"x": 1}, find_op("matmul").problem(m=64, n=64, k=64))
SENSORS = SimulatedSensors(tick_s=0.1, lag_s=0.05)
KNOWN = Probe(tick_s=0.1, ratio=1.0)


def measured(
    device: SimulatedGpu, subject: ConfigUnderTest, tier: Tier, best_s: float | None, traits: Probe
) -> dict[str, Any]:
    return measure_config(device, subject, tier, best_s, traits).as_json()


def card(kernel: SimulatedKernel, sensors: SimulatedSensors = SENSORS, info: DeviceInfo = INFO) -> SimulatedGpu:
    return SimulatedGpu(info, lambda subject: kernel, sensors)


def noisy(seconds: float, spread: float, power_w: float = 300.0) -> SimulatedKernel:
    draw = np.random.default_rng(0)
    return SimulatedKernel(lambda n: seconds * (1.0 + spread * draw.standard_normal(n)), power_w)


def test_correct_config_gets_a_median_interval_and_samples():
    row = measured(card(noisy(2e-3, 0.002)), SUBJECT, Tier.SCREEN, None, KNOWN)
    assert row["latency_s"] == pytest.approx(2e-3, rel=0.005)
    assert row["latency_low_s"] <= row["latency_s"] <= row["latency_high_s"]
    assert row["latency_n"] == len(row["latency_samples_s"]) >= 10
    assert row["latency_converged"] is True
    assert "energy_j" not in row


def test_config_far_slower_than_the_best_takes_three_samples():
    row = measured(card(constant_time(2.5e-3)), SUBJECT, Tier.SCREEN, 1e-3, KNOWN)
    assert row["latency_n"] == 3
    assert row["latency_converged"] is False
    assert measured(card(constant_time(1.9e-3)), SUBJECT, Tier.SCREEN, 1e-3, KNOWN)["latency_n"] >= 10


def test_unstable_timing_stops_at_the_time_limit_and_is_marked():
    device = card(noisy(5e-3, 0.3))
    row = measured(device, SUBJECT, Tier.SCREEN, None, KNOWN)
    assert row["latency_converged"] is False
    assert row["latency_window_s"] == pytest.approx(LATENCY_CAP_S, abs=0.1)


def test_very_short_launches_are_timed_back_to_back():
    row = measured(card(constant_time(5e-6)), SUBJECT, Tier.SCREEN, None, KNOWN)
    assert row["latency_s"] == pytest.approx(5e-6)
    assert row["l2_policy"] == "rotating, 200 back to back"
    assert measured(card(constant_time(2e-4)), SUBJECT, Tier.SCREEN, None, KNOWN)["l2_policy"] == "flushed"


def test_back_to_back_time_decides_whether_a_short_launch_is_abandoned():
    """A single launch of 3 us seems to take 8 us. The config must not be abandoned."""

    def draw(n: int) -> np.ndarray:
        return np.full(n, 8e-6 if n <= 3 else 3e-6)

    row = measured(card(SimulatedKernel(draw, 300.0)), SUBJECT, Tier.SCREEN, 3e-6, KNOWN)
    assert row["latency_s"] == pytest.approx(3e-6)
    assert row["latency_converged"] is True


@pytest.mark.parametrize("launch_s", [2e-6, 1e-3, 0.3, 2.5])
def test_launches_are_queued_without_gaps_and_not_far_ahead(launch_s):
    device = card(constant_time(launch_s, 350.0))
    loaded = device.load(SUBJECT)
    most = 0.0

    def submit(launches: int, queue: Callable[[int], None] = loaded.submit) -> None:
        nonlocal most
        queue(launches)
        most = max(most, loaded.outstanding() * launch_s)

    loaded.submit = submit  # type: ignore[method-assign]
    energy = measure_energy(device, loaded, launch_s, 3.0, [])
    assert energy.launch_s == pytest.approx(launch_s)
    assert energy.integrated_w == pytest.approx(350.0, rel=0.01)
    assert energy.slope is not None
    assert energy.slope.power_w == pytest.approx(350.0, rel=0.01)
    assert most <= max(0.1, 2.0 * launch_s) + 1e-9


@pytest.mark.parametrize(
    "errors", [OutputError(0.5, 0, 1e-5, "spec"), OutputError(0.0, 3, 1e-5, "spec"), OutputError(0.1, 0, 0.0, "spec")]
)
def test_incorrect_config_is_never_timed(errors):
    with pytest.raises(MeasurementFailure) as caught:
        measured(card(constant_time(1e-3, errors=errors)), SUBJECT, Tier.SCREEN, None, KNOWN)
    assert caught.value.outcome == "incorrect"


@pytest.mark.parametrize("tick_s", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("lag_s", [0.0, 0.08])
def test_energy_is_correct_at_any_sensor_period_and_delay(tick_s, lag_s):
    sensors = replace(SENSORS, tick_s=tick_s, lag_s=lag_s, missing=0.1)
    row = measured(card(constant_time(3e-4, 412.0), sensors), SUBJECT, Tier.COARSE, None, Probe(tick_s, 1.0))
    assert row["power_w"] == pytest.approx(412.0, rel=0.01)
    assert row["energy_j"] == pytest.approx(412.0 * 3e-4, rel=0.01)
    assert row["energy_low_j"] <= row["energy_j"] <= row["energy_high_j"]
    assert row["energy_ticks"] >= 10
    assert row["energy_counter_ratio"] == pytest.approx(1.0, abs=0.02)


def test_energy_uses_the_launch_time_during_the_power_measurement():
    """The GPU slows down under sustained load, so that burst and sustained latency differ."""
    device = card(constant_time(1e-3))
    slow_from = 0.3

    def draw(n: int) -> np.ndarray:
        return np.full(n, 1e-3 if device.now() < slow_from else 1.2e-3)

    device._kernel_of = lambda subject: SimulatedKernel(draw, 300.0)
    row = measured(device, SUBJECT, Tier.COARSE, None, KNOWN)
    assert row["latency_s"] == pytest.approx(1e-3)
    assert row["sustained_latency_s"] == pytest.approx(1.2e-3, rel=0.01)
    assert row["energy_j"] == pytest.approx(300.0 * 1.2e-3, rel=0.01)


@pytest.mark.parametrize("traits", [Probe(None, None), Probe(0.1, 0.55)])
def test_untrusted_energy_counter_still_allows_time_measurements(traits):
    row = measured(card(constant_time(1e-3)), SUBJECT, Tier.COARSE, None, traits)
    assert row["latency_s"] == pytest.approx(1e-3)
    assert "energy_j" not in row


def test_stopped_energy_counter_gives_null_instead_of_zero():
    row = measured(card(constant_time(1e-3), replace(SENSORS, tick_s=50.0)), SUBJECT, Tier.COARSE, None, KNOWN)
    assert "energy_j" not in row
    assert row["sustained_latency_s"] == pytest.approx(1e-3)


def test_overheated_gpu_quarantines_the_config():
    hot = replace(SENSORS, reasons_under_load=frozenset({"HwThermalSlowdown"}))
    with pytest.raises(MeasurementFailure, match="HwThermalSlowdown") as caught:
        measured(card(constant_time(1e-3), hot), SUBJECT, Tier.COARSE, None, KNOWN)
    assert caught.value.outcome == "quarantined"


@pytest.mark.parametrize(("tick_s", "lag_s", "scale"), [(0.02, 0.01, 1.0), (0.1, 0.06, 1.0), (0.1, 0.0, 0.55)])
def test_probe_measures_sensor_period_scale_and_idle_power(tick_s, lag_s, scale):
    sensors = probe_sensors(
        card(constant_time(1e-3), replace(SENSORS, tick_s=tick_s, lag_s=lag_s, counter_scale=scale))
    )
    assert sensors.tick_s == pytest.approx(tick_s, abs=0.004)
    assert sensors.ratio == pytest.approx(scale, rel=0.02)
    assert sensors.idle_w == pytest.approx(60.0 * scale, rel=0.02)
    assert sensors.measures_energy is (scale == 1.0)


def trace(
    power_w: float = 300.0, seconds: float = 3.0, tick_s: float = 0.1, lag_s: float = 0.03, poll_s: float = 0.004,
    start_j: float = 5000.0, missing: tuple[int, ...] = (),
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return readings of a counter under constant load. Each tick shows the energy `lag_s` seconds before."""
    time = np.arange(0.0, seconds, poll_s)
    tick = np.floor(time / tick_s)
    for skipped in sorted(missing, reverse=True):
        tick = np.where(tick == skipped, skipped - 1, tick)
    return time, start_j + power_w * np.maximum(tick * tick_s - lag_s, 0.0)


@given(st.floats(20.0, 1000.0), st.floats(0.02, 0.1), st.floats(0.0, 0.2))
def test_power_from_counter_is_independent_of_lag_and_period(power_w, tick_s, lag_s):
    estimate = power_from_ticks(*trace(power_w, tick_s=tick_s, lag_s=lag_s), 0.5, 3.0)
    assert estimate is not None
    assert estimate.power_w == pytest.approx(power_w, rel=0.01)
    assert estimate.low_w <= estimate.power_w <= estimate.high_w
    assert estimate.period_s == pytest.approx(tick_s, abs=0.005)


@given(st.sets(st.integers(6, 28), max_size=6))
def test_missed_sensor_updates_change_neither_power_nor_period(missing):
    estimate = power_from_ticks(*trace(missing=tuple(missing)), 0.5, 3.0)
    assert estimate is not None
    assert estimate.power_w == pytest.approx(300.0, rel=0.01)
    assert estimate.period_s == pytest.approx(0.1, abs=0.005)


def test_energy_needs_at_least_ten_counter_updates():
    assert power_from_ticks(*trace(seconds=0.9), 0.0, 0.9) is None
    assert power_from_ticks(*trace(seconds=3.0), 2.5, 3.0) is None


def test_power_is_correct_if_the_energy_counter_overflows():
    time, energy = trace(start_j=WRAP_J - 400.0)
    assert energy.max() > WRAP_J
    estimate = power_from_ticks(time, energy % WRAP_J, 0.5, 3.0)
    assert estimate is not None
    assert estimate.power_w == pytest.approx(300.0, rel=0.01)


def test_energy_counter_that_falls_without_overflow_is_rejected():
    time, energy = trace()
    energy[400:] -= 200.0
    assert unwrapped(energy) is None
    assert power_from_ticks(time, energy, 0.5, 3.0) is None


@given(st.floats(10.0, 700.0), st.floats(10.0, 700.0))
def test_integrated_power_is_the_mean_sensor_reading(first, second):
    time = np.linspace(0.0, 2.0, 2001)
    power = np.where(time < 1.0, first, second)
    assert mean_power(time, power, 0.0, 2.0) == pytest.approx((first + second) / 2.0, rel=1e-2)


@pytest.mark.parametrize(
    ("ratio", "believed"), [(1.0, True), (1.049, True), (0.94, False), (0.57, False), (None, True)]
)
def test_counter_is_accepted_within_five_percent_of_the_sensor(ratio, believed):
    assert is_trusted(ratio) is believed


@given(st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60))
def test_median_is_inside_its_interval_and_quantiles_are_ordered(samples):
    s = summarize_latency(samples)
    assert s.latency_q10_s <= s.latency_s <= s.latency_q90_s
    if s.latency_low_s is not None and s.latency_high_s is not None:
        assert min(samples) <= s.latency_low_s <= s.latency_s <= s.latency_high_s <= max(samples)


def test_interval_needs_at_least_five_samples():
    # All n samples lie on one side of the median with probability 2 / 2**n: 12 % for n = 4, and 6 % for n = 5.
    assert interval_rank(4) is None
    assert interval_rank(5) == 0
    assert interval_rank(10) == 1


@pytest.mark.parametrize("n", [6, 10, 25, 80, 1500])
def test_interval_covers_the_median_as_often_as_stated(n):
    draw = np.random.default_rng(n)
    rank = interval_rank(n)
    assert rank is not None
    below = draw.binomial(n, 0.5, 20_000)  # number of samples below the true median
    covered = np.mean((below > rank) & (below < n - rank))
    assert covered > 0.89


def test_sampling_ends_if_the_median_is_certain_to_one_percent():
    steady = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0]
    assert converged(steady, 0.01, least=10)
    assert not converged(steady[:9], 0.01, least=10)
    assert not converged([], 0.01, least=0)
    assert not converged([1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.2, 0.8, 1.1, 0.9], 0.01, least=10)


def _errors(*latencies: float) -> list[str | None]:
    drift = DriftMonitor()
    return [drift.update({"compute": {"latency_s": t}, "memory": {"latency_s": 1.0}}) for t in latencies]


def test_two_percent_change_of_reference_time_counts_as_drift():
    assert _errors(1.0, 1.005, 0.995) == [None, None, None]
    assert _errors(1.0, 1.02)[1] == "reference kernels drifted: compute latency +2.0%"


def test_drift_is_relative_to_the_previous_reference_time():
    assert [bool(text) for text in _errors(1.0, 1.02, 1.021, 1.0)] == [False, True, False, True]


def test_changed_gpu_settings_are_reported_with_both_values():
    before, after = GpuSettings(power_limit_w=700.0, ecc=True), GpuSettings(power_limit_w=500.0, ecc=True)
    assert describe_changes(before, after) == "power_limit_w 700 -> 500"
    assert describe_changes(GpuSettings(), before) == "power_limit_w default -> 700, ecc default -> True"
