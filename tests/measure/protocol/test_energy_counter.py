"""Test power and tick lengths computed from traces of an energy counter with known values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.measure.protocol.energy_counter import (
    WRAP_J,
    find_ticks,
    is_trusted,
    mean_power,
    power_from_ticks,
    unwrapped,
)


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
