"""Test that acknowledged rows survive any crash, and that only one campaign at a time writes to the journal."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.measure.campaign.journal import (
    Journal,
    JournalError,
    JournalInUseError,
    journal_path,
    waiting_measurements,
)


def row(**columns: object) -> dict[str, object]:
    return {"row": {"session": "s", "block": 0} | columns}


def another_run(database: Path, statements: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from kernrec.measure.campaign.journal import Journal\n"
        f"journal = Journal(Path(sys.argv[1]))\n{statements}\nsys.stdout.flush()\nos._exit(9)\n"
    )
    return subprocess.run([sys.executable, "-c", program, str(database)], capture_output=True, text=True, check=False)


def test_next_run_stores_the_rows_of_a_killed_run(tmp_path):
    database = tmp_path / "k.duckdb"
    records = [{"row": {"a": 1}}, {"row": {"a": [1.5, None, "ä\n"]}}]
    assert another_run(database, f"journal.append(*{records!r})").returncode == 9
    assert waiting_measurements(database).measurements == 2
    with Journal(database) as journal:
        assert journal.records() == records
        journal.delete(journal.batch(10)[0])
    assert list(tmp_path.iterdir()) == []


def test_journal_refuses_second_campaign_and_names_the_first(tmp_path):
    database = tmp_path / "k.duckdb"
    with Journal(database) as journal:
        journal.append(row(), {"closed": 0, "session": "s"})
        other = another_run(database, "print('open')")
        refusal = f"k.duckdb is being written by PID {os.getpid()} since 20"
        assert refusal in other.stderr
        with pytest.raises(JournalInUseError, match=refusal):
            Journal(database)
        holder = waiting_measurements(database).holder
        assert holder is not None
        assert holder.startswith(f"PID {os.getpid()} since ")
    assert waiting_measurements(database).holder is None
    assert another_run(database, "print(len(journal.records()))").stdout == "2\n"


def test_full_disk_is_reported_in_one_line_and_loses_nothing(tmp_path):
    with Journal(tmp_path / "k.duckdb") as journal:
        journal.append(row(a=1))
        ((pages,),) = journal._query("PRAGMA page_count")
        journal._query(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match="database or disk is full; earlier measurements are safe in it"):
            journal.append(row(a="x" * 10_000))
        assert journal.records() == [row(a=1)]


def test_damaged_record_becomes_an_unreadable_measurement(tmp_path):
    with Journal(tmp_path / "k.duckdb") as journal:
        journal.append(row())
    with sqlite3.connect(journal.path) as connection:
        connection.execute("UPDATE record SET content = '{'")
    with Journal(tmp_path / "k.duckdb") as journal:
        assert journal.records() == [{"row": "{"}]


def test_damaged_journal_is_refused_in_one_line(tmp_path):
    journal_path(tmp_path / "own.duckdb").write_bytes(b"no database")
    with pytest.raises(UsageError, match="cannot be used: file is not a database"):
        Journal(tmp_path / "own.duckdb")
    with pytest.raises(OSError, match="file is not a database"):
        waiting_measurements(tmp_path / "own.duckdb")


def test_journal_with_a_view_instead_of_a_table_is_refused(tmp_path):
    path = journal_path(tmp_path / "own.duckdb")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE VIEW record AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n)"
            " SELECT 1 AS measured FROM n"
        )
    with pytest.raises(UsageError, match="'record' is not a plain table"):
        Journal(tmp_path / "own.duckdb")
    with pytest.raises(OSError, match="'record' is not a plain table"):
        waiting_measurements(tmp_path / "own.duckdb")
