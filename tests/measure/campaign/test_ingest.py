"""Test that moving rows from the journal to the database neither loses nor repeats any, and judges each block."""

import json

import pytest

from kernrec.errors import UsageError
from kernrec.measure.campaign.ingest import ingest, measurements_of
from kernrec.measure.campaign.journal import Journal
from kernrec.op import problem_from_key
from kernrec.store import Database
from tests.helpers.sharing import USUAL

PROBLEM = problem_from_key("elementwise[n=64]f32,row").as_dict()


def row(**arguments: object) -> dict:
    usual = {"config": {"a": 1}, "problem": PROBLEM, "tier": "screen", "session": "s", "block": 0}
    return {"row": USUAL | usual | arguments}


def test_rows_of_an_interrupted_measurement_block_are_kept_and_marked():
    records = [
        row(block=0), {"closed": 0, "session": "s"}, row(block=1), row(block=1, outcome="timeout", error="slow"),
        {"closed": 1, "session": "another"},
    ]  # fmt: skip
    rows = [(m.outcome, m.error, m.block_open) for m in measurements_of(records)]
    assert rows == [("ok", None, None), ("ok", None, True), ("timeout", "slow", None)]


def test_rows_are_quarantined_if_the_gpu_drifted():
    records = [
        row(block=0), row(block=1, config={"a": 2}), row(block=1, outcome="timeout", error="slow", latency_s=None),
        {"closed": 0, "session": "s"}, {"drifted": 1, "session": "s", "error": "reference kernels drifted"},
        row(block=1, session="another"), {"closed": 1, "session": "another"},
    ]  # fmt: skip
    rows = [(m.outcome, m.error) for m in measurements_of(records)]
    assert rows == [
        ("ok", None), ("quarantined", "reference kernels drifted"), ("timeout", "slow"), ("ok", None),
    ]  # fmt: skip


def test_journal_is_emptied_only_after_the_database_has_its_rows(tmp_path):
    database = tmp_path / "k.duckdb"
    with Journal(database) as journal:
        journal.append(row())
        journal.append(row(latency_s=2e-3))
        database.write_text("no database")
        with pytest.raises(UsageError):
            ingest(journal)
    with Journal(database) as journal:
        assert [record["row"]["latency_s"] for record in journal.records()] == [1e-3, 2e-3]


def test_declared_problem_is_restored_without_its_spec(tmp_path):
    database = tmp_path / "k.duckdb"
    about = {"key": "mine[n=3]f32,any", "op": "mine", "dims": {"n": 3}, "dtype": "f32", "layout": "any"}
    with Journal(database) as journal:
        journal.append(row(problem=about))
        journal.append(row())
        assert ingest(journal) == 2
    with Database.open(database) as opened:
        assert {str(problem["key"]) for problem in opened.rows("problem")} == {about["key"], PROBLEM["key"]}
        assert opened.altered() == []


@pytest.mark.parametrize(
    "line",
    [
        {"row": "x"},
        {"row": {"problem": 3}},
        {"row": row(block=[1])["row"]},
        {"row": row(latency_s="fast")["row"]},
        {"row": row(latency_s=-1.0)["row"]},
        {"closed": [1], "session": {}},
    ],
)
def test_invalid_journal_line_is_set_aside_and_valid_ones_are_kept(tmp_path, line):
    database, notes = tmp_path / "a.duckdb", []
    with Journal(database) as journal:
        journal.append(row())
        journal.append(line)
        journal.append({"closed": 0, "session": "s"})
        assert ingest(journal, notes.append) == 1
    with Database.open(database) as opened:
        assert opened.counts()["measurement"] == 1
    if "row" in line:
        (note,) = notes
        assert note.startswith("1 records of")
        assert "\n" not in note
        assert json.loads((tmp_path / "a.duckdb.journal.sqlite.damaged").read_text()) == line
