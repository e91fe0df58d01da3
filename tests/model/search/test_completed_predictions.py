"""Test the extension of predictions for part of a space to the rest of it."""

import itertools

import numpy as np

from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.gaussian_process import FEWEST, completed_predictions

SPACE = np.array(list(itertools.product([16, 32, 64, 128, 256], [1, 2, 4, 8, 16], [1, 2, 3, 4], [1, 2, 4, 8], [0, 1])))
LOG_S = np.abs(np.log2(SPACE[:, 0] / 64)) * 0.3 + np.abs(np.log2(SPACE[:, 1] / 4)) * 0.2 + 0.4 * SPACE[:, 4]
PREDICTED_S = 1e-3 * np.exp(LOG_S + 0.2 * np.abs(SPACE[:, 2] - 3) + 0.1 * np.abs(np.log2(SPACE[:, 3]) - 1))


def some_predicted(count: int) -> np.ndarray:
    """Return predictions for `count` configs, and NaN for the others."""
    predicted = np.random.default_rng(3).permutation(len(SPACE))[:count]
    predicted_s = np.full(len(SPACE), np.nan)
    predicted_s[predicted] = PREDICTED_S[predicted]
    return predicted_s


def test_completion_keeps_predictions_and_approximates_the_rest():
    predicted_s = some_predicted(100)
    predicted = np.isfinite(predicted_s)
    completed = completed_predictions(SPACE, predicted_s)
    assert np.array_equal(completed[predicted], predicted_s[predicted])
    error = np.std(np.log(completed[~predicted] / PREDICTED_S[~predicted]))
    assert error < 0.25 * np.std(np.log(PREDICTED_S))


def test_too_few_predictions_are_not_completed():
    predicted_s = some_predicted(FEWEST - 1)
    assert np.array_equal(completed_predictions(SPACE, predicted_s), predicted_s, equal_nan=True)


def test_search_with_few_predictions_begins_near_the_best():
    """The best config has no prediction, so that it must not count as the slowest."""
    predicted_s = some_predicted(len(SPACE) // 8)
    assert np.isnan(predicted_s[np.argmin(PREDICTED_S)])

    none = np.array([], dtype=int)
    first, other = (
        ExpectedImprovement(SPACE, predictions).order(none, np.array([]))[:5]
        for predictions in (completed_predictions(SPACE, predicted_s), predicted_s)
    )
    assert PREDICTED_S[first].min() < 1.05 * PREDICTED_S.min() < PREDICTED_S[other].min()
