"""Test energy from counters, statistics of samples, and drift of references."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.measure.campaign.device_session import DriftMonitor, describe_changes
from kernrec.measure.device.interface import GpuSettings
from kernrec.measure.protocol.energy_counter import (
    WRAP_J,
    find_ticks,
    is_trusted,
    mean_power,
    power_from_ticks,
    unwrapped,
)
from kernrec.measure.protocol.measure_config import converged, interval_rank, summarize_latency


def trace(
    power_w: float = 300.0, seconds: float = 3.0, tick_s: float = 0.1, lag_s: float = 0.03, poll_s: float = 0.004,
    start_j: float = 5000.0, missing: tuple[int, ...] = (),
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return readings of a counter under constant load from time 0. Each tick shows the energy of `lag_s` earlier."""
    time = np.arange(0.0, seconds, poll_s)
    tick = np.floor(time / tick_s)
    for skipped in sorted(missing, reverse=True):
        tick = np.where(tick == skipped, skipped - 1, tick)
    return time, start_j + power_w * np.maximum(tick * tick_s - lag_s, 0.0)


@given(st.floats(20.0, 1000.0), st.floats(0.02, 0.1), st.floats(0.0, 0.2))
def test_slope_equals_power_at_any_lag_and_period(power_w, tick_s, lag_s):
    estimate = power_from_ticks(*trace(power_w, tick_s=tick_s, lag_s=lag_s), 0.5, 3.0)
    assert estimate is not None
    assert estimate.power_w == pytest.approx(power_w, rel=0.01)
    assert estimate.low_w <= estimate.power_w <= estimate.high_w
    assert estimate.period_s == pytest.approx(tick_s, abs=0.005)


@given(st.sets(st.integers(6, 28), max_size=6))
def test_missed_ticks_change_neither_power_nor_period(missing):
    estimate = power_from_ticks(*trace(missing=tuple(missing)), 0.5, 3.0)
    assert estimate is not None
    assert estimate.power_w == pytest.approx(300.0, rel=0.01)
    assert estimate.period_s == pytest.approx(0.1, abs=0.005)


def test_window_with_fewer_than_ten_ticks_gives_no_energy():
    assert power_from_ticks(*trace(seconds=0.9), 0.0, 0.9) is None
    assert power_from_ticks(*trace(seconds=3.0), 2.5, 3.0) is None


def test_counter_overflow_is_handled():
    time, energy = trace(start_j=WRAP_J - 400.0)
    assert energy.max() > WRAP_J
    estimate = power_from_ticks(time, energy % WRAP_J, 0.5, 3.0)
    assert estimate is not None
    assert estimate.power_w == pytest.approx(300.0, rel=0.01)


def test_counter_that_falls_without_overflow_is_rejected():
    time, energy = trace()
    energy[400:] -= 200.0
    assert unwrapped(energy) is None
    assert power_from_ticks(time, energy, 0.5, 3.0) is None
    assert find_ticks(time, energy) is None


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


SAMPLES = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=60)


@given(SAMPLES)
def test_median_is_inside_its_interval_and_quantiles_are_ordered(samples):
    s = summarize_latency(samples)
    assert s.latency_q10_s <= s.latency_s <= s.latency_q90_s
    if s.latency_low_s is not None and s.latency_high_s is not None:
        assert min(samples) <= s.latency_low_s <= s.latency_s <= s.latency_high_s <= max(samples)


def test_interval_needs_at_least_five_samples():
    # All of five samples lie on one side of the median with probability 2 / 32, below 10 %; all of four with 2 / 16.
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


def test_sampling_ends_at_one_percent_of_the_median():
    steady = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001, 0.999, 1.0]
    assert converged(steady, 0.01, least=10)
    assert not converged(steady[:9], 0.01, least=10)
    assert not converged([], 0.01, least=0)
    assert not converged([1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.2, 0.8, 1.1, 0.9], 0.01, least=10)


def _errors(*latencies: float) -> list[str | None]:
    drift = DriftMonitor()
    return [drift.update({"compute": {"latency_s": t}, "memory": {"latency_s": 1.0}}) for t in latencies]


def test_reference_two_percent_slower_is_drift_and_half_a_percent_is_not():
    assert _errors(1.0, 1.005, 0.995) == [None, None, None]
    assert _errors(1.0, 1.02)[1] == "reference kernels drifted: compute latency +2.0%"


def test_later_references_are_compared_with_the_drifted_value():
    assert [bool(text) for text in _errors(1.0, 1.02, 1.021, 1.0)] == [False, True, False, True]


def test_different_settings_are_named_with_both_values():
    before, after = GpuSettings(power_limit_w=700.0, ecc=True), GpuSettings(power_limit_w=500.0, ecc=True)
    assert describe_changes(before, after) == "power_limit_w 700 -> 500"
    assert describe_changes(GpuSettings(), before) == "power_limit_w default -> 700, ecc default -> True"
