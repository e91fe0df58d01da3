"""Test the laws of the power model, and its error against measured power."""

import dataclasses
import math
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.model.analytical import power
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.microarchitecture import CLOCKS
from kernrec.model.analytical.power import PowerModel, clocks_between
from kernrec.util.engine import query
from tests.helpers.depth import few_examples
from tests.helpers.paths import RECORDINGS, ROOT
from tests.helpers.work import calls

NAMES = ("t4", "a100-pcie-40gb", "rtx-a4000", "rtx4090", "h100-sxm", "b200", "rtx5090")
MODELS = {name: PowerModel.for_gpu(find_gpu(name)) for name in NAMES}
EVENTS = ("issue.fma32", "issue.alu", "mma.f16", "shared.wavefronts", "l1.requests", "l2.sectors", "dram.bytes")

LAW = few_examples(25)
names = st.sampled_from(NAMES)
seconds = st.floats(1e-6, 1.0)
fractions = st.floats(0.0, 1.0)


@st.composite
def launches(draw: st.DrawFn) -> tuple[PowerModel, NominalCosts]:
    """Draw a GPU and a launch whose events need 0 to 3 times the TDP."""
    model = MODELS[draw(names)]
    core_s, memory_s = draw(seconds), draw(st.one_of(st.just(0.0), seconds))
    watts = draw(st.floats(0.0, 3.0)) * model.tdp_w
    fixed_s = draw(st.floats(0.0, 1e-5))
    dram_j = draw(fractions) * 0.3 * model.tdp_w * memory_s
    return model, NominalCosts(core_s, memory_s, fixed_s, watts * core_s, dram_j)


def limit_at(model: PowerModel, fraction: float) -> float:
    return min(model.power_min_w + fraction * (model.power_max_w - model.power_min_w), model.power_max_w)


@LAW
@given(launches(), fractions, fractions)
def test_lower_power_limit_is_never_faster(case, first, second):
    model, launch = case
    low, high = sorted((limit_at(model, first), limit_at(model, second)))
    tighter, looser = (model.apply_power_limit(launch, limit_w) for limit_w in (low, high))
    assert tighter.latency_s >= looser.latency_s * (1 - 1e-12)


STATIC_ONLY = MODELS["rtx4090"], NominalCosts(1e-6, 0.0, 0.0, 0.0, 0.0)
"""Launch that exceeded a power limit of 150 W in an earlier version."""


@LAW
@given(launches(), fractions, fractions)
@example(STATIC_ONLY, 0.0, 1.0)
def test_power_lies_between_idle_and_the_limit(case, limit, clock):
    model, launch = case
    clock_hz = model.minimum_hz + clock * (model.maximum_hz - model.minimum_hz)
    limited = model.apply_power_limit(launch, limit_w=limit_at(model, limit), clock_hz=min(clock_hz, model.maximum_hz))
    assert min(model.idle_w, query.RESTING * limit_at(model, limit)) <= limited.power_w
    assert limited.power_w <= limit_at(model, limit) * (1 + 1e-12)
    assert model.minimum_hz * (1 - 1e-12) <= limited.clock_hz <= clock_hz * (1 + 1e-12)


@LAW
@given(launches(), fractions)
def test_energy_is_power_times_time_and_the_sum_of_its_parts(case, limit):
    model, launch = case
    limited = model.apply_power_limit(launch, limit_w=limit_at(model, limit))
    assert limited.energy_j == pytest.approx(limited.power_w * limited.latency_s)
    assert limited.energy_j == pytest.approx(limited.static_j + limited.core_j + limited.dram_j)


def test_zero_launches_give_empty_costs():
    assert MODELS["t4"].apply_power_limit(NominalCosts(*np.empty((5, 0)))).latency_s.shape == (0,)


@LAW
@given(launches())
def test_throttled_launch_draws_the_full_power_limit(case):
    model, launch = case
    limited = model.apply_power_limit(launch)
    if limited.regime == query.CAPPED:
        assert limited.power_w == pytest.approx(model.tdp_w, rel=0.01)
        assert limited.clock_hz < model.running_hz
    else:
        assert limited.clock_hz == pytest.approx(model.running_hz)


@LAW
@given(launches(), fractions, fractions)
def test_lower_clock_is_never_faster_and_draws_no_more(case, first, second):
    model, launch = case
    low, high = (model.minimum_hz + f * (model.boost_hz - model.minimum_hz) for f in sorted((first, second)))
    slow, fast = (model.apply_power_limit(launch, clock_hz=min(hz, model.boost_hz)) for hz in (low, high))
    # A bisection chooses the clock of each capped launch, to 1/1024 of the clock range.
    assert slow.latency_s >= fast.latency_s * (1 - 1e-2)
    assert slow.power_w <= fast.power_w * (1 + 1e-2)


@LAW
@given(names, st.lists(st.floats(1.0, 1e9), min_size=len(EVENTS), max_size=len(EVENTS)), fractions)
def test_energy_breakdown_adds_up_to_the_total(name, counts, limit):
    model = MODELS[name]
    events = {event: np.array([count]) for event, count in zip(EVENTS, counts, strict=True)}
    core_j, dram_j = model.dynamic(events)
    limited = model.apply_power_limit(NominalCosts(2e-3, 1e-3, 2e-6, core_j, dram_j), limit_w=limit_at(model, limit))
    parts = model.breakdown(events, limited)
    assert sum(parts.values()) == pytest.approx(limited.energy_j)
    assert all(joules >= -1e-12 for joules in parts.values())
    assert set(parts) == {"static", "clock", "issue", "mma", "shared", "l1", "l2", "dram"}


@pytest.mark.parametrize("name", NAMES)
def test_voltage_rises_slowly_below_the_knee_and_with_the_clock_above(name):
    model = MODELS[name]
    clocks = np.linspace(model.minimum_hz, model.maximum_hz, 200)
    volts = model.voltage(clocks)
    below = clocks <= model.curve.knee_hz
    assert np.ptp(volts[below]) <= model.curve.rise * volts[below].max()
    assert (np.diff(volts[below]) >= 0).all()
    assert (np.diff(volts[~below]) > 0).all()
    assert model.voltage(model.boost_hz) == pytest.approx(1.0)


def test_memory_bound_time_does_not_grow_when_the_clock_falls():
    model = MODELS["a100-pcie-40gb"]
    launch = NominalCosts(1e-6, 1e-3, 0.0, 0.01, 0.09)
    fast = model.apply_power_limit(launch)
    slow = model.apply_power_limit(launch, clock_hz=0.5 * model.boost_hz)
    assert slow.latency_s == pytest.approx(fast.latency_s)
    assert slow.energy_j < fast.energy_j


def test_instruction_without_energy_data_costs_the_default_energy():
    model = MODELS["rtx4090"]
    assert model.event_j("issue.branch") == model.event_j("issue.other") > 0


def test_unknown_event_is_refused_with_the_nearest_name(refuses):
    refuses(lambda: MODELS["rtx4090"].dynamic({"l2.sector": 1.0}))


def test_power_limit_or_clock_out_of_range_is_refused_with_the_range(refuses):
    def refused(argument: str, value: float) -> None:
        MODELS["rtx4090"].apply_power_limit(NominalCosts(1e-3, 1e-3, 0.0, 0.1, 0.1), **{argument: value})

    refuses(refused, [
        ("limit_w", 10.0), ("limit_w", 5000.0), ("limit_w", 0.0), ("limit_w", -3.0), ("limit_w", math.nan),
        ("clock_hz", 1e6), ("clock_hz", 9e9), ("clock_hz", -1.0),
    ])  # fmt: skip


def test_any_power_limit_is_accepted_if_the_range_of_the_gpu_is_unknown():
    gpu = find_gpu("l20")
    assert gpu.power_range_assumed
    limited = PowerModel.for_gpu(gpu).apply_power_limit(NominalCosts(1e-3, 0.0, 0.0, 0.2, 0.0), limit_w=90.0)
    assert limited.power_w <= 90.0 * (1 + 1e-12)


def test_data_center_clock_does_not_depend_on_the_title_of_the_gpu():
    gpu = dataclasses.replace(find_gpu("a100-sxm4-80gb"), title="NVIDIA RTX A100")
    assert PowerModel.for_gpu(gpu).maximum_hz == gpu.boost_clock_hz


@pytest.mark.parametrize(("name", "highest"), [("h200-sxm", "1980"), ("l40s", "2520"), ("t4", "1590")])
def test_data_center_gpu_accepts_at_most_its_boost_clock(name, highest):
    with pytest.raises(UsageError, match=f"accepts 210 to {highest} MHz"):
        PowerModel.for_gpu(find_gpu(name)).apply_power_limit(NominalCosts(1e-3, 0.0, 0.0, 0.0, 0.0), clock_hz=3e9)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_every_catalog_gpu_has_plausible_power(gpu):
    model = PowerModel.for_gpu(gpu)
    assert 0.05 * gpu.tdp_w < model.idle_w < 0.65 * gpu.tdp_w
    running_w = model.static_w + model.clock_w
    fma_warps_per_s = gpu.fma_per_clk_sm["f32"] * gpu.sms * gpu.boost_clock_hz / 32
    fma_w = running_w + fma_warps_per_s * model.event_j("issue.fma32")
    dram_w = running_w + gpu.memory_bandwidth * (model.event_j("dram.bytes") + model.event_j("l2.sectors") / 32)
    # GPUs with a low power limit for their chip (L4, RTX 6000 Ada, Max-Q) cannot hold the boost clock in this test.
    headroom = 1.8 if gpu.tdp_w > 300 else 2.5
    assert 0.3 * gpu.tdp_w < fma_w < headroom * gpu.tdp_w
    assert 0.3 * gpu.tdp_w < dram_w < headroom * gpu.tdp_w


def test_idle_power_without_calibration_matches_published_values():
    # nvidia-smi reports about 70 W for an idle H100 SXM and 45 to 60 W for an idle A100 SXM.
    assert MODELS["h100-sxm"].idle_w == pytest.approx(70, abs=10)
    assert PowerModel.for_gpu(find_gpu("a100-sxm4-80gb")).idle_w == pytest.approx(45, abs=10)


def test_turing_geforce_leaks_more_at_high_clocks_only():
    # Four recorded kernels on an RTX 2060 SUPER draw 27 to 30 W more than the model of T4 and RTX 8000 predicts.
    power = PowerModel.for_gpu(find_gpu("rtx2060-super"))
    linear_w = 0.282 * 34 * power.volts * float(power.voltage(power.running_hz))
    assert 20 < float(power.leakage_at(power.running_hz)) - linear_w < 33
    assert float(power.leakage_at(power.minimum_hz)) == pytest.approx(0.282 * 34, rel=0.01)
    assert {PowerModel.for_gpu(find_gpu(name)).leakage_exponent for name in ("t4", "gtx1650", "rtx3090")} == {1.0}


def test_inputs_of_zeros_draw_less_power_than_random_ones_in_large_matmuls():
    # PyTorch's f16 products on an RTX 4090 reach about 165 TFLOP/s at 350 to 450 W.
    gpu = find_gpu("rtx4090")
    rates = {"mma.f16": 165e12, "l2.sectors": 6e10, "shared.wavefronts": 4e10, "dram.bytes": 2e11}
    random, zeros = (PowerModel.for_gpu(gpu, data).power_at(2.65e9, rates) for data in ("random", "zeros"))
    assert 310 < random < 450
    assert 0.6 * random < zeros < 0.9 * random


def test_only_geforce_gpus_run_above_their_boost_clock():
    idle = NominalCosts(1e-3, 0.0, 0.0, 0.0, 0.0)
    assert MODELS["rtx4090"].apply_power_limit(idle).clock_hz > 1.05 * MODELS["rtx4090"].boost_hz
    assert MODELS["a100-pcie-40gb"].apply_power_limit(idle).clock_hz == MODELS["a100-pcie-40gb"].boost_hz


def test_only_geforce_partner_boards_accept_more_power_than_the_reference():
    assert PowerModel.for_gpu(find_gpu("rtx3090")).power_max_w >= 450 > find_gpu("rtx3090").power_max_w
    assert MODELS["rtx-a4000"].power_max_w == find_gpu("rtx-a4000").power_max_w


@pytest.mark.parametrize(("name", "readings"), [
    ("rtx3090ti", ((0.78, 0.722), (2.04, 1.065))), ("rtx4090", ((0.787, 0.875), (2.548, 0.971), (2.73, 1.05))),
    ("rtx5060ti", ((1.767, 0.81), (2.362, 0.902), (2.716, 1.025), (2.767, 1.045))),
])  # fmt: skip
def test_voltages_match_published_readings(name, readings):
    clocks, volts = np.array(readings).T
    curve = PowerModel.for_gpu(find_gpu(name)).curve.over_knee(clocks * 1e9)
    assert curve / curve[-1] == pytest.approx(volts / volts[-1], rel=0.04)


def test_hopper_saves_energy_below_its_knee():
    # On an H200 that decodes, a lower clock alone saves up to 32 % of the energy (arXiv 2605.11999).
    model = PowerModel.for_gpu(find_gpu("h200-sxm"))
    rates = {"dram.bytes": 1.5e12, "l2.sectors": 5e10, "l1.requests": 1.2e10, "issue.other": 5e10}
    assert 0.66 < model.power_at(1.0e9, rates) / model.power_at(model.boost_hz, rates) < 0.85
    core_j, dram_j = model.dynamic({"mma.f16": 1e12, "l2.sectors": 1.9e8, "shared.wavefronts": 2.5e8})
    fast, slow = (model.apply_power_limit(NominalCosts(1e-3, 0.0, 0.0, core_j, dram_j), watts) for watts in (700, 500))
    assert slow.latency_s > 1.15 * fast.latency_s
    assert slow.energy_j < 0.95 * fast.energy_j


def _limited_by(gpu: GPU, limit_w: float) -> tuple[float, float]:
    """Return the time of a large matmul at a power limit in s, and the sum of board power and leakage in W. The time is
    infinite if the limit does not lower the clock."""
    model, tensor = PowerModel.for_gpu(gpu), gpu.tensor_rate("f16")
    work = {"mma.f16": 1e12, "l2.sectors": 1.9e8, "shared.wavefronts": 2.5e8} if tensor else {"issue.fma32": 1e10}
    rate = 2 * tensor if tensor else gpu.fma_per_clk_sm["f32"] / 32
    nominal = NominalCosts(max(work.values()) / (rate * gpu.sms * model.boost_hz), 0.0, 0.0, *model.dynamic(work))
    limited = model.apply_power_limit(nominal, limit_w)
    clock_hz = limited.clock_hz[0]
    free = clock_hz > 0.999 * model.running_hz
    return math.inf if free else float(limited.latency_s[0]), model.board_w + float(model.leakage_at(clock_hz))


SAME_CHIP = [
    (larger, smaller, max(larger.power_min_w, smaller.power_min_w, larger.tdp_w / 2))
    for larger in all_gpus()
    for smaller in all_gpus()
    if (larger.chip, larger.sm) == (smaller.chip, smaller.sm) and larger.sms > smaller.sms
    and larger.memory_bandwidth >= smaller.memory_bandwidth and larger.tensor_rate("f16") == smaller.tensor_rate("f16")
    and PowerModel.for_gpu(larger).curve == PowerModel.for_gpu(smaller).curve
    and max(larger.power_min_w, smaller.power_min_w, larger.tdp_w / 2) <= min(larger.power_max_w, smaller.power_max_w)
]  # fmt: skip
"""Boards with the same chip, the larger board first, and the lowest power limit (W) at which to compare the boards."""


@pytest.mark.parametrize(("larger", "smaller", "limit_w"), SAME_CHIP, ids=lambda each: getattr(each, "name", None))
def test_larger_gpu_is_slower_at_equal_power_only_because_of_idle_power(larger, smaller, limit_w):
    (slow_s, larger_w), (fast_s, smaller_w) = (_limited_by(gpu, limit_w) for gpu in (larger, smaller))
    if math.isinf(slow_s) or math.isinf(fast_s):
        return
    assert slow_s <= 1.02 * fast_s * (limit_w - smaller_w) / (limit_w - larger_w)
    if larger.sm == 90:
        assert slow_s <= 1.04 * fast_s


@pytest.mark.parametrize("name", ["l4", "rtx-4000-sff-ada", "rtx4060-laptop", "a2"])
def test_laptops_and_boards_without_a_power_connector_run_at_lower_voltages(name):
    model = PowerModel.for_gpu(find_gpu(name))
    desktop = PowerModel.for_gpu(find_gpu("rtx4090" if find_gpu(name).sm == 89 else "rtx3090ti"))
    slow, knee = 1.0e9, model.curve.knee_hz
    assert desktop.curve.over_knee(slow) == desktop.curve.over_knee(knee) == model.curve.over_knee(knee)
    assert 0.74 < model.curve.over_knee(slow) < 0.95


def test_l4_under_full_fma_load_runs_above_its_base_clock():
    gpu = find_gpu("l4")
    model = PowerModel.for_gpu(gpu)
    core_j, dram_j = model.dynamic({"issue.fma32": 0.7 * gpu.fma_per_clk_sm["f32"] / 32 * gpu.sms * model.boost_hz})
    limited = model.apply_power_limit(NominalCosts(1.0, 0.0, 0.0, core_j, dram_j))
    assert limited.clock_hz[0] > 795e6  # the base clock of the data sheet
    assert limited.power_w[0] == pytest.approx(gpu.tdp_w, rel=0.01)


def test_throughput_per_watt_of_a_blackwell_workstation_gpu_hardly_depends_on_its_limit():
    gpu = find_gpu("rtx-pro-6000")
    model, flops = PowerModel.for_gpu(gpu), 2 * 8192.0**3
    core_j, dram_j = model.dynamic({"mma.f16": flops, "shared.wavefronts": flops * 2e-4, "l2.sectors": flops * 2e-4})
    launch = NominalCosts(flops / (0.92 * gpu.peak_flops("f16", tensor=True)), 0.0, 0.0, core_j, dram_j)
    a_watt = [
        1.0 / float(model.apply_power_limit(launch, watts).latency_s[0]) / watts for watts in (240, 300, 400, 500)
    ]
    assert max(a_watt) < 1.3 * min(a_watt)


def test_memory_power_depends_on_its_devices_but_not_on_the_core_clock():
    # An RTX 3090 has 24 GDDR6X devices, an RTX 3080 has 10.
    more, fewer = (PowerModel.for_gpu(find_gpu(name)) for name in ("rtx3090", "rtx3080"))
    assert 25 < more.board_w - fewer.board_w < 45


def test_full_fma_load_of_an_rtx_4090_draws_the_reported_power():
    model, gpu = MODELS["rtx4090"], find_gpu("rtx4090")
    fma_warps = gpu.fma_per_clk_sm["f32"] * gpu.sms * gpu.boost_clock_hz / 32
    core_j, dram_j = model.dynamic({"issue.fma32": fma_warps})
    assert 270 < model.apply_power_limit(NominalCosts(1.0, 0.0, 0.0, core_j, dram_j)).power_w <= 450.1


def test_every_power_coefficient_has_a_source():
    data = tomllib.loads(Path(power.__file__).with_name("power.toml").read_text(encoding="utf-8"))
    entries = [data[key] for key in ("board", "clock", "tensor", "data")] + [
        e for kind in ("chip", "event", "memory") for e in data[kind].values()
    ]
    assert all(len(entry["source"]) > 5 for entry in entries)


def test_power_limit_takes_as_many_numpy_calls_for_3000_launches_as_for_3():
    model = MODELS["rtx4090"]
    rng = np.random.default_rng(0)

    def calls_for(launches: int) -> int:
        events = {event: rng.uniform(1e5, 1e6, launches) for event in EVENTS}
        core_s, memory_s = rng.uniform(1e-3, 2e-3, (2, launches))

        def settle() -> LimitedCosts:
            core_j, dram_j = model.dynamic(events)
            return model.apply_power_limit(NominalCosts(core_s, memory_s, 2e-6, core_j, dram_j))

        assert not (settle().regime == query.CAPPED).any()
        return calls(settle)

    assert calls_for(3000) == calls_for(3) < 100


@pytest.mark.every(3)
@pytest.mark.slow
@pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the shared data folder is not beside the repository")
def test_recorded_power_is_within_the_accuracy_goals():
    command = [sys.executable, "tools/evidence", "power", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


LAUNCHES = 300


def throttled_launches(power: PowerModel) -> np.ndarray:
    """Return the costs of random launches: core-bound or DRAM-bound, and from idle to far above the TDP."""
    draw = np.random.default_rng(1)
    core_s = 10.0 ** draw.uniform(-6.0, -1.0, LAUNCHES)
    dram_s = core_s * 10.0 ** draw.uniform(-6.0, 3.0, LAUNCHES)
    core_j = core_s * power.tdp_w * 10.0 ** draw.uniform(-3.0, 0.7, LAUNCHES)
    dram_j = dram_s * power.tdp_w * draw.uniform(0.0, 0.6, LAUNCHES)
    return np.stack([core_s, dram_s, np.full(LAUNCHES, 5e-6), core_j, dram_j])


@pytest.mark.parametrize("name", ["rtx4090", "a100-sxm4-80gb", "h200-sxm", "t4", "gtx1650", "rtx2080ti"])
def test_launch_runs_at_the_highest_clock_that_keeps_its_limit(name):
    power = PowerModel.for_gpu(find_gpu(name))
    nominal, limit_w = throttled_launches(power), np.linspace(power.power_min_w, power.tdp_w, LAUNCHES)
    core_s, dram_s, fixed_s, core_j, dram_j = nominal
    start = power.running_hz / power.boost_hz
    ratio = clocks_between(power.minimum_hz / power.boost_hz, start)[:, np.newaxis]
    volts = power.voltage(ratio * power.boost_hz)
    latency = ((core_s / ratio) ** 4 + dram_s**4) ** 0.25 + fixed_s
    tree_w = power.clock_w * ratio * volts**2
    leakage_w = power.leakage_w * volts**power.leakage_exponent
    energy = (power.board_w + leakage_w + tree_w) * latency + core_j * volts**2 + dram_j
    keeps = energy <= latency * limit_w * (1.0 + 1e-12)  # shape (clocks, launches)
    highest = np.where(keeps.any(axis=0), CLOCKS - 1 - keeps[::-1].argmax(axis=0), 0)
    limited = power.apply_power_limit(NominalCosts(*nominal), limit_w)
    slowed = limited.regime == query.CAPPED
    assert 50 < slowed.sum() < LAUNCHES
    assert limited.clock_hz[slowed] == pytest.approx((ratio[:, 0] * power.boost_hz)[highest][slowed])
    held = slowed & keeps.any(axis=0)
    assert held.any()
    assert limited.latency_s[held] == pytest.approx(latency[highest, np.arange(LAUNCHES)][held])
    assert limited.clock_hz[~slowed] == pytest.approx(power.running_hz)


@pytest.mark.parametrize("name", ["rtx4090", "rtx3090", "h200-sxm"])
def test_launch_pauses_if_the_lowest_clock_exceeds_the_power_limit(name):
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


def test_batched_operating_points_equal_single_ones():
    power = PowerModel.for_gpu(find_gpu("rtx4090"))
    nominal, points = (
        throttled_launches(power),
        [(200.0, power.boost_hz), (200.0, 0.6 * power.boost_hz), (None, power.boost_hz)],
    )
    together = power.setting(points).costs(nominal)
    clock_hz = LimitedCosts._make([*together, nominal[4]]).clock_hz
    for number, point in enumerate(points):
        alone = power.setting([point]).costs(nominal)
        assert (together[:, number] == alone[:, 0]).all()
    assert clock_hz[0].max() > clock_hz[1].max()
