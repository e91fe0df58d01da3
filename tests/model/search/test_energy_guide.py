"""Test that the search finds the config of least energy while measuring the energy of few configs."""

import numpy as np
import pytest

from kernrec.model.search.energy_guide import FIRST_ENERGY, EnergyGuide
from kernrec.model.search.expected_improvement import ExpectedImprovement

pytest.importorskip("scipy")

A, B = np.meshgrid(np.arange(12.0), np.arange(12.0))
TUNABLES = np.column_stack((2.0 ** A.ravel(), 2.0 ** B.ravel()))
LATENCY = 1e-3 * (1.0 + 0.05 * (A.ravel() - 7.0) ** 2 + 0.03 * (B.ravel() - 3.0) ** 2)
POWER = 150.0 + 12.0 * A.ravel() + 4.0 * B.ravel()
ENERGY = LATENCY * POWER


def run(weights: tuple[float, float] | None, configs: int = 80) -> EnergyGuide:
    guide = EnergyGuide(ExpectedImprovement(TUNABLES, seed=1), weights, seed=1)
    while len(guide.latency_s) < configs and (batch := guide.latency_round()):
        for config in batch:
            guide.tell_latency(config, float(LATENCY[config]) if config % 17 else None)  # some configs cannot run
        for config in guide.energy_round():
            guide.tell_energy(config, float(ENERGY[config]))
    return guide


def test_guide_finds_the_lowest_energy_with_few_measurements():
    guide = run((0.0, 1.0))
    best = guide.best()
    assert best is not None
    assert ENERGY[best] <= 1.01 * ENERGY[np.arange(len(ENERGY)) % 17 > 0].min()
    assert len(guide.energy_j) < 0.5 * len(guide.latency_s)


def test_guide_finds_both_ends_of_a_front():
    guide = run(None)
    able = np.arange(len(ENERGY)) % 17 > 0
    measured = np.array(list(guide.energy_j))
    assert LATENCY[measured].min() <= 1.03 * LATENCY[able].min()
    assert ENERGY[measured].min() <= 1.03 * ENERGY[able].min()


def test_fastest_configs_get_energy_measurements_first_and_only_once():
    guide = EnergyGuide(ExpectedImprovement(TUNABLES, seed=0), (0.0, 1.0))
    configs = guide.latency_round()
    for config in configs:
        guide.tell_latency(config, float(LATENCY[config]))
    first = guide.energy_round()
    assert first == sorted(configs, key=lambda config: LATENCY[config])[:FIRST_ENERGY]
    assert not set(first) & set(guide.energy_round())  # a failed energy measurement is not repeated
