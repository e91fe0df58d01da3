"""Test that power is learned from few measurements, and that the intervals have their stated coverage."""

import numpy as np
import pytest

from kernrec.model.search.energy_guide import LEVEL, PowerModel
from kernrec.model.search.gaussian_process import SearchSpace

pytest.importorskip("scipy")

GRID = np.stack(np.meshgrid(2.0 ** np.arange(8), 2.0 ** np.arange(6), [0, 1]), axis=-1).reshape(-1, 3)
SPACE = SearchSpace(GRID)


def recorded(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log latencies and log powers of a GPU on which faster configs draw more power."""
    draw = np.random.default_rng(seed)
    tiles, splits, flag = GRID.T
    log_s = 0.1 * np.abs(np.log2(tiles) - 4.0) + 0.05 * np.log2(splits) + 0.05 * draw.standard_normal(len(GRID))
    return log_s, 5.0 - 0.6 * log_s + 0.05 * flag + 0.01 * draw.standard_normal(len(GRID))


def test_latency_and_a_flag_explain_power():
    log_s, log_w = recorded(0)
    rows = np.random.default_rng(1).permutation(len(GRID))[:24]
    mean, half = PowerModel(SPACE.points[rows], log_s[rows], log_w[rows]).predict(SPACE.points, log_s)
    assert np.sqrt(np.mean(np.square(mean - log_w))) < 0.4 * log_w.std()
    assert (half > 0.0).all()


def test_intervals_have_the_stated_coverage_of_unmeasured_configs():
    inside = []
    for seed in range(4):
        log_s, log_w = recorded(seed)
        rows, others = np.split(np.random.default_rng(seed).permutation(len(GRID)), [20])
        mean, half = PowerModel(SPACE.points[rows], log_s[rows], log_w[rows]).predict(
            SPACE.points[others], log_s[others]
        )
        inside.append(np.mean(np.abs(mean - log_w[others]) <= half))
    assert np.mean(inside) > LEVEL - 0.08
