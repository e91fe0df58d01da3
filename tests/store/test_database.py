"""Test adding rows to a database, queries, and merging."""

import shutil
from datetime import UTC, datetime, timedelta, timezone
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.connection import exchange_folder
from kernrec.store.exchange import add_rows
from kernrec.store.intake.read_file import FileReader
from kernrec.store.reader import Limits
from kernrec.store.share.withdraw import retraction_rows
from tests.helpers.depth import few_examples
from tests.helpers.sharing import USUAL, add, measurement, merge

GPU, KERNEL = "h200-sxm", "matmul_simt"

FULL = {
    "cubin_hash": "ab", "compiler": "nvrtc 13.5", "registers": np.int32(64), "input_seed": 2**40,
    "device": "NVIDIA H200", "power_limit_w": 700, "ecc": np.bool_(True), "mig": False,
    "latency_samples_s": np.array([1e-3, 1.1e-3]), "energy_j": np.float32(0.25), "power_w": 250.0,
    "event_reasons": {"SwPowerCap": 0.5}, "temperature_start_c": -0.0,
    "measured_at": datetime(2026, 3, 1, 13, 0, 0, 1234, tzinfo=timezone(timedelta(hours=1))),
}  # fmt: skip


def test_added_row_is_found(database, row, problem):
    (key,) = add(database, row(**FULL))
    (first_row,) = database.rows("measurement", measurement_id=key)
    assert first_row["registers"] == 64
    assert first_row["latency_samples_s"] == [1e-3, 1.1e-3]
    assert first_row["event_reasons"] == '{"SwPowerCap":0.5}'
    assert first_row["measured_at"] == datetime(2026, 3, 1, 12, 0, 0, 1234)
    assert first_row["numeric_error"] is None
    (config,) = database.rows("config", config_id=first_row["config_id"])
    assert config["tunables"] == '{"block_m":64,"split_k":1}'
    (stored,) = database.rows("problem", problem_id=first_row["problem_id"])
    assert stored["key"] == problem.key


def test_row_is_added_once_in_any_spelling_of_its_values(database, row):
    keys = add(database, row(**FULL), row(**FULL))
    again = FULL | {
        "registers": 64,
        "power_limit_w": 700.0,
        "latency_samples_s": [1e-3, 1.1e-3],
        "temperature_start_c": 0.0,
        "event_reasons": '{"SwPowerCap":0.5}',
        "measured_at": datetime(2026, 3, 1, 12, 0, 0, 1234, tzinfo=UTC),
        "numeric_error": None,
    }
    keys += add(database, row(config={"split_k": 1, "block_m": 64}, **again))
    assert len(set(keys)) == 1
    counts = database.counts()
    assert {table: count for table, count in counts.items() if count} == {"config": 1, "problem": 1, "measurement": 1}


def test_every_stored_row_hashes_to_its_key(database, row, profile):
    add(database, row(**FULL), row(), row(outcome="crash", latency_s=None, error="illegal access"))
    database.add("gpu", [{"name": GPU, "sm": 90, "figures": {"sms": 132}}])
    database.add("kernel", [{"name": KERNEL, "kernel_hash": "a", "op": "matmul", "spec": "{}", "source": "//"}])
    database.add_profiles([profile()])
    assert database.altered() == []
    database._connection.execute("UPDATE db.measurement SET latency_s = 1e-6 WHERE outcome = 'ok'")
    assert len(database.altered()) == 2


def test_invalid_row_is_refused_in_one_line_and_nothing_is_added(database, row, refuses):
    refuses(lambda arguments: add(database, row(session="good"), row(**arguments)), [
        {"latency_ms": 1.0}, {"measurement_id": "x"}, {"latency_s": "fast"}, {"latency_s": float("nan")},
        {"registers": 2.5}, {"registers": True}, {"registers": 2**40}, {"ecc": 1}, {"session": 7},
        {"measured_at": "yesterday"}, {"latency_s": 0.0}, {"latency_s": -1.0}, {"latency_s": None}, {"energy_j": 0.0},
        {"selection_probability": 1.5}, {"outcome": "fine"}, {"gpu": None}, {"config": 3}, {"problem": "matmul"},
    ])  # fmt: skip
    assert set(database.counts().values()) == {0}


def test_measured_cost_is_the_median_of_sessions_with_the_newest_protocol(database, row, problem):
    add(
        database,
        row(protocol_version=0, latency_s=1e-6, energy_j=1e-6, power_w=1.0, session="old"),
        row(latency_s=3e-3, energy_j=3.0, power_w=1000.0, session="a"),
        row(latency_s=5e-3, energy_j=5.0, power_w=1000.0, session="b"),
        row(latency_s=9e-3, session="c", measured_at="2026-04-01"),
        row(latency_s=None, outcome="timeout", session="d"),
    )
    (answer,) = database.measured(GPU, [KERNEL], problem.key)
    assert answer.config == {"block_m": 64, "split_k": 1}
    assert (answer.latency_s, answer.energy_j, answer.power_w) == (5e-3, 4.0, 1000.0)
    assert (answer.sessions, answer.protocol_version) == (3, 1)
    assert answer.measured_at == datetime(2026, 4, 1)


def test_incorrect_kernel_is_stored_but_never_recommended(database, row, problem):
    add(database, row(outcome="incorrect", numeric_error=0.5, tolerance=1e-5))
    assert database.counts()["measurement"] == 1
    assert database.measured(GPU, [KERNEL], problem.key) == []


points = st.lists(
    st.tuples(st.integers(1, 6), st.none() | st.integers(1, 6), st.sampled_from([None, 300.0])), min_size=1, max_size=14
)


@pytest.mark.every(2)
@pytest.mark.slow
@few_examples(10)
@given(points)
def test_front_and_best_match_a_direct_computation(points):
    with Database.memory() as database:
        add(
            database,
            *(
                USUAL | {"config": {"i": i}, "latency_s": float(latency), "energy_j": energy, "power_limit_w": limit}
                for i, (latency, energy, limit) in enumerate(points)
            ),
        )
        front, best = database.rows("front"), database.rows("best")
    for limit_w in (None, 300.0):
        here = [(latency, energy) for latency, energy, limit in points if limit == limit_w]
        both = [point for point in here if point[1] is not None]
        expected = [
            (latency, energy)
            for latency, energy in both
            if not any(o != (latency, energy) and o[0] <= latency and o[1] <= energy for o in both)
        ]
        got = [(row["latency_s"], row["energy_j"]) for row in front if row["power_limit_w"] == limit_w]
        assert sorted(got) == sorted(expected)
        scores = {row["objective"]: row["score"] for row in best if row["power_limit_w"] == limit_w}
        wanted = {"latency": min(latency for latency, _ in here)} if here else {}
        if both:
            wanted |= {"energy": min(e for _, e in both), "edp": min(latency * e for latency, e in both)}
        assert scores == wanted


@cache
def measured():
    rows = [measurement(session=f"session {n}", config={"n": n % 3}) for n in range(10)]
    with Database.memory() as database:
        return rows, database.add_measurements(rows)


def files(tmp_path_factory, contents):
    """Create a database per list of row numbers. Each database withdraws its last row and a row that it lacks."""
    folder = tmp_path_factory.mktemp("merge")
    rows_of, keys = measured()
    for i, rows in enumerate(contents):
        with Database.open(folder / f"{i}.duckdb", read_only=False, create=True) as database:
            database.add("gpu", [{"name": f"gpu{n}", "sm": 90, "figures": {}} for n in rows])
            database.add_measurements(rows_of[n] for n in rows)
            taken_back = [keys[n] for n in {max(rows), max(rows) + 1}] if rows else []
            retractions = retraction_rows(taken_back, "")
            database.add("retraction", [{**row, "retracted_at": "2026-03-01T12:00:00"} for row in retractions])
    return [folder / f"{i}.duckdb" for i in range(len(contents))]


MERGED = ("gpu", "config", "measurement")


@pytest.mark.every(2)
@pytest.mark.slow
@few_examples(2)
@given(
    contents=st.lists(st.sets(st.integers(0, 8), max_size=5), min_size=3, max_size=3),
    order=st.lists(st.integers(0, 2), min_size=3, max_size=5),
)
def test_merge_is_a_set_union(tmp_path_factory, contents, order):
    """The result is the union for any order, repetition and grouping of the merges."""
    folders, keys = [], []
    for path in files(tmp_path_factory, contents):
        folders.append(path.with_suffix(".rows"))
        folders[-1].mkdir()
        FileReader(path, folders[-1], Limits.of(path.stat().st_size)).read_database()
        with Database.open(path) as database:
            keys.append({table: {row[f"{table}_id"] for row in database.rows(table)} for table in MERGED})
    with Database.memory() as database:
        for i in order:
            with exchange_folder(database._connection) as exchange:
                shutil.copytree(folders[i], exchange, dirs_exist_ok=True)
                add_rows(database._connection, exchange, "memory")
        assert database.altered() == []
        assert database.rows("retraction") == []
        merged = {table: {row[f"{table}_id"] for row in database.rows(table)} for table in MERGED}
    assert merged == {table: set().union(*(keys[i][table] for i in order)) for table in MERGED}


@pytest.mark.usefixtures("read_here")
def test_merge_of_an_invalid_database_adds_nothing(database, tmp_path, row):
    add(database, row())
    before = database.content_hash()
    (tmp_path / "other").write_text("hello")
    for path in (tmp_path, tmp_path / "none", tmp_path / "other"):
        with pytest.raises(UsageError):
            merge(database, path)
    assert database.content_hash() == before


def test_database_cannot_be_merged_with_itself(tmp_path, row, refuses):
    path = tmp_path / "a.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        add(database, row())
        refuses(lambda: merge(database, path))
        assert database.counts()["measurement"] == 1
