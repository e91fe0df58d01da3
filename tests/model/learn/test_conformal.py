"""Test features of learned models, and their conformal intervals."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.analytical.demand import PIPES
from kernrec.model.analytical.spread import INTERVAL
from kernrec.model.learn import features
from kernrec.model.learn.conformal import Extent, calibrate, groups_needed, unknown_interval
from kernrec.model.learn.model import bounded, least_seconds
from tests.helpers.simulated_groups import simulated_inputs


def simulated_residuals(draw: np.random.Generator, groups: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate errors that share a common part within each group."""
    common = draw.normal(0.0, 0.1, groups)
    return (common[:, None] + draw.normal(0.0, 0.05, (groups, rows))).ravel(), np.repeat(np.arange(groups), rows)


def test_interval_covers_nine_tenths_of_new_rows():
    draw = np.random.default_rng(0)
    inside = []
    for _ in range(300):
        residual, group = simulated_residuals(draw, 30, 10)
        interval = calibrate(residual, group, "problem")
        fresh, _ = simulated_residuals(draw, 1, 10)
        low, high = interval.around(np.ones(10))
        inside.append(((np.exp(fresh) >= low) & (np.exp(fresh) <= high)).mean())
    assert 0.88 <= np.mean(inside) <= 0.95


def test_interval_from_few_groups_includes_the_analytical_model_error():
    assert groups_needed(0.90) == 9
    draw = np.random.default_rng(0)
    assert calibrate(np.zeros(0), np.zeros(0, int), "GPU") == unknown_interval("GPU")
    assert unknown_interval("GPU").width == pytest.approx(math.log(INTERVAL))
    exact = [calibrate(np.zeros(5 * n), np.repeat(np.arange(n), 5), "GPU").width for n in range(1, 9)]
    assert all(a > b for a, b in pairwise([math.log(INTERVAL), *exact]))  # groups with small errors narrow the interval
    wrong = [calibrate(np.full(5 * n, 2.0), np.repeat(np.arange(n), 5), "GPU").width for n in range(1, 9)]
    assert all(width == pytest.approx(2.0, abs=0.01) for width in wrong)  # large errors do not narrow the interval
    few, enough = (calibrate(*simulated_residuals(draw, n, 50), "problem") for n in (8, 9))
    assert (few.pooled, enough.pooled) == (True, False)
    assert few.summary == "8 held-out problems and the analytical model; 9 would be enough without it"
    assert enough.summary == "9 held-out problems"


def test_interval_weights_large_and_small_groups_equally():
    residual = np.concatenate([np.full(10_000, 0.01), np.full(20, 1.0)])
    group = np.concatenate([np.zeros(10_000, int), np.arange(1, 21)])
    interval = calibrate(residual, group, "problem")
    assert interval.width == pytest.approx(1.0)


def test_interval_widens_with_distance_from_training_data():
    interval = calibrate(*simulated_residuals(np.random.default_rng(0), 20, 5), "problem")
    distances = np.array([0.0, 0.1, 0.5, 1.0, 5.0, 50.0])
    low, high = interval.around(np.ones(len(distances)), distances)
    assert (np.diff(high) > 0).all()
    assert high * low == pytest.approx(1.0)
    assert high[0] == pytest.approx(math.exp(interval.width))
    assert high[0] < INTERVAL < high[-1]
    unknown = np.log(unknown_interval("GPU").around(np.ones(2), np.array([0.0, 1e6]))[1])
    assert unknown[1] == pytest.approx(unknown[0] * math.sqrt(2.0))  # two independent errors of equal size add up


@given(st.floats(0.0, 3.0), st.floats(0.0, 4.0))
def test_interval_reaches_the_largest_error_far_from_training_data(error, distance):
    interval = calibrate(np.full(20, error), np.arange(20), "problem", np.full(20, distance))
    reached = float(np.log(interval.around(np.ones(1), distance)[1][0]))
    assert reached >= error - 1e-9
    if interval.width > 1e-6:
        assert reached == pytest.approx(error)


def test_distance_is_zero_inside_the_training_range_and_grows_outside():
    rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    rows[:, 3] = np.nan
    extent = Extent.of(rows)
    candidates = np.zeros((3, 4), dtype=np.float32)
    candidates[1, 0], candidates[2, 0] = 4.0, 8.0
    candidates[:, 3] = 1.0
    inside, out, far = extent.distance(candidates)
    assert inside == 0.0
    assert 0.0 < out < far


def test_distance_of_a_feature_group_is_not_diluted_by_other_groups():
    """A shape of a new size differs from the training data only in its size features."""
    rows = np.random.default_rng(0).normal(size=(500, 40)).astype(np.float32)
    candidates = np.zeros((1, 40), dtype=np.float32)
    candidates[0, -1] = 6.0
    apart = Extent.of(rows, np.array([0] * 38 + [1] * 2))
    assert apart.distance(candidates)[0] > 2 * Extent.of(rows).distance(candidates)[0] > 0


def test_new_value_of_a_constant_feature_is_distant():
    rows = np.ones((50, 2), dtype=np.float32)
    assert Extent.of(rows).distance(np.array([[1.0, 1.0], [1.0, 2.0]], dtype=np.float32)).tolist()[0] == 0.0
    assert Extent.of(rows).distance(np.array([[1.0, 2.0]], dtype=np.float32))[0] > 0.2


def test_bound_is_the_slower_of_busiest_pipe_and_compulsory_bytes():
    inputs = simulated_inputs(50, 1).changed(bytes=1.0, fixed_s=np.nan)
    arithmetic = inputs.pipe_s[[PIPES.index(name) for name in ("fma", "f64", "tensor")]].max(axis=0)
    assert np.allclose(least_seconds(inputs), arithmetic)
    streaming = inputs.changed(bytes=1e12)
    assert np.allclose(least_seconds(streaming), 1e12 / inputs.gpu.memory_bandwidth)
    assert np.allclose(least_seconds(streaming.changed(pipe_s=np.nan)), 1e12 / inputs.gpu.memory_bandwidth)


def test_corrected_time_is_at_least_the_launch_overhead():
    inputs = simulated_inputs(50, 1).changed(bytes=1.0, pipe_s=np.nan)
    assert (least_seconds(inputs) >= inputs.fixed_s).all()


def test_power_limit_lowers_the_clock_of_the_bound():
    inputs = simulated_inputs(50, 1).changed(bytes=1.0, fixed_s=np.nan)
    halved = inputs.changed(clock_hz=0.5 * inputs.gpu.boost_clock_hz)
    assert np.allclose(least_seconds(halved), 2.0 * least_seconds(inputs))


def test_correction_is_raised_to_the_bound_and_otherwise_unchanged():
    inputs = simulated_inputs(50, 1)
    least = np.log(least_seconds(inputs) / inputs.latency_s)
    assert (bounded(least - 1.0, least) >= least).all()
    assert np.abs(bounded(least + 0.5, least) - (least + 0.5)).max() < 1e-4
    assert (bounded(least, least) - least).max() < 0.05


def test_every_feature_is_documented_and_named_once():
    names = features.names()
    assert len(set(names)) == len(names) == len(features.FEATURES)
    for feature in features.FEATURES:
        assert feature.group in features.GROUPS
        assert feature.unit
        assert feature.meaning


def test_matrix_has_a_row_per_candidate_and_a_column_per_feature():
    inputs = simulated_inputs(7, 0)
    columns = features.names(("stages", "tile"))
    matrix = features.matrix(inputs, columns)
    assert matrix.shape == (7, len(columns))
    assert np.isfinite(matrix).all()
    assert np.allclose(matrix[:, columns.index("tunable.tile")], np.log2(1 + inputs.tunables["tile"]))


def test_feature_of_another_kernels_tunable_is_nan():
    assert np.isnan(features.matrix(simulated_inputs(3, 0), ("tunable.raster",))).all()


def test_alignment_of_a_tunable_is_its_largest_power_of_two_divisor():
    inputs = replace(simulated_inputs(6, 0), tunables={"width": np.array([48.0, 32.0, 7.0, 0.0, -4.0, np.nan])})
    alignment = features.matrix(inputs, ("alignment.width",))[:, 0]
    assert alignment[:5].tolist() == [4.0, 5.0, 0.0, 0.0, 0.0]
    assert np.isnan(alignment[5])
    assert np.isnan(features.matrix(inputs, ("alignment.height",))).all()


def test_schedule_and_problem_features_exist_without_a_profile():
    whole = simulated_inputs(5, 0)
    quantities = {name: getattr(whole, name) for name in ("flops", "bytes", "latency_s", "power_w")}
    bare = features.ModelInputs.of(whole.gpu, whole.tunables, 5, **quantities)
    columns = features.names(("tile",))
    matrix = features.matrix(bare, columns)
    finite = {name for name, column in zip(columns, matrix.T, strict=True) if np.isfinite(column).all()}
    assert {"tunable.tile", "intensity", "footprint", "prior_over_roofline"} <= finite
    assert "occupancy" not in finite


def test_model_features_do_not_change_if_all_times_are_halved():
    inputs = simulated_inputs(5, 0)
    times = ("latency_s", "pipe_s", "busy_s", "wait_s", "l2_s", "dram_s", "core_s", "fixed_s")
    halved = inputs.changed(**{name: getattr(inputs, name) / 2 for name in times})
    shares = [f.name for f in features.FEATURES if f.name.endswith("_share")]
    assert np.allclose(features.matrix(inputs, shares), features.matrix(halved, shares))
