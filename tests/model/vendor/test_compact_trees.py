"""Test that compact trees predict what XGBoost predicts and refuse arrays of mismatched lengths."""

import json

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.vendor import compact_trees
from kernrec.model.vendor.compact_trees import CompactTrees, compact, expand
from tests.helpers.depth import few_examples


def booster(seed: int, rounds: int, levels: int) -> tuple[xgboost.Booster, np.ndarray]:
    draw = np.random.default_rng(seed)
    matrix = draw.normal(size=(300, 4)).astype(np.float32)
    target = np.sin(3 * matrix[:, 0]) + matrix[:, 1] * (matrix[:, 2] > 0)
    settings = {
        "max_depth": levels, "max_leaves": 20, "grow_policy": "lossguide", "base_score": 0.0, "max_bin": 255,
        "nthread": 1,
    }  # fmt: skip
    return xgboost.train(settings, xgboost.QuantileDMatrix(matrix, target, max_bin=255), rounds), matrix


def trees(boosted: xgboost.Booster) -> list[dict]:
    return json.loads(boosted.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]


@given(st.integers(0, 2**16), st.integers(1, 6), st.integers(1, 7))
@few_examples(6)
def test_predictions_equal_xgboost_up_to_one_byte_leaves(seed, rounds, levels):
    boosted, matrix = booster(seed, rounds, levels)
    small = expand(*compact(trees(boosted), 4, 0.25))
    expected = boosted.inplace_predict(matrix) + 0.25
    assert small.predict(matrix) == pytest.approx(expected, abs=3e-3 * rounds)


@pytest.mark.parametrize(("name", "change"), [
    ("cut", lambda a: a[:-1]), ("column", lambda a: a + 4), ("cut", lambda a: np.full_like(a, 255)),
    ("leaf", lambda a: a[1:]), ("inner", lambda a: ~a), ("cuts", lambda a: a[2:]), ("nodes", lambda a: a[::-1] * 0),
])  # fmt: skip
def test_inconsistent_arrays_are_refused(name, change):
    facts, arrays = compact(trees(booster(3, 4, 5)[0]), 4, 0.0)
    with pytest.raises((ValueError, IndexError)):
        expand(facts, arrays | {name: change(arrays[name])})


def test_trees_with_too_many_nodes_are_refused(monkeypatch):
    facts, arrays = compact(trees(booster(3, 4, 5)[0]), 4, 0.0)
    monkeypatch.setattr(compact_trees, "_MOST_NODES", int(arrays["nodes"].sum()))
    assert expand(facts, arrays).levels
    monkeypatch.setattr(compact_trees, "_MOST_NODES", int(arrays["nodes"].sum()) - 1)
    with pytest.raises(ValueError, match="do not fit"):
        expand(facts, arrays)


@few_examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_row_reaches_the_leaf_of_its_comparisons(seed, levels):
    draw = np.random.default_rng(seed)
    trees, features, inner = 40, 3, 2**levels - 1
    nodes = 2 * inner + 1
    node = np.arange(trees * nodes)
    split = node % nodes < inner
    left = np.where(split, 2 * node + 1 - node // nodes * nodes, node)
    values = np.array([-np.inf, -2.5, -0.0, 0.0, 1e-30, 1.5], dtype=np.float32)
    threshold = np.where(split, draw.choice(values[1:], len(node)), np.nan).astype(np.float32)
    leaf, feature = draw.integers(-8, 9, len(node)).astype(np.float32), draw.integers(0, features, len(node))
    trained = CompactTrees(np.arange(trees) * nodes, left, feature, threshold, leaf, 0.0, levels)
    matrix = draw.choice(values, (9, features))
    expected = []
    for row in matrix:
        reached = np.arange(trees) * nodes
        for _ in range(levels):
            reached = left[reached] + (row[feature[reached]] >= threshold[reached])
        expected.append(leaf[reached].sum())
    assert trained.predict(matrix).tolist() == expected
