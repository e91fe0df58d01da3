"""Test a campaign's search: its Gaussian process, its search space, and its start from predictions."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.search import expected_improvement, gaussian_process
from kernrec.model.search.expected_improvement import FIRST, ExpectedImprovement
from kernrec.model.search.gaussian_process import (
    FEWEST,
    GaussianProcess,
    Hyperparameters,
    Points,
    SearchSpace,
    completed_predictions,
)
from tests.helpers.depth import few_examples
from tests.helpers.needs import needs

VALUES = ([16, 32, 64, 128, 256], [1, 2, 4, 8, 16], [1, 2, 3, 4], [1, 2, 4, 8], [0, 1], [0, 1])
SPACE = np.array(list(itertools.product(*VALUES)), dtype=float)


def truth_s(tunables: np.ndarray) -> np.ndarray:
    """Return the true time, lowest at (64, 4, 2, 4, 1, 0). The flags change which tile sizes are best."""
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


def test_search_without_predictions_beats_random_order():
    best = np.mean([TRUTH[measured_configs(ExpectedImprovement(SPACE, seed=seed), 60)].min() for seed in range(2)])
    draws = [TRUTH[np.random.default_rng(seed).permutation(len(TRUTH))[:60]].min() for seed in range(50)]
    assert best / TRUTH.min() < 1.10
    assert np.mean(draws) / TRUTH.min() > 1.30


def test_search_interpolates_a_tunable_with_many_values():
    """Among 400 values, 40 measurements find the best value or its neighbor."""
    values = np.arange(400.0)
    tried = measured_configs(ExpectedImprovement(values[:, None]), 40, 1e-3 * (1.0 + np.abs(values - 77.0) / 50.0))
    assert min(abs(position - 77) for position in tried) <= 1


def test_search_overcomes_a_wrongly_predicted_flag():
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
def test_search_of_a_large_space_tries_offspring_of_good_configs(monkeypatch):
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
    # Only one of the 50 configs without a prediction may be tried earlier.
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


DRAW = np.random.default_rng(0)
PLACES = DRAW.standard_normal((40, 3)) / np.sqrt(2.0)
POINTS = Points(PLACES, np.array([0, 0, 1]))  # the first two coordinates belong to one tunable
OBSERVED = np.sin(2.0 * PLACES[:, 0]) + PLACES[:, 1] ** 2 + 5.0


@needs("scipy")
def test_leave_one_out_equals_a_gaussian_process_without_the_value():
    # `OBSERVED` and `rest` both have mean 0 and variance 1, so normalization does not change them.
    hyperparameters = Hyperparameters(np.array([1.0, 0.1]), 0.05, 1.0)
    rest = OBSERVED[:-1]
    values = np.append((rest - rest.mean()) / rest.std(), 0.0)
    values[-1] = values.mean()
    error, deviation = GaussianProcess(POINTS, values, hyperparameters).leave_one_out()
    process = GaussianProcess(POINTS[:-1], values[:-1], hyperparameters)
    mean, variance = process.predict(POINTS[-1:])
    assert error[-1] == pytest.approx(values[-1] - mean[0], abs=0.02)
    assert deviation[-1] == pytest.approx(np.sqrt(variance[0] + process.noise), rel=0.05)


@needs("scipy")
def test_gaussian_process_accepts_equal_values_and_a_single_value():
    for values in (np.full(5, 2.0), np.array([2.0])):
        mean, variance = GaussianProcess(POINTS[: len(values)], values).predict(POINTS)
        assert mean == pytest.approx(2.0, abs=1e-3)
        assert np.isfinite(variance).all()


COMPLETED = np.array(
    list(itertools.product([16, 32, 64, 128, 256], [1, 2, 4, 8, 16], [1, 2, 3, 4], [1, 2, 4, 8], [0, 1]))
)
COMPLETED_LOG_S = (
    np.abs(np.log2(COMPLETED[:, 0] / 64)) * 0.3 + np.abs(np.log2(COMPLETED[:, 1] / 4)) * 0.2 + 0.4 * COMPLETED[:, 4]
)
PREDICTED_S = 1e-3 * np.exp(
    COMPLETED_LOG_S + 0.2 * np.abs(COMPLETED[:, 2] - 3) + 0.1 * np.abs(np.log2(COMPLETED[:, 3]) - 1)
)


def some_predicted(count: int) -> np.ndarray:
    predicted = np.random.default_rng(3).permutation(len(COMPLETED))[:count]
    predicted_s = np.full(len(COMPLETED), np.nan)
    predicted_s[predicted] = PREDICTED_S[predicted]
    return predicted_s


def test_completed_predictions_keep_known_values_and_estimate_the_rest():
    predicted_s = some_predicted(100)
    predicted = np.isfinite(predicted_s)
    completed = completed_predictions(COMPLETED, predicted_s)
    assert np.array_equal(completed[predicted], predicted_s[predicted])
    error = np.std(np.log(completed[~predicted] / PREDICTED_S[~predicted]))
    assert error < 0.25 * np.std(np.log(PREDICTED_S))


def test_completion_needs_a_minimum_number_of_predictions():
    predicted_s = some_predicted(FEWEST - 1)
    assert np.array_equal(completed_predictions(COMPLETED, predicted_s), predicted_s, equal_nan=True)


def test_search_with_few_predictions_begins_near_the_best():
    """The search must not rank a config without a prediction as the slowest."""
    predicted_s = some_predicted(len(COMPLETED) // 8)
    assert np.isnan(predicted_s[np.argmin(PREDICTED_S)])

    none = np.array([], dtype=int)
    first, other = (
        ExpectedImprovement(COMPLETED, predictions).order(none, np.array([]))[:5]
        for predictions in (completed_predictions(COMPLETED, predicted_s), predicted_s)
    )
    assert PREDICTED_S[first].min() < 1.05 * PREDICTED_S.min() < PREDICTED_S[other].min()


GRID = np.stack(np.meshgrid([16, 32, 64, 128], [1, 2, 4, 8], [0, 1]), axis=-1).reshape(-1, 3).astype(float)
ALLOWED = GRID[GRID[:, 0] * GRID[:, 1] <= 256]


@few_examples(15)
@given(st.integers(0, 2**16), st.sets(st.integers(0, len(ALLOWED) - 1)))
def test_offspring_are_valid_configs_of_the_space(seed, taken):
    space = SearchSpace(ALLOWED)
    left = np.ones(len(ALLOWED), dtype=bool)
    left[list(taken)] = False
    children = space.offspring(np.array([0, 5, 9]), left, np.random.default_rng(seed))
    assert left[children].all()
    assert len(np.unique(children)) == len(children)


def test_covering_configs_contain_every_tunable_value():
    predicted = np.arange(len(ALLOWED), 0.0, -1.0)
    space = SearchSpace(ALLOWED, predicted)
    assert space.covering[0] == len(ALLOWED) - 1
    for column in ALLOWED.T:
        assert set(column[space.covering]) == set(column)


def test_config_without_prediction_comes_last():
    predicted = np.where(np.arange(len(ALLOWED)) == 3, np.nan, 1.0)
    assert SearchSpace(ALLOWED, predicted).by_prediction[-1] == 3
