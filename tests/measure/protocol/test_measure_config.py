"""Test the measurement protocol on a simulated GPU whose sensors tick, lag, fail or throttle as each test sets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernrec.measure.device.interface import ConfigUnderTest, DeviceInfo, MeasurementFailure, OutputError
from kernrec.measure.device.simulated import SimulatedGpu, SimulatedKernel, SimulatedSensors, constant_time
from kernrec.measure.protocol.measure_config import (
    LATENCY_CAP_S,
    SensorTraits,
    measure_config,
    measure_energy,
)
from kernrec.measure.protocol.probe import probe_sensors
from kernrec.op import find_op
from kernrec.store.measurement import Tier

INFO = DeviceInfo(
    gpu="h200-sxm", name="simulated", sm=90, l2_bytes=50 << 20, memory_bytes=1 << 34, generation="hopper", virtual=True
)
PROBLEM = find_op("matmul").problem(m=64, n=64, k=64)
SUBJECT = ConfigUnderTest("any", {"x": 1}, PROBLEM)
SENSORS = SimulatedSensors(tick_s=0.1, lag_s=0.05)
KNOWN = SensorTraits(tick_s=0.1, ratio=1.0)


def measured(
    device: SimulatedGpu, subject: ConfigUnderTest, tier: Tier, best_s: float | None, traits: SensorTraits
) -> dict[str, Any]:
    """Return the columns that a measurement fills."""
    return measure_config(device, subject, tier, best_s, traits).as_json()


def card(kernel: SimulatedKernel, sensors: SimulatedSensors = SENSORS, info: DeviceInfo = INFO) -> SimulatedGpu:
    return SimulatedGpu(info, lambda subject: kernel, sensors)


def noisy(seconds: float, spread: float, power_w: float = 300.0) -> SimulatedKernel:
    draw = np.random.default_rng(0)
    return SimulatedKernel(lambda n: seconds * (1.0 + spread * draw.standard_normal(n)), power_w)


def test_good_config_has_its_median_interval_and_samples():
    row = measured(card(noisy(2e-3, 0.002)), SUBJECT, Tier.SCREEN, None, KNOWN)
    assert row["latency_s"] == pytest.approx(2e-3, rel=0.005)
    assert row["latency_low_s"] <= row["latency_s"] <= row["latency_high_s"]
    assert row["latency_n"] == len(row["latency_samples_s"]) >= 10
    assert row["latency_converged"] is True
    assert "energy_j" not in row


def test_hopeless_config_takes_three_samples():
    row = measured(card(constant_time(2.5e-3)), SUBJECT, Tier.SCREEN, 1e-3, KNOWN)
    assert row["latency_n"] == 3
    assert row["latency_converged"] is False
    assert measured(card(constant_time(1.9e-3)), SUBJECT, Tier.SCREEN, 1e-3, KNOWN)["latency_n"] >= 10


def test_unstable_times_end_at_the_cap_and_are_marked():
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
    """A single launch of three microseconds seems to take eight, which must not abandon the config."""

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
def test_energy_is_power_times_time_at_any_counter_tick_and_lag(tick_s, lag_s):
    sensors = replace(SENSORS, tick_s=tick_s, lag_s=lag_s, missing=0.1)
    row = measured(card(constant_time(3e-4, 412.0), sensors), SUBJECT, Tier.COARSE, None, SensorTraits(tick_s, 1.0))
    assert row["power_w"] == pytest.approx(412.0, rel=0.01)
    assert row["energy_j"] == pytest.approx(412.0 * 3e-4, rel=0.01)
    assert row["energy_low_j"] <= row["energy_j"] <= row["energy_high_j"]
    assert row["energy_ticks"] >= 10
    assert row["energy_counter_ratio"] == pytest.approx(1.0, abs=0.02)


def test_energy_uses_the_launch_time_of_its_own_window():
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


@pytest.mark.parametrize("traits", [SensorTraits(None, None), SensorTraits(0.1, 0.55)])
def test_untrusted_counter_gives_no_energy_but_all_other_values(traits):
    row = measured(card(constant_time(1e-3)), SUBJECT, Tier.COARSE, None, traits)
    assert row["latency_s"] == pytest.approx(1e-3)
    assert "energy_j" not in row


def test_stopped_counter_gives_null_instead_of_zero():
    row = measured(card(constant_time(1e-3), replace(SENSORS, tick_s=50.0)), SUBJECT, Tier.COARSE, None, KNOWN)
    assert "energy_j" not in row
    assert row["sustained_latency_s"] == pytest.approx(1e-3)


def test_overheated_gpu_quarantines_the_config():
    hot = replace(SENSORS, reasons_under_load=frozenset({"HwThermalSlowdown"}))
    with pytest.raises(MeasurementFailure, match="HwThermalSlowdown") as caught:
        measured(card(constant_time(1e-3), hot), SUBJECT, Tier.COARSE, None, KNOWN)
    assert caught.value.outcome == "quarantined"


@pytest.mark.parametrize(("tick_s", "lag_s", "scale"), [(0.02, 0.01, 1.0), (0.1, 0.06, 1.0), (0.1, 0.0, 0.55)])
def test_probe_finds_tick_ratio_and_idle_power(tick_s, lag_s, scale):
    sensors = probe_sensors(
        card(constant_time(1e-3), replace(SENSORS, tick_s=tick_s, lag_s=lag_s, counter_scale=scale))
    )
    assert sensors.tick_s == pytest.approx(tick_s, abs=0.004)
    assert sensors.ratio == pytest.approx(scale, rel=0.02)
    assert sensors.idle_w == pytest.approx(60.0 * scale, rel=0.02)
    assert sensors.traits.measures_energy is (scale == 1.0)
