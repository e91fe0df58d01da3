"""Test which configs of a large space are profiled, and when the search stops."""

import itertools

import numpy as np
import pytest

from kernrec.model.search import partial_space
from kernrec.model.search.partial_space import MARGIN, PartialSearch, criteria

TUNABLES = np.array(list(itertools.product([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16], range(1, 11), [0, 1])))


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(partial_space, "_TREES", 24)


def costs(seed: int) -> np.ndarray:
    """Return time and energy over the space. A middle tile is best. A flag costs time and saves energy."""
    rough = np.random.default_rng(seed)
    x, y, unroll, flag = np.log2(np.maximum(TUNABLES, 0.5)).T
    time_s = 1e-3 * np.exp(0.3 * (x + y - 5.0) ** 2 + 0.1 * (unroll - 2.0) ** 2 + 0.2 * flag)
    energy_j = 100.0 * time_s * np.exp(-0.3 * flag + 0.2 * x)
    return np.column_stack((time_s, energy_j)) * np.exp(0.02 * rough.standard_normal((len(x), 2)))


def searched(search: PartialSearch, cost: np.ndarray) -> np.ndarray:
    tried = np.zeros(0, np.int64)
    while len(rows := search.propose(tried, cost[tried]).rows):
        assert not np.isin(rows, tried).any()
        tried = np.concatenate((tried, rows))
    return tried


def test_partial_search_finds_the_best_within_a_margin():
    cost = costs(0)
    tried = searched(PartialSearch(TUNABLES, spreads=1.0), cost)
    assert len(tried) < 0.6 * len(TUNABLES)
    best, of_all = (criteria(np.log(some)).min(axis=0) for some in (cost[tried], cost))
    assert (best <= of_all - np.log(1.0 - MARGIN)).all()


def test_configs_similar_to_failed_ones_are_skipped():
    cost = costs(0)[:, :1]
    fails = TUNABLES[:, 0] * TUNABLES[:, 1] > 64
    cost[fails] = np.nan
    search = PartialSearch(TUNABLES, spreads=1.0)
    tried = searched(search, cost)
    assert fails[tried[search.first :]].mean() < 0.5 * fails.mean()


def test_search_ends_after_trying_all_of_an_invalid_space():
    nothing = np.full((150, 1), np.nan)
    assert sorted(searched(PartialSearch(TUNABLES[:150]), nothing)) == list(range(150))


def test_partial_search_is_deterministic():
    cost, tried = costs(2), np.arange(0, len(TUNABLES), 3)
    first, second = (PartialSearch(TUNABLES, 3).propose(tried, cost[tried]) for _ in range(2))
    assert first.rows.tolist() == second.rows.tolist()
    assert first.promising == second.promising > 0


def test_single_config_space_is_tried_whole():
    assert searched(PartialSearch(np.array([[4, 1]])), np.array([[1e-3]])).tolist() == [0]
