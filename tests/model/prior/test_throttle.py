"""Test that a power limit selects the highest clock in the table that keeps the limit."""

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.model.prior.constants import CLOCKS
from kernrec.model.prior.launch_costs import NominalCosts
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.throttle import clocks_between

LAUNCHES = 300


def launches(power: PowerModel) -> np.ndarray:
    """Return nominal costs as rows, from core-bound to DRAM-bound and from idle to far above the TDP."""
    draw = np.random.default_rng(1)
    core_s = 10.0 ** draw.uniform(-6.0, -1.0, LAUNCHES)
    dram_s = core_s * 10.0 ** draw.uniform(-6.0, 3.0, LAUNCHES)
    core_j = core_s * power.tdp_w * 10.0 ** draw.uniform(-3.0, 0.7, LAUNCHES)
    dram_j = dram_s * power.tdp_w * draw.uniform(0.0, 0.6, LAUNCHES)
    return np.stack([core_s, dram_s, np.full(LAUNCHES, 5e-6), core_j, dram_j])


@pytest.mark.parametrize("name", ["rtx4090", "a100-sxm4-80gb", "h200-sxm", "t4", "gtx1650"])
def test_launch_runs_at_the_highest_clock_that_keeps_its_limit(name):
    power = PowerModel.for_gpu(find_gpu(name))
    nominal, limit_w = launches(power), np.linspace(power.power_min_w, power.tdp_w, LAUNCHES)
    core_s, dram_s, fixed_s, core_j, dram_j = nominal
    start = power.running_hz / power.boost_hz
    ratio = clocks_between(power.minimum_hz / power.boost_hz, start)[:, np.newaxis]
    volts = power.voltage(ratio * power.boost_hz)
    latency = ((core_s / ratio) ** 4 + dram_s**4) ** 0.25 + fixed_s
    tree_w = power.clock_w * ratio * volts**2
    energy = (power.board_w + power.leakage_w * volts + tree_w) * latency + core_j * volts**2 + dram_j
    keeps = energy <= latency * limit_w * (1.0 + 1e-12)  # shape (clocks, launches)
    highest = np.where(keeps.any(axis=0), CLOCKS - 1 - keeps[::-1].argmax(axis=0), 0)
    limited = power.apply_power_limit(NominalCosts(*nominal), limit_w)
    slowed = limited.capped
    assert 50 < slowed.sum() < LAUNCHES
    assert limited.clock_hz[slowed] == pytest.approx((ratio[:, 0] * power.boost_hz)[highest][slowed])
    held = slowed & keeps.any(axis=0)
    assert held.any()
    assert limited.latency_s[held] == pytest.approx(latency[highest, np.arange(LAUNCHES)][held])
    assert limited.clock_hz[~slowed] == pytest.approx(power.running_hz)


@pytest.mark.parametrize("name", ["rtx4090", "rtx3090", "h200-sxm"])
def test_launch_at_the_lowest_clock_pauses_to_keep_its_limit(name):
    power = PowerModel.for_gpu(find_gpu(name))
    limit_w = power.power_min_w
    launch = NominalCosts(1e-3, 0.0, 5e-6, 20.0 * limit_w * 1e-3, 0.0)
    limited = power.apply_power_limit(launch, limit_w)
    alone = power.apply_power_limit(launch, clock_hz=power.minimum_hz, limit_w=power.power_max_w)
    assert float(limited.clock_hz[0]) == pytest.approx(power.minimum_hz)
    assert float(limited.power_w[0]) == limit_w
    resting_w = (limited.static_j - alone.static_j) / (limited.latency_s - alone.latency_s)
    assert 0 < resting_w < limit_w
    assert limited.core_j == pytest.approx(alone.core_j)


def test_each_operating_point_is_searched_below_its_own_clock():
    power = PowerModel.for_gpu(find_gpu("rtx4090"))
    nominal, points = launches(power), [(200.0, power.boost_hz), (200.0, 0.6 * power.boost_hz), (None, power.boost_hz)]
    together = power.limit_launches(nominal, points)
    for number, point in enumerate(points):
        alone = power.limit_launches(nominal, [point])
        assert (together.costs[:, number] == alone.costs[:, 0]).all()
    assert together.clock_hz[0].max() > together.clock_hz[1].max()
