"""Test that the genetic search finds the least energy, stays in the space, and measures less with better models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.search.gaussian_process import SearchSpace
from kernrec.model.search.genetic_search import FIRST, LEAST_ROUND, GeneticSearch, unsure
from tests.helpers.depth import few_examples
from tests.model.search.test_energy_guide import ENERGY, LATENCY, TUNABLES

pytest.importorskip("xgboost")


def run(weights: tuple[float, float] | None, configs: int = 70) -> tuple[GeneticSearch, list[tuple[int, int]]]:
    """Return the search and the counts of latencies and energies measured per round; some configs cannot run."""
    search, rounds = GeneticSearch(SearchSpace(TUNABLES), weights, seed=1), []
    while len(search.latency_s) < configs and (chosen := search.latency_round()):
        for config in chosen:
            search.tell_latency(config, float(LATENCY[config]) if config % 17 else None)
        energy = search.energy_round()
        for config in energy:
            search.tell_energy(config, float(ENERGY[config]))
        rounds.append((len(chosen), len(energy)))
    return search, rounds


def test_search_finds_the_lowest_energy_with_few_measurements():
    search, rounds = run((0.0, 1.0))
    best = search.best()
    assert best is not None
    assert ENERGY[best] <= 1.01 * ENERGY[np.arange(len(ENERGY)) % 17 > 0].min()
    assert rounds[0][0] == FIRST
    assert min(latencies for latencies, _ in rounds[1:]) < 2 * LEAST_ROUND
    assert sum(energies for _, energies in rounds[1:]) < 0.7 * sum(latencies for latencies, _ in rounds[1:])


def test_latency_search_needs_no_energy():
    search, _ = run((1.0, 0.0), 40)
    assert search.energy_j == {}
    assert search.best() is not None


def test_search_finds_both_ends_of_a_front():
    search, _ = run(None)
    able, measured = np.arange(len(ENERGY)) % 17 > 0, np.array(list(search.energy_j))
    assert LATENCY[measured].min() <= 1.05 * LATENCY[able].min()
    assert ENERGY[measured].min() <= 1.05 * ENERGY[able].min()


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
def test_share_to_measure_grows_with_the_model_error(measured, off):
    truth = np.array(measured)
    error = np.array(off[: len(truth)])
    small, large = unsure(measured, (truth + 0.5 * error).tolist()), unsure(measured, (truth + error).tolist())
    assert 0.0 <= small <= large <= 1.0


def test_single_measurement_gives_no_model_error():
    assert unsure([1.0], [1.0]) == 1.0
