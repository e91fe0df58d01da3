"""Test that the Gaussian process learns which tunables matter, and that its closed forms match their definitions."""

import numpy as np
import pytest

from kernrec.model.search.gaussian_process import GaussianProcess, Hyperparameters, Points

pytest.importorskip("scipy")

DRAW = np.random.default_rng(0)
PLACES = DRAW.standard_normal((40, 3)) / np.sqrt(2.0)
POINTS = Points(PLACES, np.array([0, 0, 1]))  # the first two coordinates belong to one tunable
VALUES = np.sin(2.0 * PLACES[:, 0]) + PLACES[:, 1] ** 2 + 5.0


def test_leave_one_out_equals_a_process_without_that_value():
    # The values have mean 0 and variance 1 with and without the last, so that normalization changes nothing.
    hyperparameters = Hyperparameters(np.array([1.0, 0.1]), 0.05, 1.0)
    rest = VALUES[:-1]
    values = np.append((rest - rest.mean()) / rest.std(), 0.0)
    values[-1] = values.mean()
    error, deviation = GaussianProcess(POINTS, values, hyperparameters).leave_one_out()
    process = GaussianProcess(POINTS[:-1], values[:-1], hyperparameters)
    mean, variance = process.predict(POINTS[-1:])
    assert error[-1] == pytest.approx(values[-1] - mean[0], abs=0.02)
    assert deviation[-1] == pytest.approx(np.sqrt(variance[0] + process.noise), rel=0.05)


def test_equal_values_and_a_single_value_are_accepted():
    for values in (np.full(5, 2.0), np.array([2.0])):
        mean, variance = GaussianProcess(POINTS[: len(values)], values).predict(POINTS)
        assert mean == pytest.approx(2.0, abs=1e-3)
        assert np.isfinite(variance).all()
