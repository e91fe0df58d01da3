"""Test counting the rows of databases by GPU, op and kernel."""

from pathlib import Path

from kernrec.store import Stack
from kernrec.store.coverage import coverage
from tests.helpers.recording import make_measured_database


def test_rows_are_counted_with_age_and_device(tmp_path: Path) -> None:
    path = tmp_path / "measured.duckdb"
    make_measured_database(path, problems=2, configs=3)
    rows = coverage(Stack([path]))
    assert len(rows) == 1
    (row,) = rows
    assert (row["gpu"], row["op"], row["problems"], row["answers"], row["failed"]) == ("rtx4090", "matmul", 2, 6, 0)
    assert row["last_measured_at"] == "2026-03-01T12:00:00Z"
    assert row["devices"] == ["NVIDIA GeForce RTX 4090"]
    assert row["latency_half_width"] is None  # the rows have no interval
    assert row["database"] == str(path)
