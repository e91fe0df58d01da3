"""Calibration recovers the coefficients of a simulated device, and keeps what rows cannot tell."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from groups import simulated_groups

from kernrec.errors import KernrecError
from kernrec.model.calibrate import FEWEST_ROWS, fit, save
from kernrec.model.dataset import Group
from kernrec.model.power import combine

KNOWN = {"core_time": 1.6, "dram_time": 1.1, "static_power": 0.7, "core_energy": 1.3, "dram_energy": 2.0}


def device(group: Group) -> Group:
    """The group as a simulated device of known coefficients would have measured it, to 1 %."""
    facts, draw = group.facts, np.random.default_rng(1)
    latency = combine(KNOWN["core_time"] * facts.core_s, KNOWN["dram_time"] * facts.dram_s) + facts.fixed_s
    latency *= np.exp(draw.normal(0, 0.01, len(latency)))
    energy = (
        KNOWN["static_power"] * facts.static_j / facts.latency_s * latency
        + KNOWN["core_energy"] * facts.core_j
        + KNOWN["dram_energy"] * facts.dram_j
    )
    return replace(group, latency_s=latency, energy_j=energy * np.exp(draw.normal(0, 0.01, len(energy))))


def test_known_coefficients_are_recovered(tmp_path: Path) -> None:
    (found,) = fit([device(group) for group in simulated_groups(10)])
    for name, value in KNOWN.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.05), name
    assert found.arch == "sm_89"
    assert found.time_error < 0.02
    written = json.loads(save([found], tmp_path / "models").read_text())
    assert written["architectures"][0]["problems"] == 10


def test_without_energy_only_time_is_fitted() -> None:
    groups = [replace(device(g), energy_j=np.full(len(g), np.nan)) for g in simulated_groups(3)]
    (found,) = fit(groups)
    assert found.core_time == pytest.approx(KNOWN["core_time"], rel=0.05)
    assert (found.static_power, found.core_energy, found.dram_energy) == (1.0, 1.0, 1.0)
    assert found.energy_error is None


def test_too_few_rows_say_how_many_are_missing() -> None:
    with pytest.raises(KernrecError, match=f"{FEWEST_ROWS - 12} are missing"):
        fit(simulated_groups(1, rows=12))
