"""Test contradictory measurements in training, and loading measurements."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernrec.cli.app import run
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.model.analytical.power import PowerModel
from kernrec.store import Database
from kernrec.training.contradictions import TRUST, contradicting, named_rows
from kernrec.training.dataset import Dataset
from kernrec.training.load_measurements import MeasurementRequest, Measurements, load_measurements
from tests.helpers.recording import make_measured_database, store_rows

HIGHEST_HZ = PowerModel.for_gpu(find_gpu("rtx4090")).maximum_hz


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("measured") / "right.duckdb"
    make_measured_database(path, problems=1, configs=6)
    with Database.open(path) as database:
        return [measurement.columns() for measurement in database.measurements()]


def changed(rows: list[dict[str, Any]], **columns: object) -> list[dict[str, Any]]:
    """Return the rows with some columns of the first row changed."""
    return [rows[0] | columns, *rows[1:]]


def loaded(path: Path, rows: list[dict[str, Any]]) -> Measurements:
    return load_measurements(MeasurementRequest((store_rows(path, rows),)))


def counts(measurements: Measurements) -> list[float]:
    return sorted(Dataset(measurements.groups).trust.tolist())


@pytest.mark.parametrize(("clock", "reason"), [
    (1.1, "counted a tenth: 1 configs which state a clock"),
    (0.01, "take less time than their arithmetic"),  # the arithmetic alone would take longer than the recorded time
])  # fmt: skip
def test_impossible_clock_is_named_and_its_time_has_a_tenth_of_the_weight(tmp_path, rows, clock, reason):
    measured = loaded(tmp_path / "a.duckdb", changed(rows, sm_clock_mean_hz=clock * HIGHEST_HZ))
    assert counts(measured) == [TRUST, *[1.0] * 5]
    assert any(reason in note for note in measured.notes)


def test_energy_below_idle_power_is_dropped_but_its_time_is_kept(tmp_path, rows):
    watts = rows[0]["energy_j"] / rows[0]["latency_s"]
    below, above = (
        loaded(tmp_path / f"{name}.duckdb", changed(rows, idle_w=share * watts))
        for name, share in (("below", 1.5), ("above", 1.05))
    )
    assert [int(np.isfinite(Dataset(each.groups).energy_j).sum()) for each in (below, above)] == [5, 6]
    assert counts(below) == counts(above) == [1.0] * 6
    assert any("below idle power" in note for note in below.notes)


def test_energy_that_contradicts_time_and_power_is_detected():
    gpu = find_gpu("rtx4090")
    most_w = PowerModel.for_gpu(gpu).power_max_w
    latency, power = np.full(6, 1e-3), np.array([300.0, 300.0, 300.0, np.nan, np.nan, np.nan])
    energy = np.array([0.3, 0.35, 0.6, 1.1e-3 * most_w, 1.2e-3 * most_w, np.nan])
    assert contradicting(gpu, latency, energy, power).tolist() == [False, False, True, False, True, False]


@pytest.mark.every(3)
def test_verify_and_merge_name_contradictory_rows(tmp_path, rows, capsys):
    watts = rows[0]["energy_j"] / rows[0]["latency_s"]
    wrong = [rows[0] | {"sm_clock_mean_hz": 1.1 * HIGHEST_HZ}, rows[1] | {"idle_w": 2.0 * watts}, *rows[2:]]
    path = store_rows(tmp_path / "wrong.duckdb", wrong)
    with Database.open(path) as database:
        lines = list(named_rows(database))
    assert [line.partition(" (")[0] for line in lines] == ["1 measurement", "1 measurement"]
    for command in (["verify", "--db", str(path)], ["merge", str(path), "--db", str(tmp_path / "mine.duckdb")]):
        assert run(["db", *command]) == 0
        text = " ".join("".join(capsys.readouterr()).split())
        assert "state a clock above the" in text
        assert "draw less than idle power" in text


def test_unknown_op_or_gpu_is_refused_before_reading(tmp_path):
    database = (tmp_path / "missing.duckdb",)
    for request in (MeasurementRequest(database, op="matmull"), MeasurementRequest(database, gpu="rtx4091")):
        with pytest.raises(UsageError, match="unknown"):
            load_measurements(request)


def test_contradictory_energy_is_named_and_dropped_but_its_time_is_kept(tmp_path, rows):
    watts = rows[0]["energy_j"] / rows[0]["latency_s"]
    wrong = changed(rows, energy_j=2.0 * rows[0]["energy_j"], power_w=watts)
    before, after = (loaded(tmp_path / f"{name}.duckdb", each) for name, each in (("right", rows), ("wrong", wrong)))
    for column, counts in (("energy_j", [6, 5]), ("latency_s", [6, 6])):
        read = [np.concatenate([getattr(group, column) for group in each.groups]) for each in (before, after)]
        assert [int(np.isfinite(values).sum()) for values in read] == counts
    assert not before.notes
    assert any("only in their energy" in note for note in after.notes), after.notes
