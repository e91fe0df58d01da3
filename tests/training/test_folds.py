"""Test the folds of cross-validation."""

import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.training.folds import group_folds


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.integers(1, 7), st.integers(0, 9))
def test_each_group_is_in_one_fold_and_no_fold_is_empty(groups, folds, seed):
    numbers = np.array(groups)
    fold = group_folds(numbers, folds, seed)
    assert all(len(set(fold[numbers == number])) == 1 for number in set(groups))
    assert set(fold) == set(range(min(folds, len(set(groups)))))
    assert (fold == group_folds(numbers, folds, seed)).all()


def test_missing_scikit_learn_error_names_the_extra(monkeypatch, refuses):
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)
    refuses(lambda: group_folds(np.arange(4), 2))
