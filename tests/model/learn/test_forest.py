"""Test that kernrec's tree evaluation predicts what XGBoost predicts and refuses malformed trees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.learn.forest import Forest
from kernrec.util.array_file import pack
from tests.helpers.depth import few_examples

xgboost = pytest.importorskip("xgboost")


def grown(seed: int, depth: int, rounds: int, missing: float) -> tuple[Forest, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(300, 6)).astype(np.float32)
    rows[draw.random(rows.shape) < missing] = np.nan
    target = np.nan_to_num(rows[:, 0]) * 2 + np.nan_to_num(rows[:, 3]) ** 2
    parameters = {"max_depth": depth, "eta": 0.3, "base_score": 0.25, "nthread": 1, "seed": seed}
    booster = xgboost.train(parameters, xgboost.DMatrix(rows, target), rounds)
    return Forest.of_booster(booster), rows, booster.predict(xgboost.DMatrix(rows))


@few_examples(15)
@given(st.integers(0, 100), st.integers(1, 7), st.integers(1, 30), st.sampled_from([0.0, 0.2, 0.9]))
def test_predictions_equal_xgboost(seed, depth, rounds, missing):
    forest, rows, expected = grown(seed, depth, rounds, missing)
    assert forest.features == 6
    assert forest.predict(rows) == pytest.approx(expected, abs=1e-4)


@few_examples(10)
@given(st.integers(0, 100), st.integers(1, 7), st.integers(1, 30))
def test_packed_trees_give_the_same_predictions(seed, depth, rounds):
    forest, rows, _ = grown(seed, depth, rounds, 0.2)
    assert (Forest.unpacked(forest.packed()).predict(rows) == forest.predict(rows)).all()


def test_inconsistent_packed_trees_are_refused():
    forest = FOREST
    shorter, strange = replace(forest, value=forest.value[:-1]), replace(forest, column=forest.column + np.uint16(12))
    wide, more = replace(forest, value=forest.value.astype(np.float64)), replace(forest, trees=forest.trees + 8)
    for wrong in (shorter, strange, wide, more, replace(forest, levels=forest.levels + 1)):
        with pytest.raises(ValueError, match=r"lengths|types|split"):
            Forest.unpacked(wrong.packed())
    for other in (pack({}, {}), pack({"features": 1}, {}), pack({"levels": "x"}, {})):
        with pytest.raises(ValueError, match="not packed trees"):
            Forest.unpacked(other)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("part", ["threshold", "leaf", "base"])
def test_trees_with_impossible_numbers_are_refused(part, number):
    forest = FOREST
    value, splits = forest.value.copy(), len(forest.column)
    value[0 if part == "threshold" else splits] = number if part != "base" else value[splits]
    wrong = replace(forest, value=value, base=number if part == "base" else forest.base)
    if part == "threshold" and number > 0:  # an infinite threshold is valid: every value goes left
        assert np.isfinite(Forest.unpacked(wrong.packed()).predict(np.ones((1, 6)))).all()
        return
    with pytest.raises(ValueError, match="not finite"):
        Forest.unpacked(wrong.packed())


@pytest.mark.parametrize(("field", "number"), [("levels", 40), ("levels", -1), ("trees", 1 << 40), ("features", True)])
def test_oversized_trees_are_refused_before_allocation(field, number):
    forest = FOREST
    header = {"features": 6, "trees": 5, "base": 0.0, "levels": 4, field: number}
    with pytest.raises(ValueError, match="impossible numbers"):
        Forest.unpacked(pack(header, {"column": forest.column, "value": forest.value}))


@few_examples(60)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_trees_with_a_valid_hash_are_refused_or_stay_finite(damage):
    """The damage is in the metadata and array shapes at the start of the file."""
    packed = bytearray(FOREST.packed())
    for place, byte in damage:
        packed[place + 49] = byte
    try:
        forest = Forest.unpacked(bytes(packed))
    except ValueError:
        return
    assert np.isfinite(forest.predict(np.ones((2, forest.features), np.float32))).all()


@pytest.mark.parametrize(("number", "feature", "reason"), [
    *((number, 0, "not finite") for number in (np.nan, np.inf, 1e30)),
    *((1.0, feature, "a feature that does not exist") for feature in (-1, 6)),
])  # fmt: skip
def test_impossible_leaves_and_unknown_features_are_refused(number, feature, reason):
    tree = {"left_children": [1, -1, -1], "right_children": [2, -1, -1], "split_conditions": [0.0, number, 2.0]}
    tree |= {"split_indices": [feature, 0, 0], "default_left": [0, 0, 0]}
    with pytest.raises(ValueError, match=reason):
        Forest.laid_out([tree], 6, 0.0)


FOREST = grown(0, 4, 5, 0.1)[0]
