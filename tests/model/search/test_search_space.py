"""Test that offspring keep the constraints of the space, and that covering configs contain every value."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.search.gaussian_process import SearchSpace
from tests.helpers.depth import few_examples

GRID = np.stack(np.meshgrid([16, 32, 64, 128], [1, 2, 4, 8], [0, 1]), axis=-1).reshape(-1, 3).astype(float)
ALLOWED = GRID[GRID[:, 0] * GRID[:, 1] <= 256]  # the constraint of this space


@few_examples(15)
@given(st.integers(0, 2**16), st.sets(st.integers(0, len(ALLOWED) - 1)))
def test_offspring_are_valid_configs_of_the_space(seed, taken):
    space = SearchSpace(ALLOWED)
    left = np.ones(len(ALLOWED), dtype=bool)
    left[list(taken)] = False
    children = space.offspring(np.array([0, 5, 9]), left, np.random.default_rng(seed))
    assert left[children].all()
    assert len(np.unique(children)) == len(children)


def test_covering_configs_show_every_value_and_begin_with_the_best_prediction():
    predicted = np.arange(len(ALLOWED), 0.0, -1.0)
    space = SearchSpace(ALLOWED, predicted)
    assert space.covering[0] == len(ALLOWED) - 1
    for column in ALLOWED.T:
        assert set(column[space.covering]) == set(column)


def test_config_without_prediction_comes_last():
    predicted = np.where(np.arange(len(ALLOWED)) == 3, np.nan, 1.0)
    assert SearchSpace(ALLOWED, predicted).by_prediction[-1] == 3
