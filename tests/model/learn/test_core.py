"""The walk down trees as Python and compiled: equal results."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrec.model.learn import forest
from tests.helpers.core_forms import draws, in_both_forms


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
