"""Test a campaign's search strategy on spaces whose true costs are known."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.search import expected_improvement, gaussian_process
from kernrec.model.search.expected_improvement import FIRST, ExpectedImprovement
from tests.helpers.depth import few_examples

VALUES = ([16, 32, 64, 128, 256], [1, 2, 4, 8, 16], [1, 2, 3, 4], [1, 2, 4, 8], [0, 1], [0, 1])
SPACE = np.array(list(itertools.product(*VALUES)), dtype=float)


def truth_s(tunables: np.ndarray) -> np.ndarray:
    """Return the true time, lowest at (64, 4, 2, 4, 1, 0). The flags move the optimum, as shared memory does."""
    bx, by, tx, ty, shared, pad = np.log2(1.0 + tunables).T
    flags = 0.8 * (shared < 0.5) + 0.3 * (pad > 0.5) * (shared > 0.5)
    shape = (
        0.15 * np.abs(bx - np.log2(65))
        + 0.2 * np.abs(by - np.log2(5))
        + 0.3 * np.abs(tx * ty - np.log2(3) * np.log2(5))
    )
    return 1e-3 * np.exp(flags + shape * (1.0 - 0.5 * (shared < 0.5)))


TRUTH = truth_s(SPACE)


def measured_configs(search: ExpectedImprovement, count: int, truth: np.ndarray = TRUTH) -> list[int]:
    """Return the configs, in order, that a campaign following the search measures."""
    seen: list[int] = []
    while len(seen) < count:
        order = search.order(np.array(seen, dtype=int), truth[seen])
        assert len(order) == len(truth) - len(seen)
        seen += order[: search.batch(len(seen))].tolist()
    return seen[:count]


def random_best(count: int) -> float:
    """Return the expected best time of `count` randomly chosen configs."""
    draws = [TRUTH[np.random.default_rng(seed).permutation(len(TRUTH))[:count]].min() for seed in range(50)]
    return float(np.mean(draws))


def test_search_without_predictions_beats_random_order():
    best = np.mean([TRUTH[measured_configs(ExpectedImprovement(SPACE, seed=seed), 60)].min() for seed in range(2)])
    assert best / TRUTH.min() < 1.10
    assert random_best(60) / TRUTH.min() > 1.30


def test_tunable_with_many_values_is_searched_as_a_quantity():
    """Among 400 values, 40 measurements find the best value or its neighbor."""
    values = np.arange(400.0)
    tried = measured_configs(ExpectedImprovement(values[:, None]), 40, 1e-3 * (1.0 + np.abs(values - 77.0) / 50.0))
    assert min(abs(position - 77) for position in tried) <= 1


def test_wrongly_predicted_flag_is_corrected():
    wrong = TRUTH * np.where(SPACE[:, 4] > 0, 4.0, 1.0)  # the predictions rank all good configs behind bad ones
    order = np.argsort(wrong)
    assert TRUTH[order[:100]].min() / TRUTH.min() > 1.5
    assert TRUTH[measured_configs(ExpectedImprovement(SPACE, wrong), 60)].min() / TRUTH.min() < 1.10


def test_config_predicted_best_comes_first():
    assert measured_configs(ExpectedImprovement(SPACE, TRUTH), 1) == [int(TRUTH.argmin())]


def test_first_measurements_try_every_tunable_value():
    first = SPACE[measured_configs(ExpectedImprovement(SPACE, TRUTH), FIRST)]
    for column, values in zip(first.T, VALUES, strict=True):
        assert set(column) == set(values)


@pytest.mark.slow
def test_large_space_is_searched_through_offspring(monkeypatch):
    monkeypatch.setattr(expected_improvement, "SCORED", 100)
    monkeypatch.setattr(gaussian_process, "_OFFSPRING", 150)
    best = np.mean([TRUTH[measured_configs(ExpectedImprovement(SPACE, seed=seed), 80)].min() for seed in range(3)])
    assert best / TRUTH.min() < 1.15


def test_failed_configs_are_not_repeated_and_not_learned_from():
    truth = np.where(SPACE[:, 0] > 100, np.nan, TRUTH)
    seen = measured_configs(ExpectedImprovement(SPACE), 80, truth)
    assert len(set(seen)) == 80
    assert np.nanmin(truth[seen]) / np.nanmin(truth) < 1.15
    everything_fails = measured_configs(ExpectedImprovement(SPACE), 40, np.full(len(SPACE), np.nan))
    assert len(set(everything_fails)) == 40


def test_configs_without_prediction_come_last():
    tunables = np.concatenate([SPACE[:200], np.full((50, SPACE.shape[1]), np.nan)])
    predicted = np.concatenate([TRUTH[:200], np.full(50, np.nan)])
    order = ExpectedImprovement(tunables, predicted).order(np.array([], dtype=int), np.array([]))
    # Only one config that lacks every tunable is tried early, namely the best of them.
    assert (order[-49:] >= 200).all()


@few_examples(20)
@given(st.integers(1, 40), st.integers(0, 2**31))
def test_every_order_contains_each_untried_config_once_and_is_reproducible(tried, seed):
    draw = np.random.default_rng(seed)
    rows = draw.permutation(len(SPACE))[: 60 + tried]
    space, truth = SPACE[rows], np.where(draw.random(len(rows)) < 0.2, np.nan, TRUTH[rows])
    seen = draw.permutation(len(rows))[:tried]
    first, again = (ExpectedImprovement(space, seed=seed).order(seen, truth[seen]).tolist() for _ in range(2))
    assert first == again
    assert sorted(first + seen.tolist()) == list(range(len(rows)))


def test_missing_scipy_is_reported_before_measuring(monkeypatch, refuses):
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    refuses(lambda: ExpectedImprovement(SPACE))
