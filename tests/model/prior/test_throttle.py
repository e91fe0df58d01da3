"""The clock that a power limit leaves is the highest of the table that keeps the limit."""

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.model.prior.launch_costs import ScaledLaunches
from kernrec.model.prior.power import PowerModel
from kernrec.model.prior.throttle import CLOCKS, ClockGrid, clocks_between

LAUNCHES = 300


def launches(power: PowerModel) -> np.ndarray:
    """Fields of nominal costs as rows, from bound by the core to bound by DRAM and from idle to far above the TDP."""
    draw = np.random.default_rng(1)
    core_s = 10.0 ** draw.uniform(-6.0, -1.0, LAUNCHES)
    dram_s = core_s * 10.0 ** draw.uniform(-6.0, 3.0, LAUNCHES)
    core_j = core_s * power.tdp_w * 10.0 ** draw.uniform(-3.0, 0.7, LAUNCHES)
    dram_j = dram_s * power.tdp_w * draw.uniform(0.0, 0.6, LAUNCHES)
    return np.stack([core_s, dram_s, np.full(LAUNCHES, 5e-6), core_j, dram_j])


def grid(power: PowerModel, *starts: float) -> ClockGrid:
    ratio = np.concatenate([clocks_between(power.minimum_hz / power.boost_hz, start) for start in starts])
    volts = power.voltage(ratio * power.boost_hz)
    static_w = power.board_w + power.leakage_w * volts
    return ClockGrid(ratio * power.boost_hz, np.stack([ratio, static_w, power.clock_w * ratio, volts * volts]))


@pytest.mark.parametrize("name", ["rtx4090", "a100-sxm4-80gb", "h200-sxm", "t4", "gtx1650"])
def test_a_launch_runs_at_the_highest_clock_of_the_table_that_keeps_its_limit(name: str) -> None:
    power = PowerModel.for_gpu(find_gpu(name))
    nominal, limit_w = launches(power), np.linspace(power.power_min_w, power.tdp_w, LAUNCHES)
    table = grid(power, 1.0)
    latency, static_j, core_j = ScaledLaunches(nominal).at(*(row[:, np.newaxis] for row in table.at_clock))
    keeps = static_j + core_j + nominal[4] <= latency * limit_w  # (clocks, launches)
    highest = np.where(keeps.any(axis=0), CLOCKS - 1 - keeps[::-1].argmax(axis=0), 0)
    clock_hz, latency_s, *_ = table.throttle(nominal, limit_w, 0)
    assert (clock_hz == table.clock_hz[highest]).all()
    assert (latency_s == latency[highest, np.arange(LAUNCHES)]).all()
    assert len(np.unique(highest)) > 50


def test_each_launch_is_searched_in_its_own_table() -> None:
    power = PowerModel.for_gpu(find_gpu("rtx4090"))
    nominal = launches(power)
    both, alone = grid(power, 0.6, 1.0), [grid(power, start) for start in (0.6, 1.0)]
    which = np.arange(LAUNCHES) % 2
    mixed = both.throttle(nominal, power.power_min_w, which * CLOCKS)
    for number, table in enumerate(alone):
        own = table.throttle(nominal, power.power_min_w, 0)
        for column, of_own in zip(mixed, own, strict=True):
            assert (column[which == number] == of_own[which == number]).all()
