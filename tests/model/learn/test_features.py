"""Test the features of the learned model: their names, and that none changes with the GPU's size."""

from dataclasses import replace

import numpy as np

from kernrec.model.learn import features
from tests.helpers.simulated_groups import simulated_inputs


def test_every_feature_is_documented_and_named_once():
    names = features.names()
    assert len(set(names)) == len(names) == len(features.FEATURES)
    for feature in features.FEATURES:
        assert feature.group in features.GROUPS
        assert feature.unit
        assert feature.meaning
        assert feature.formula


def test_matrix_has_a_row_per_candidate_and_a_column_per_name():
    inputs = simulated_inputs(7, 0)
    columns = features.names(("stages", "tile"))
    matrix = features.matrix(inputs, columns)
    assert matrix.shape == (7, len(columns))
    assert np.isfinite(matrix).all()
    assert np.allclose(matrix[:, columns.index("tunable.tile")], np.log2(1 + inputs.tunables["tile"]))


def test_tunable_of_another_kernel_is_missing():
    assert np.isnan(features.matrix(simulated_inputs(3, 0), ("tunable.raster",))).all()


def test_alignment_of_a_tunable_is_its_largest_power_of_two_divisor():
    inputs = replace(simulated_inputs(6, 0), tunables={"width": np.array([48.0, 32.0, 7.0, 0.0, -4.0, np.nan])})
    alignment = features.matrix(inputs, ("alignment.width",))[:, 0]
    assert alignment[:5].tolist() == [4.0, 5.0, 0.0, 0.0, 0.0]
    assert np.isnan(alignment[5])
    assert np.isnan(features.matrix(inputs, ("alignment.height",))).all()


def test_schedule_and_problem_features_need_no_profile():
    whole = simulated_inputs(5, 0)
    always = {"gpu", "flops", "bytes", "tunables", "latency_s", "power_w"}
    bare = replace(whole, **{name: None for name in vars(whole) if name not in always})
    columns = features.names(("tile",))
    matrix = features.matrix(bare, columns)
    finite = {name for name, column in zip(columns, matrix.T, strict=True) if np.isfinite(column).all()}
    assert {"tunable.tile", "intensity", "footprint", "prior_over_roofline"} <= finite
    assert "occupancy" not in finite


def test_times_are_used_only_as_ratios():
    """Halving every time, as a clock twice as fast does, changes no share."""
    inputs = simulated_inputs(5, 0)
    times = ("latency_s", "pipe_s", "busy_s", "wait_s", "l2_s", "dram_s", "core_s", "fixed_s")
    halved = replace(inputs, **{name: getattr(inputs, name) / 2 for name in times})
    shares = [f.name for f in features.FEATURES if f.name.endswith("_share")]
    assert np.allclose(features.matrix(inputs, shares), features.matrix(halved, shares))
