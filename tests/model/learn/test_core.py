"""The walk down trees as Python and compiled: equal results."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrec.model.learn import forest
from kernrec.model.vendor import compact_trees
from tests.helpers.core_forms import draws, in_both_forms


@settings(max_examples=30, deadline=None)
@given(draws, st.integers(0, 6), st.integers(1, 30))
def test_candidates_reach_the_same_leaves_in_both_forms(draw: np.random.Generator, levels: int, rows: int) -> None:
    trees, features, inner = 12, 5, 2**levels - 1
    nodes = 2 * inner + 1
    node = np.arange(trees * nodes)
    split = node % nodes < inner
    left = np.where(split, 2 * node + 1 - node // nodes * nodes, node)
    threshold = np.where(split, draw.normal(size=len(node)), np.nan).astype(np.float32)
    leaf = draw.normal(size=len(node)).astype(np.float32)
    start, feature = np.arange(trees) * nodes, draw.integers(0, features, len(node))
    trained = compact_trees.CompactTrees(start, left, feature, threshold, leaf, 0.5, levels)
    matrix = draw.normal(size=(rows, features)).astype(np.float32)
    in_both_forms(compact_trees, lambda: [trained.predict(matrix)])


@settings(max_examples=30, deadline=None)
@given(draws, st.integers(0, 6), st.integers(1, 30))
def test_candidates_go_down_complete_trees_alike_in_both_forms(
    draw: np.random.Generator, levels: int, rows: int
) -> None:
    trees, features = 12, 5
    sizes = [trees << level for level in range(levels)]
    columns = tuple(draw.integers(0, 2 * features, size) for size in sizes)
    thresholds = tuple(draw.normal(size=size).astype(np.float32) for size in sizes)
    leaf = draw.normal(size=trees << levels).astype(np.float32)
    trained = forest.Forest(features, trees, columns, thresholds, leaf, 0.5)
    matrix = np.where(draw.random((rows, features)) < 0.2, np.nan, draw.normal(size=(rows, features)))
    in_both_forms(forest, lambda: [trained.predict(matrix)])
