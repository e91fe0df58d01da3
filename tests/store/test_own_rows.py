"""Test that an impossible row in the user's own database never makes other rows unusable."""

import os
import shutil
from datetime import UTC, datetime

import pytest

from kernrec.errors import UsageError
from kernrec.measure.campaign.ingest import check_takes_rows
from kernrec.store import Database, Stack
from kernrec.store.database import LONGEST_SOURCE
from tests.helpers.command import run_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, measurement, measurements, store_measurements

pytestmark = pytest.mark.usefixtures("read_here")
KERNEL_ROW = {"name": "k", "kernel_hash": "0123456789abcdef", "op": "matmul", "spec": "{}"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Create an unchecked user database of three rows, including a row dated 2050 and a kernel above 1 MiB."""
    path = tmp_path / "own.duckdb"
    monkeypatch.setenv("KERNREC_DB", str(path))
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(measurements("monday", 3))
        database.add_measurements([measurement(session="later", measured_at="2050-01-01T00:00:00", latency_s=1e-4)])
        database.add("kernel", [KERNEL_ROW | {"source": "x" * (LONGEST_SOURCE + 1)}])
    os.replace(shutil.copyfile(path, tmp_path / "copy"), path)
    return path


def test_impossible_rows_are_skipped_and_counted(own):
    with Database.open(own) as database:
        assert database.counts()["measurement"] == 3
        assert database.kernels() == []
        assert {*database.faults} == {"kernel", "measurement"}
        assert database.left_out == 2
    stack = Stack()
    (note,) = stack.notes
    assert note == f"{own}: 2 impossible rows skipped (`kernrec db verify` lists them, --remove deletes them)"
    (fastest, *_) = stack.evidence(GPU, "matmul", [KERNEL], PROBLEM.key).measured
    assert fastest.latency_s == 1e-3


def test_skipped_rows_stay_skipped_after_new_rows(own):
    Database.open(own).close()
    with Database.open(own, read_only=False) as database:
        database.add_measurements(measurements("tuesday", 1))
    with Database.open(own) as database:
        assert database.counts()["measurement"] == 4


@pytest.mark.every(2)
def test_verify_lists_and_removes_impossible_rows(own):
    done = run_here("db", "verify")
    assert done.returncode == 1
    assert "measurement rows that were measured at an impossible time: 1 (" in done.stdout
    assert "kernel rows that have a source of more than 1048576 characters: 1 (" in done.stdout
    assert "2 of 10 rows" in done.stderr
    assert "--remove deletes them" in done.stderr
    assert "2 rows of" in run_here("db", "verify", "--remove").stdout
    assert "none was changed since it was written" in run_here("db", "verify").stdout
    with Database.open(own) as database:
        assert database.faults == {}


def test_clock_that_jumps_back_loses_no_row(own, monkeypatch):
    """An earlier version refused all rows because their dates were in the future."""
    _set_clock(monkeypatch, 2024)
    with Database.open(own) as database:
        assert database.counts()["measurement"] == 3


@pytest.mark.parametrize("year", [1970, 2024, 2050])
def test_collect_refuses_an_impossible_clock(own, year, monkeypatch):
    _set_clock(monkeypatch, year)
    with pytest.raises(UsageError, match=f"the clock of this machine shows {year}-06-01 00:00, which is impossible"):
        check_takes_rows(own)


def test_collect_refuses_a_clock_behind_the_newest_row(tmp_path, monkeypatch):
    path = store_measurements(tmp_path / "own.duckdb", [measurement(measured_at="2031-06-03T00:00:00")])
    _set_clock(monkeypatch, 2031)
    with pytest.raises(UsageError, match=r"shows 2031-06-01 00:00, but .* has a measurement of 2031-06-03 00:00"):
        check_takes_rows(path)
    _set_clock(monkeypatch, 2032)
    check_takes_rows(path)


def _set_clock(monkeypatch: pytest.MonkeyPatch, year: int) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime(year, 6, 1, tzinfo=UTC)

    for module in ("measure.campaign.ingest", "store.intake.read_file", "store.intake.row_checks"):
        monkeypatch.setattr(f"kernrec.{module}.datetime", Clock)
