"""Rows of ended blocks enter the database while a campaign runs; nothing is lost or added twice, whatever is killed."""

import json
import time
from pathlib import Path

import pytest

from kernrec.measure.campaign import early_ingest
from kernrec.measure.campaign.early_ingest import EarlyIngest
from kernrec.measure.campaign.ingest import ingest, ingest_ended
from kernrec.measure.campaign.journal import Journal, JournalInUse, journal_path
from kernrec.store import Database
from tests.measure.campaign.test_ingest import row


def positions(database: Path) -> list[tuple[object, object, object]]:
    """(block, position, whether the block is open) of all rows."""
    with Database.open(database) as opened:
        rows = opened.rows("measurement")
    return sorted((item["block"], item["position"], bool(item["block_open"])) for item in rows)


def blocks(journal: Path) -> list[object]:
    return [record["row"]["block"] for record in map(json.loads, journal.read_bytes().splitlines()) if "row" in record]


def test_ended_blocks_enter_while_others_are_measured_and_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_ingest, "EVERY_S", 0.0)
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)) as journal:
        early = EarlyIngest(journal, database)
        journal.append(row(block=0, position=0), row(block=1, position=0), {"closed": 0, "session": "s"})
        early.look()
        journal.append(
            row(block=1, position=1), {"drifted": 1, "session": "s", "error": "drift"}, row(block=2, position=0)
        )
        early.end()
        assert positions(database) == [(0, 0, False)]
        assert blocks(journal.path) == [1, 1, 2]
        with pytest.raises(JournalInUse, match=r"PID \d+"):  # the file that took its place is locked too
            Journal(journal.path)
        journal.append(row(block=2, position=1, config={"a": 2}))
        assert ingest(journal, database) == 4
        assert early.stored == 1
    assert positions(database) == [(0, 0, False), (1, 0, False), (1, 1, False), (2, 0, True), (2, 1, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["k.duckdb"]


def test_rows_whose_process_was_killed_before_it_was_heard_are_not_doubled(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)) as journal:
        journal.append(row(block=0, position=0), {"closed": 0, "session": "s"}, row(block=1, position=0))
        stored, remaining = ingest_ended(journal.path, journal.size, database)
        assert (stored, remaining.count(b'"row"')) == (1, 1)
        journal.path.with_name("k.duckdb.journal.part").write_bytes(remaining[:20])
    with Journal(journal_path(database)) as journal:  # as if the driver had been killed
        assert ingest(journal, database) == 2
    assert positions(database) == [(0, 0, False), (1, 0, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["k.duckdb"]


def test_a_database_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_ingest, "EVERY_S", 0.0)
    (database := tmp_path / "k.duckdb").write_text("no database")
    with Journal(journal_path(database)) as journal:
        journal.append(row(), {"closed": 0, "session": "s"})
        early = EarlyIngest(journal, database)
        early.look()
        early.end()
        assert early.stored == 0
        assert blocks(journal.path) == [0]


def test_a_line_that_is_no_measurement_waits_for_the_end(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)) as journal:
        journal.append(row(), row(gpu=5), {"closed": 0, "session": "s"})
        stored, remaining = ingest_ended(journal.path, journal.size, database)
        journal.replace_first(journal.size, remaining)
        assert stored == 1
        notes: list[str] = []
        ingest(journal, database, notes.append)
    assert notes == [
        f"1 lines of {journal_path(database)} are not measurements; they were put into k.duckdb.journal.damaged"
    ]


def test_nothing_is_started_where_nothing_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_ingest, "EVERY_S", 0.0)
    monkeypatch.setattr(early_ingest, "_REST", 0.0)
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)) as journal:
        journal.append(row(), {"closed": 0, "session": "s"})
        early = EarlyIngest(journal, database)
        for _ in range(2):
            early.look()
            early.end()
        began = early._begun_s
        time.sleep(0.01)
        early.look()
        assert (early._begun_s, early.stored) == (began, 1)
        journal.append(row(position=4))
        early.look()
        assert early._begun_s > began
        early.end()
