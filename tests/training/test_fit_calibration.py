"""Test calibrations and scores."""

import json
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import KernrecError, UsageError
from kernrec.model.analytical.calibration import FILE, Calibration, load, save
from kernrec.model.analytical.launch_costs import NominalCosts
from kernrec.model.analytical.power import PowerModel
from kernrec.training import scores
from kernrec.training.dataset import RowGroup
from kernrec.training.fit_calibration import FEWEST_PROBLEMS, FEWEST_ROWS, fit
from kernrec.training.scores import group_folds
from tests.helpers.simulated_groups import simulated_groups

KNOWN = {"core_time": 1.6, "dram_time": 1.1, "static_power": 0.7, "core_energy": 1.3, "dram_energy": 2.0}
RTX4090 = "sm_89"


def machine(group: RowGroup, noise: float = 0.01, seed: int = 1, **factors: float) -> RowGroup:
    """Return the group as measured by a simulated GPU whose coefficients are off by known factors."""
    inputs, draw = group.inputs, np.random.default_rng(seed)
    truth = Calibration(inputs.gpu.arch, **(KNOWN | factors))
    nominal = NominalCosts(
        inputs.core_s * truth.core_time,
        inputs.dram_s * truth.dram_time,
        inputs.fixed_s,
        inputs.core_j * truth.core_energy,
        inputs.dram_j * truth.dram_energy,
    )
    limited = truth.apply_to_power(PowerModel.for_gpu(inputs.gpu)).apply_power_limit(nominal)
    distorted = np.exp(draw.normal(0, noise, (2, len(group))))
    return replace(group, latency_s=limited.latency_s * distorted[0], energy_j=limited.energy_j * distorted[1])


def machines(groups: Iterable[RowGroup], **factors: float) -> list[RowGroup]:
    return [machine(group, seed=number, **factors) for number, group in enumerate(groups)]


def test_calibration_recovers_and_stores_known_coefficients():
    (fitted,) = fit(machines(simulated_groups(10)), {"measurements": 300})
    calibration = fitted.calibration
    assert calibration is not None
    for name, value in KNOWN.items():
        # Board, leakage and clock tree energy all grow with time, so a fit can hardly separate these energies.
        assert getattr(calibration, name) == pytest.approx(value, rel=0.15 if name == "static_power" else 0.05), name
    assert (calibration.arch, calibration.problems, calibration.gpus) == (RTX4090, 10, ("rtx4090",))
    for before, after in (calibration.time_factor, calibration.energy_factor):
        assert after < 1.05 < before
    assert calibration.provenance == {"measurements": 300}
    assert all("10 problems, each held out" in line and line.endswith(": kept") for line in fitted.findings)


def test_calibration_is_not_distorted_by_rows_at_the_power_limit():
    """The GPU runs half of its rows at the power limit, with a lower clock than the analytical model assumes."""
    groups = machines(simulated_groups(12), static_power=1.4, core_energy=1.7)
    capped = np.concatenate([g.energy_j / g.latency_s > 0.98 * g.inputs.gpu.tdp_w for g in groups])
    assert 0.2 < capped.mean() < 0.9
    (fitted,) = fit(groups)
    assert fitted.calibration is not None
    assert fitted.calibration.core_time == pytest.approx(1.6, rel=0.05)
    assert fitted.calibration.core_energy == pytest.approx(1.7, rel=0.1)


def test_calibration_that_does_not_help_is_not_stored():
    """Each problem has a random factor above or below 1, so that no correction transfers to others."""
    groups = []
    for number, group in enumerate(simulated_groups(10)):
        own = 1.5 if number % 2 else 1 / 1.5
        truth = machine(group, **dict.fromkeys(KNOWN, 1.0))
        groups.append(replace(truth, latency_s=truth.latency_s * own, energy_j=truth.energy_j * own))
    (fitted,) = fit(groups)
    assert fitted.calibration is None
    assert all("no help, not kept" in line for line in fitted.findings)


def test_undetermined_coefficient_keeps_its_value():
    """Kernels that move almost nothing give no information about DRAM."""
    quiet = [
        replace(g, inputs=g.inputs.changed(dram_s=g.inputs.dram_s * 1e-3, dram_j=g.inputs.dram_j * 1e-3))
        for g in simulated_groups(6)
    ]
    (fitted,) = fit(machines(quiet))
    assert fitted.calibration is not None
    assert fitted.calibration.core_time == pytest.approx(KNOWN["core_time"], rel=0.05)
    assert fitted.calibration.dram_time == pytest.approx(1.0, abs=0.01)
    assert fitted.calibration.dram_energy == pytest.approx(1.0, abs=0.05)


def test_too_few_rows_error_states_how_many_are_missing(refuses):
    with pytest.raises(KernrecError, match=f"{FEWEST_PROBLEMS - 1} problems, {FEWEST_ROWS - 12} configs are missing"):
        fit(simulated_groups(1, rows=12))
    with pytest.raises(KernrecError, match=f"{FEWEST_PROBLEMS - 2} problems, 0 configs are missing"):
        fit(simulated_groups(2, rows=12))
    refuses(lambda: fit([replace(g, inputs=g.inputs.changed(core_s=np.nan)) for g in simulated_groups(4)]))


def stored(**multipliers: float) -> Calibration:
    return Calibration(RTX4090, rows=30, problems=4, gpus=("rtx4090",), time_factor=(1.8, 1.2), **multipliers)


def test_saved_calibration_reads_back(tmp_path):
    saved = {RTX4090: stored(core_time=1.25), "sm_80": replace(stored(dram_time=0.9), arch="sm_80")}
    save(saved, tmp_path / "models")
    loaded = load(tmp_path / "models")
    assert loaded == saved
    assert {path.name for path in (tmp_path / "models").iterdir()} == {FILE}
    assert load(tmp_path) == {}


def test_foreign_or_truncated_file_is_refused_in_one_line(write, refuses):
    refuses(lambda text: load(write(text, FILE).parent), [
        "", "[1]", '{"format": 7, "architectures": []}', '{"format": 1}',
        '{"format": 1, "architectures": [{"arch": "sm_89"}]}',
    ])  # fmt: skip


@pytest.mark.parametrize("value", ["1e9", "0", "NaN", '"x"', "null"])
def test_calibration_factor_out_of_range_is_refused(tmp_path, value):
    path = save({RTX4090: stored(core_time=1.25)}, tmp_path)
    path.write_text(path.read_text().replace("1.25", value))
    with pytest.raises(UsageError, match="not a calibration"):
        load(tmp_path)


@pytest.mark.parametrize("change", [{"rows": 1e309}, {"energy_rows": 1e309}, {"time_factor": [1e309, 1.0]}])
def test_calibration_number_beyond_double_range_is_refused(tmp_path, change):
    path = save({RTX4090: stored()}, tmp_path)
    content = json.loads(path.read_text())
    content["architectures"][0] |= change
    path.write_text(json.dumps(content).replace("Infinity", "1e309"))
    with pytest.raises(UsageError, match="not a calibration"):
        load(tmp_path)


costs = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=30).map(np.array)


@given(costs, st.integers(1, 40))
def test_perfect_ranking_has_efficiency_1_for_any_number_of_tried_configs(measured, k):
    order = scores.order_of(measured)
    assert scores.efficiency_at(measured, order, k) == 1.0
    assert scores.hit(measured, order)
    assert scores.reduction(measured, order) == 1.0 - 1.0 / len(measured)


@given(costs, st.randoms())
def test_efficiency_never_falls_with_more_tried_configs_and_ends_at_1(measured, random):
    order = np.random.default_rng(1).permutation(len(measured))
    curve = [scores.efficiency_at(measured, order, k) for k in range(1, len(measured) + 1)]
    assert (np.diff(curve) >= 0).all()
    assert curve[-1] == 1.0


def test_expected_random_score_is_the_mean_over_all_orders():
    from itertools import permutations

    measured = np.array([1.0, 1.04, 2.0, 3.0, 5.0])
    orders = [np.array(order) for order in permutations(range(5))]
    for k in (1, 2, 4):
        mean = np.mean([scores.efficiency_at(measured, order, k) for order in orders])
        assert scores.expected_random(measured, k)[0] == pytest.approx(mean)
    mean = np.mean([scores.reduction(measured, order) for order in orders])
    assert scores.expected_random(measured, 1)[1] == pytest.approx(mean)


def test_rank_correlation_equals_spearman():
    from scipy.stats import spearmanr

    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 6, 50), draw.normal(size=50)
    assert scores.rank_correlation(a, b) == pytest.approx(spearmanr(a, b)[0])
    assert scores.rank_correlation(np.ones(4), np.arange(4.0)) == 0.0


@given(costs, costs)
def test_front_recall_is_one_if_all_configs_are_recommended(latency, energy):
    count = min(len(latency), len(energy))
    latency, energy = latency[:count], energy[:count]
    assert scores.front_recall(latency, energy, np.arange(count)) == pytest.approx(1.0)
    assert 0.0 <= scores.front_recall(latency, energy, [0]) <= 1.0 + 1e-9


def test_interval_coverage_and_width_are_computed():
    measured, predicted = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.1, 2.0, 2.0, 8.0])
    low, high = predicted / 1.5, predicted * 1.5
    assert scores.coverage(measured, low, high) == 0.75
    assert scores.mean_width(low, high) == pytest.approx(2.25)
    assert scores.median_error(measured, predicted) == pytest.approx(0.05)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 9))
def test_each_group_is_in_one_fold_and_no_fold_is_empty(groups, folds, seed):
    numbers = np.array(groups)
    fold = group_folds(numbers, folds, seed)
    assert all(len(set(fold[numbers == number])) == 1 for number in set(groups))
    assert set(fold) == set(range(min(folds, len(set(groups)))))
    assert (fold == group_folds(numbers, folds, seed)).all()
