"""Test searches for the lowest energy: the power model, the search that uses it, and the genetic search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.search.energy_guide import FIRST_ENERGY, LEVEL, EnergyGuide, PowerModel
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.model.search.gaussian_process import SearchSpace
from kernrec.model.search.genetic_search import FIRST, LEAST_ROUND, GeneticSearch, next_share
from tests.helpers.depth import few_examples
from tests.helpers.needs import needs

pytestmark = needs("scipy", "xgboost")

A, B = np.meshgrid(np.arange(12.0), np.arange(12.0))
TUNABLES = np.column_stack((2.0 ** A.ravel(), 2.0 ** B.ravel()))
LATENCY = 1e-3 * (1.0 + 0.05 * (A.ravel() - 7.0) ** 2 + 0.03 * (B.ravel() - 3.0) ** 2)
POWER = 150.0 + 12.0 * A.ravel() + 4.0 * B.ravel()
ENERGY = LATENCY * POWER
ABLE = np.arange(len(ENERGY)) % 17 > 0
"""True for each config that can run."""


def guide(weights: tuple[float, float] | None) -> EnergyGuide:
    return EnergyGuide(ExpectedImprovement(TUNABLES, seed=1), weights, seed=1)


def genetic(weights: tuple[float, float] | None) -> GeneticSearch:
    return GeneticSearch(SearchSpace(TUNABLES), weights, seed=1)


def run(search: EnergyGuide | GeneticSearch, configs: int = 80) -> list[tuple[int, int]]:
    """Measure about `configs` configs, and return the counts of latencies and energies measured per round."""
    rounds = []
    while len(search.latency_s) < configs and (chosen := search.latency_round()):
        for config in chosen:
            search.tell_latency(config, float(LATENCY[config]) if ABLE[config] else None)
        energy = search.energy_round()
        for config in energy:
            search.tell_energy(config, float(ENERGY[config]))
        rounds.append((len(chosen), len(energy)))
    return rounds


def has_lowest_energy(search: EnergyGuide | GeneticSearch) -> bool:
    best = search.best()
    assert best is not None
    return bool(ENERGY[best] <= 1.01 * ENERGY[ABLE].min())


def test_guided_search_finds_the_lowest_energy_with_few_measurements():
    run(search := guide((0.0, 1.0)))
    assert has_lowest_energy(search)
    assert len(search.energy_j) < 0.5 * len(search.latency_s)


def test_genetic_search_finds_the_lowest_energy_with_few_measurements():
    first, *rounds = run(search := genetic((0.0, 1.0)), 70)
    assert has_lowest_energy(search)
    assert first[0] == FIRST
    assert min(latencies for latencies, _ in rounds) < 2 * LEAST_ROUND
    assert sum(energies for _, energies in rounds) < 0.7 * sum(latencies for latencies, _ in rounds)


@pytest.mark.parametrize(("search", "configs", "within"), [(guide, 80, 1.03), (genetic, 70, 1.05)])
def test_pareto_search_finds_both_ends_of_the_front(search, configs, within):
    run(made := search(None), configs)
    measured = np.array(list(made.energy_j))
    assert LATENCY[measured].min() <= within * LATENCY[ABLE].min()
    assert ENERGY[measured].min() <= within * ENERGY[ABLE].min()


def test_fastest_configs_get_energy_measurements_first_and_only_once():
    guide = EnergyGuide(ExpectedImprovement(TUNABLES, seed=0), (0.0, 1.0))
    configs = guide.latency_round()
    for config in configs:
        guide.tell_latency(config, float(LATENCY[config]))
    first = guide.energy_round()
    assert first == sorted(configs, key=lambda config: LATENCY[config])[:FIRST_ENERGY]
    assert not set(first) & set(guide.energy_round())  # a failed energy measurement is not repeated


def test_latency_search_needs_no_energy():
    run(search := genetic((1.0, 0.0)), 40)
    assert search.energy_j == {}
    assert search.best() is not None


def test_whole_space_is_measured_without_repetition():
    search = GeneticSearch(SearchSpace(TUNABLES[:30]), (0.0, 1.0))
    seen: list[int] = []
    while chosen := search.latency_round():
        seen += chosen
        for config in chosen:
            search.tell_latency(config, float(LATENCY[config]))
        for config in search.energy_round():
            search.tell_energy(config, float(ENERGY[config]))
    assert sorted(seen) == list(range(30))


@few_examples(30)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9), st.lists(st.floats(-3, 3), min_size=9, max_size=9))
def test_fraction_to_measure_grows_with_the_model_error(measured, off):
    truth = np.array(measured)
    error = np.array(off[: len(truth)])
    small, large = next_share(measured, (truth + 0.5 * error).tolist()), next_share(measured, (truth + error).tolist())
    assert 0.0 <= small <= large <= 1.0


def test_single_measurement_gives_no_model_error():
    assert next_share([1.0], [1.0]) == 1.0


GRID = np.stack(np.meshgrid(2.0 ** np.arange(8), 2.0 ** np.arange(6), [0, 1]), axis=-1).reshape(-1, 3)
SPACE = SearchSpace(GRID)


def recorded(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log latencies and log powers of a GPU on which faster configs draw more power."""
    draw = np.random.default_rng(seed)
    tiles, splits, flag = GRID.T
    log_s = 0.1 * np.abs(np.log2(tiles) - 4.0) + 0.05 * np.log2(splits) + 0.05 * draw.standard_normal(len(GRID))
    return log_s, 5.0 - 0.6 * log_s + 0.05 * flag + 0.01 * draw.standard_normal(len(GRID))


def test_power_model_predicts_from_latency_and_tunables():
    log_s, log_w = recorded(0)
    rows = np.random.default_rng(1).permutation(len(GRID))[:24]
    mean, half = PowerModel(SPACE.points[rows], log_s[rows], log_w[rows]).predict(SPACE.points, log_s)
    assert np.sqrt(np.mean(np.square(mean - log_w))) < 0.4 * log_w.std()
    assert (half > 0.0).all()


def test_power_intervals_cover_unmeasured_configs():
    inside = []
    for seed in range(4):
        log_s, log_w = recorded(seed)
        rows, others = np.split(np.random.default_rng(seed).permutation(len(GRID)), [20])
        mean, half = PowerModel(SPACE.points[rows], log_s[rows], log_w[rows]).predict(
            SPACE.points[others], log_s[others]
        )
        inside.append(np.mean(np.abs(mean - log_w[others]) <= half))
    assert np.mean(inside) > LEVEL - 0.08
