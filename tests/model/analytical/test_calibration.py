"""Test that a change of the analytical model changes the fingerprint stored in trained models."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from kernrec.model.analytical import calibration as fingerprint
from kernrec.model.analytical import demand
from kernrec.model.analytical.calibration import SAME_MODEL, analytical_fingerprint, fingerprint_change


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))


def test_fingerprint_change_is_the_largest_relative_change_of_a_value():
    now = analytical_fingerprint()
    assert fingerprint_change(now) == 0.0
    assert fingerprint_change([now[0] / 1.2, *now[1:]]) == pytest.approx(0.2)
    assert fingerprint_change([now[0] * (1 + SAME_MODEL / 2), *now[1:]]) < SAME_MODEL
    for strange in ([], now[1:], [*now[1:], -1.0], [*now[1:], "x"]):
        assert fingerprint_change(strange) == float("inf")  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes", ["_SPECIAL_LANES", "_CONVERT_LONG_LANES"])
def test_changed_conversion_cost_changes_the_fingerprint(monkeypatch, lanes):
    before = analytical_fingerprint()
    monkeypatch.setattr(demand, lanes, getattr(demand, lanes) / 2)
    assert analytical_fingerprint() != before


def test_fingerprint_is_computed_once_per_source(monkeypatch):
    now = analytical_fingerprint()
    monkeypatch.setattr(fingerprint, "analytical_fingerprint", counted := Mock(return_value=now))
    assert fingerprint_change(now) == fingerprint_change(now) == 0.0
    assert counted.call_count == 1
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"\n" * (self.name == "power.toml"))
    assert fingerprint_change(now) == 0.0
    assert counted.call_count == 2
