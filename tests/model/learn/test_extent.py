"""Test the distance of candidates from the training data."""

import numpy as np

from kernrec.model.learn.extent import Extent


def test_distance_is_zero_inside_and_grows_outside():
    rows = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    rows[:, 3] = np.nan
    extent = Extent.of(rows)
    candidates = np.zeros((3, 4), dtype=np.float32)
    candidates[1, 0], candidates[2, 0] = 4.0, 8.0
    candidates[:, 3] = 1.0
    inside, out, far = extent.distance(candidates)
    assert inside == 0.0
    assert 0.0 < out < far
    complete = Extent.of(rows[:, :3])
    assert complete.has([0.0, 0.0, 0.0])
    assert not complete.has([0.0, 8.0, 0.0])


def test_distance_separates_groups_of_features():
    """A shape of a new size differs from the training data only in its size features."""
    rows = np.random.default_rng(0).normal(size=(500, 40)).astype(np.float32)
    candidates = np.zeros((1, 40), dtype=np.float32)
    candidates[0, -1] = 6.0
    apart = Extent.of(rows, np.array([0] * 38 + [1] * 2))
    assert apart.distance(candidates)[0] > 2 * Extent.of(rows).distance(candidates)[0] > 0


def test_constant_feature_is_far_once_it_varies():
    rows = np.ones((50, 2), dtype=np.float32)
    assert Extent.of(rows).distance(np.array([[1.0, 1.0], [1.0, 2.0]], dtype=np.float32)).tolist()[0] == 0.0
    assert Extent.of(rows).distance(np.array([[1.0, 2.0]], dtype=np.float32))[0] > 0.2
