"""Test that rows of several GPUs of one model, one of them slow, train one model without bias to any GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from kernrec.store import Database
from kernrec.store.measurement import Measurement
from kernrec.training.dataset import Dataset
from kernrec.training.load_measurements import MeasurementRequest, load_measurements
from kernrec.training.train_model import train
from tests.helpers.recording import make_measured_database
from tests.helpers.sharing import merge_signed

SLOWER = 1.2
PROBLEMS, CONFIGS, SHARED = 12, 12, 4
LARGE = 1024
"""Number of rows beyond which matmuls take longer than the analytical model predicts."""
Rows = Sequence[Measurement]


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "all.duckdb"
    make_measured_database(path, PROBLEMS, CONFIGS, factor=1.3)
    with Database.open(path) as database:
        rows = sorted(database.measurements(), key=lambda row: (rows_of(row), str(row.config)))
    return [taking(row, 1.25 if rows_of(row) > LARGE else 1.0) for row in rows]


def rows_of(row: Measurement) -> int:
    return int(row.problem.dims["m"])


def taking(row: Measurement, factor: float, **columns: object) -> Measurement:
    """Return the row of a GPU that takes `factor` times as long, without energy."""
    before = row.columns()
    return Measurement.from_columns(before | {"latency_s": before["latency_s"] * factor, "energy_j": None} | columns)


def of_card(rows: Rows, person: str, factor: float = 1.0) -> list[Measurement]:
    return [taking(row, factor, session=person, device_uuid_hash=(person * 16)[:16]) for row in rows]


def loaded(path: Path, people: Mapping[str, Rows], own: Rows = ()) -> Dataset:
    """Return the training data from signed rows of people and from the user's own rows."""
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(own)
        merge_signed(database, people)
    return Dataset(load_measurements(MeasurementRequest((path,))).groups)


def levels(data: Dataset, truth: Dataset) -> dict[str, float]:
    usual = {group.problem: group for group in truth.groups}
    return {
        group.problem: float(np.median(group.latency_s) / np.median(usual[group.problem].latency_s))
        for group in data.groups
        if len(group) == len(usual[group.problem])
    }


@pytest.mark.every(3)
def test_rows_are_scaled_to_the_users_gpu_or_else_to_the_mean_gpu(truth, tmp_path):
    usual = loaded(tmp_path / "usual.duckdb", {}, truth)
    ann = of_card(truth[: 6 * CONFIGS], "ann")
    ben = of_card([*truth[:SHARED], *truth[6 * CONFIGS :]], "ben", SLOWER)
    both = levels(loaded(tmp_path / "both.duckdb", {"ann": ann, "ben": ben}), usual)
    assert list(both.values()) == pytest.approx([SLOWER**0.5] * PROBLEMS, rel=1e-6)
    own = levels(loaded(tmp_path / "own.duckdb", {"ben": ben}, ann), usual)
    assert list(own.values()) == pytest.approx([1.0] * PROBLEMS, rel=1e-6)
    slow = levels(loaded(tmp_path / "slow.duckdb", {"ann": ann}, ben), usual)
    assert list(slow.values()) == pytest.approx([SLOWER] * PROBLEMS, rel=1e-6)


@pytest.mark.every(3)
def test_slow_gpu_of_three_is_scaled_to_the_others(truth, tmp_path):
    usual = loaded(tmp_path / "usual.duckdb", {}, truth)
    people = {
        "ann": of_card(truth[: 4 * CONFIGS], "ann"),
        "ben": of_card([*truth[:SHARED], *truth[4 * CONFIGS : 8 * CONFIGS]], "ben", SLOWER),
        "cyd": of_card([*truth[:SHARED], *truth[8 * CONFIGS :]], "cyd"),
    }
    three = levels(loaded(tmp_path / "three.duckdb", people), usual)
    assert list(three.values()) == pytest.approx([1.0] * PROBLEMS, rel=1e-6)


@pytest.mark.every(3)
def test_rows_of_a_slow_gpu_add_information_without_bias(truth, tmp_path):
    """Ann measured only small matmuls. Predictions for large, unmeasured matmuls must follow Ben's rows."""
    large = [row for row in truth if rows_of(row) > LARGE]
    ann = of_card(truth[: len(truth) - len(large)], "ann")
    ben = of_card([*truth[:SHARED], *large[: -3 * CONFIGS]], "ben", SLOWER)
    new = loaded(tmp_path / "new.duckdb", {}, large[-3 * CONFIGS :])

    def factors(data: Dataset) -> np.ndarray:
        model = train(data)
        ratio, _ = model.log_ratio(new.groups[0].inputs)
        return np.exp(ratio["latency"]) * new.groups[0].inputs.latency_s / new.groups[0].latency_s

    alone = factors(loaded(tmp_path / "alone.duckdb", {}, ann))
    both = factors(loaded(tmp_path / "with.duckdb", {"ben": ben}, ann))
    assert np.median(np.abs(alone - 1.0)) > 0.1
    assert np.median(np.abs(both - 1.0)) < 0.05
