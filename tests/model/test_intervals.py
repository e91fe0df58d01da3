"""Intervals hold what they promise on groups never seen: here on simulated, exchangeable ones."""

import math

import numpy as np
import pytest

from kernrec.model.intervals import Extent, calibrate, groups_needed


def simulated_residuals(draw: np.random.Generator, groups: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors with a part common to each group."""
    common = draw.normal(0.0, 0.1, groups)
    return (common[:, None] + draw.normal(0.0, 0.05, (groups, rows))).ravel(), np.repeat(np.arange(groups), rows)


def test_nine_tenths_of_new_groups_rows_are_covered() -> None:
    draw = np.random.default_rng(0)
    inside = []
    for _ in range(300):
        residual, group = simulated_residuals(draw, 30, 10)
        interval = calibrate(residual, group, "problem")
        assert interval is not None
        fresh, _ = simulated_residuals(draw, 1, 10)
        low, high = interval.around(np.ones(10))
        inside.append(((np.exp(fresh) >= low) & (np.exp(fresh) <= high)).mean())
    assert 0.88 <= np.mean(inside) <= 0.95


def test_fewer_than_nine_groups_calibrate_nothing() -> None:
    assert groups_needed(0.90) == 9
    draw = np.random.default_rng(0)
    assert calibrate(*simulated_residuals(draw, 8, 50), "problem") is None
    assert calibrate(*simulated_residuals(draw, 9, 50), "problem") is not None


def test_a_large_group_counts_no_more_than_a_small_one() -> None:
    residual = np.concatenate([np.full(10_000, 0.01), np.full(20, 1.0)])
    group = np.concatenate([np.zeros(10_000, int), np.arange(1, 21)])
    interval = calibrate(residual, group, "problem")
    assert interval is not None
    assert interval.width == 1.0


def test_an_interval_widens_with_distance() -> None:
    interval = calibrate(*simulated_residuals(np.random.default_rng(0), 20, 5), "problem")
    assert interval is not None
    near, far = interval.around(np.ones(1), 0.0), interval.around(np.ones(1), 2.0)
    assert math.log(far[1][0]) == pytest.approx(3.0 * math.log(near[1][0]))
    assert far[0][0] == pytest.approx(1.0 / far[1][0])


def test_distance_is_none_inside_and_grows_outside() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    rows[:, 3] = np.nan
    extent = Extent.of(rows)
    asked = np.zeros((3, 4), dtype=np.float32)
    asked[1, 0], asked[2, 0] = 4.0, 8.0
    asked[:, 3] = 1.0
    inside, out, far = extent.distance(asked)
    assert inside == 0.0
    assert 0.0 < out < far
