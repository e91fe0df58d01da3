"""Test that journal and database keep measurements, that old columns are read, and how rows are identified."""

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.op import find_op
from kernrec.store import Database, canonical_json, content_hash
from kernrec.store.measurement import DeviceReport, Measurement, Outcome, ProblemRecord, Tier
from kernrec.store.schema import migrations
from tests.helpers.depth import few_examples

PROBLEM = find_op("matmul").problem(m=64, n=32, k=16)
positive = st.floats(1e-6, 1e3)
maybe = st.none() | positive
counts = st.none() | st.integers(1, 1000)
flags = st.none() | st.booleans()
texts = st.none() | st.text('ab "\\é', max_size=8)
times = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1))

REPORT = {
    "latency_s": positive, "latency_samples_s": st.none() | st.lists(positive, max_size=4).map(tuple),
    "latency_n": counts, "latency_mad_s": maybe, "latency_q10_s": maybe, "latency_converged": flags, "l2_policy": texts,
    "energy_j": maybe, "power_w": maybe, "energy_method": texts, "energy_ticks": counts,
    "event_reasons": st.none() | st.dictionaries(st.sampled_from("abc"), positive),
    "numeric_error": maybe, "tolerance": maybe, "checked_against": texts, "launches": counts, "input_footprint": maybe,
}  # fmt: skip
measurements = st.builds(
    Measurement,
    gpu=st.sampled_from(["h200-sxm", "rtx4090"]), kernel=st.just("k"), kernel_hash=st.just("0123"),
    config=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 64), min_size=1),
    problem=st.just(ProblemRecord.of(PROBLEM)),
    protocol_version=st.integers(0, 3), tier=st.sampled_from(Tier),
    selection_probability=st.none() | st.floats(0.01, 1.0),
    session=st.just("s"), measured_at=times, measured_by=texts, block=counts, position=counts,
    reference_latency=maybe, block_open=st.sampled_from([None, True]), replayed=st.sampled_from([None, True]),
    outcome=st.sampled_from(Outcome), error=texts, compiler=texts, registers=counts, input_generator=texts,
    input_seed=counts, device=texts, power_limit_w=maybe, mig=flags, idle_w=maybe, **REPORT,
)  # fmt: skip


@given(measurements)
def test_measurement_survives_conversion_to_json_and_columns(measurement):
    assert Measurement.from_columns(json.loads(json.dumps(measurement.as_json()))) == measurement
    assert Measurement.from_columns(measurement.columns()) == measurement


@given(st.builds(DeviceReport, **REPORT))
def test_device_report_survives_conversion_to_json(report):
    assert DeviceReport.from_json(json.loads(json.dumps(report.as_json()))) == report


@few_examples(15)
@given(st.lists(measurements, min_size=1, max_size=4))
def test_measurements_are_read_back_unchanged_from_the_database(chosen):
    with Database.memory() as database:
        keys = database.add_measurements(chosen)
        again = database.measurements()
        assert len(again) == len(set(keys))
        assert all(measurement in again for measurement in chosen)
        assert database.add_measurements(again) == [row["measurement_id"] for row in database.rows("measurement")]
        assert database.counts()["measurement"] == len(set(keys))
        assert database.altered() == []


def test_measurement_fields_equal_the_table_columns(row):
    with Database.memory() as database:
        database.add_measurements([Measurement.from_columns(row())])
        columns = set(database.rows("measurement")[0]) - {"measurement_id", "config_id", "problem_id"}
    assert set(Measurement.from_columns(row()).columns()) == columns | {"config", "problem"}


# Earlier schemas marked interrupted series of measurements by error text, and simulated rows by device name.

OPEN = {"error": "the run ended before the reference kernels were looked at again"}
REPLAY = {"measured_by": "kernrec 0.1.0 replay", "device": "replay of H200", "protocol_version": 0}


VARIETY = [
    {},
    {"session": "open", **OPEN},
    {"session": "open crash", "outcome": "crash", "latency_s": None, "error": "illegal access"},
    {"session": "slow", "latency_s": 2e-3, "latency_low_s": 1e-3, "latency_high_s": 3e-3, "energy_j": 0.5},
    {"session": "replay", "config": {"x": 1}, **REPLAY},
    {"session": "replay", "config": {"block_m": 64, "split_k": 1}, **REPLAY},
    {"session": "slice", "config": {"x": 2}, "mig": True},
    {"session": "limited", "config": {"x": 3}, "power_limit_w": 300.0, "energy_j": 0.1, "power_w": 100.0},
]

_NOW = REPLAY | {"measured_by": "kernrec 0.1.0", "replayed": True}
TODAY = [
    {},
    {"session": "open", "block_open": True},
    *VARIETY[2:4],
    {"session": "replay", "config": {"x": 1}, **_NOW},
    {"session": "replay", "config": {"block_m": 64, "split_k": 1}, **_NOW},
    *VARIETY[6:],
]
"""Rows equal to the old schema's rows, in today's columns."""


@pytest.fixture
def old_database(tmp_path, monkeypatch, row):
    """Create a database of schema 3 with rows as its version wrote them. Also return the rows of its views."""
    path = tmp_path / "old.duckdb"
    with monkeypatch.context() as patch:
        patch.setattr("kernrec.store.schema.migrations", lambda: migrations()[:3])
        with Database.open(path, read_only=False, create=True) as database:
            rows = [row(**arguments) for arguments in VARIETY]
            configs = database.add("config", [{"kernel": r["kernel"], "tunables": r.pop("config")} for r in rows])
            problems = database.add("problem", [r.pop("problem").as_dict() for r in rows])
            ids = [
                {"config_id": config, "problem_id": problem} for config, problem in zip(configs, problems, strict=True)
            ]
            database.add("measurement", [r | more for r, more in zip(rows, ids, strict=True)])
            views = {view: rows_of(database, view) for view in ("answer", "best", "front")}
    return path, views


def without_writer(row: dict[str, object]) -> dict[str, object]:
    """Return a row of a view without the columns that schema 3's views lacked."""
    later = ("measured_by", "merged", "contributors", "spread_low_s", "spread_high_s", "rescaled")
    return {name: value for name, value in row.items() if name not in later}


def rows_of(database: Database, view: str) -> list[dict[str, object]]:
    cursor = database._connection.execute(f"FROM db.{view} ORDER BY ALL")  # read the rows as stored in the file
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.mark.every(2)
@pytest.mark.usefixtures("read_here")
def test_migrated_schema_3_database_gives_the_same_answers(old_database):
    path, views = old_database
    with Database.open(path) as database:
        assert {view: [without_writer(r) for r in rows_of(database, view)] for view in views} == views
        assert {view: [without_writer(r) for r in database.rows(view)] for view in views} == views
        assert views["answer"]


@pytest.mark.usefixtures("read_here")
def test_migrated_schema_3_rows_fill_the_new_columns(old_database, row):
    path, _ = old_database
    with Database.open(path) as database:
        assert database.altered() == []
        by_session = {r["session"]: r for r in database.rows("measurement")}
        assert len(database.rows("measurement")) == len(VARIETY)
        assert {r["session"] for r in database.rows("measurement", block_open=True)} == {"open"}
        assert {r["session"] for r in database.rows("measurement", replayed=True)} == {"replay"}
        migrated = database.measurements()
    assert by_session["open"]["error"] is None
    assert by_session["open crash"]["error"] == "illegal access"
    assert by_session["replay"]["measured_by"] == "kernrec 0.1.0"
    expected = [Measurement.from_columns(row(**arguments)) for arguments in TODAY]
    assert all(measurement in expected for measurement in migrated)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values))
def test_canonical_json_ignores_the_order_of_keys(mapping):
    assert canonical_json(dict(reversed(mapping.items()))) == canonical_json(mapping)


def test_hashes_are_stable_between_versions():
    assert content_hash({"block_m": 64, "split_k": 1}) == "2cbc6e17f022c221"
    assert len(content_hash([1, 2.5, None, "é"], digits=32)) == 32


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_hashing_refuses_nan_and_infinity(value):
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(value)
