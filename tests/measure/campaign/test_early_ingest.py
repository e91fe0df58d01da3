"""Rows of ended blocks enter the database while a campaign runs; nothing is lost or added twice."""

from pathlib import Path

import pytest

from kernrec.measure.campaign import early_ingest
from kernrec.measure.campaign.early_ingest import EarlyIngest
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.store import Database
from tests.measure.campaign.test_ingest import row


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_ingest, "EVERY_S", 0.0)


def positions(database: Path) -> list[tuple[object, object, object]]:
    """(block, position, whether the block is open) of all rows."""
    with Database.open(database) as opened:
        rows = opened.rows("measurement")
    return sorted((item["block"], item["position"], bool(item["block_open"])) for item in rows)


def test_ended_blocks_enter_while_others_are_measured_and_each_row_once(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)) as journal:
        early = EarlyIngest(journal, database)
        journal.append(row(block=0, position=0), row(block=1, position=0), {"closed": 0, "session": "s"})
        early.look()
        early.end()
        journal.append(
            row(block=1, position=1), {"drifted": 1, "session": "s", "error": "drift"}, row(block=2, position=0)
        )
        assert (early.stored, positions(database)) == (1, [(0, 0, False)])
        assert ingest(journal, database) == 3
    assert positions(database) == [(0, 0, False), (1, 0, False), (1, 1, False), (2, 0, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["k.duckdb"]


def test_a_database_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (database := tmp_path / "k.duckdb").write_text("no database")
    with Journal(journal_path(database)) as journal:
        journal.append(row(), {"closed": 0, "session": "s"})
        early = EarlyIngest(journal, database)
        early.look()
        early.end()
        assert early.stored == 0
        assert len(journal.records()) == 2
