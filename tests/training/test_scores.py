"""Test the laws of the metrics."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.training import scores
from kernrec.training.scores import group_folds

costs = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=30).map(np.array)


@given(costs, st.integers(1, 40))
def test_perfect_order_scores_one_at_every_k(measured, k):
    order = scores.order_of(measured)
    assert scores.efficiency_at(measured, order, k) == 1.0
    assert scores.hit(measured, order)
    assert scores.reduction(measured, order) == 1.0 - 1.0 / len(measured)


@given(costs, st.randoms())
def test_efficiency_never_falls_with_k_and_ends_at_one(measured, random):
    order = np.random.default_rng(1).permutation(len(measured))
    curve = [scores.efficiency_at(measured, order, k) for k in range(1, len(measured) + 1)]
    assert (np.diff(curve) >= 0).all()
    assert curve[-1] == 1.0


def test_random_scores_are_the_mean_over_all_orders():
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
def test_true_front_has_full_recall_and_a_part_of_it_less(latency, energy):
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


def test_missing_scikit_learn_error_names_the_extra(monkeypatch, refuses):
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)
    refuses(lambda: group_folds(np.arange(4), 2))
