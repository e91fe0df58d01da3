"""Multipliers of parts, fitted in logarithmic error."""

import numpy as np
import pytest

from kernrec.training.multipliers import fit_multipliers


def shares_of(parts: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    """Each part over the measured value, where the measured value is the sum of the parts times their multipliers."""
    return parts / (parts @ multipliers)[:, None]


def random_parts(rows: int = 200, count: int = 3) -> np.ndarray:
    return np.exp(np.random.default_rng(0).normal(0.0, 1.0, (rows, count)))


def test_the_multipliers_of_exact_rows_are_recovered() -> None:
    expected = np.array([0.5, 1.7, 1.1])
    multipliers = fit_multipliers(shares_of(random_parts(), expected), np.ones(200), 8.0)
    assert multipliers == pytest.approx(expected, rel=0.01)


def test_a_part_that_is_hardly_there_keeps_its_multiplier() -> None:
    parts = random_parts() * [1.0, 1.0, 1e-4]
    multipliers = fit_multipliers(shares_of(parts, np.array([0.5, 1.7, 3.0])), np.ones(200), 8.0)
    assert multipliers[2] == 1.0
    assert multipliers[:2] == pytest.approx([0.5, 1.7], rel=0.01)


def test_a_multiplier_that_is_not_plausible_is_not_fitted() -> None:
    multipliers = fit_multipliers(shares_of(random_parts(), np.array([20.0, 1.7, 1.1])), np.ones(200), 8.0)
    assert multipliers[0] == 1.0
    assert (multipliers > 0).all()
