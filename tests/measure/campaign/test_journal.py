import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.measure.campaign.ingest import ingest, measurements_of
from kernrec.measure.campaign.journal import Journal, JournalError, journal_path
from kernrec.store import Database

PROBLEM = "elementwise[n=64]f32,row"


def drained(path: Path) -> list[dict]:
    found: list[dict] = []
    with Journal(path) as journal:
        journal.drain(found.extend)
    return found


def row(**given: object) -> dict:
    return {
        "row": {
            "gpu": "h200-sxm", "kernel": "k", "kernel_hash": "h", "config": {"a": 1}, "problem": PROBLEM,
            "protocol_version": 1, "tier": "screen", "session": "s", "block": 0, "measured_at": "2026-01-01T00:00:00",
            "latency_s": 1e-3, "outcome": "ok",
        } | given
    }  # fmt: skip


def test_what_was_appended_is_there_after_opening_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
        journal.append({"a": [1.5, None, "ä\n"]})
    assert drained(path) == [{"a": 1}, {"a": [1.5, None, "ä\n"]}]


def test_an_emptied_journal_is_removed_and_one_that_holds_something_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
    assert path.exists()
    drained(path)
    assert not path.exists()


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(1, 200))
def test_wherever_a_crash_cuts_the_file_all_whole_lines_survive(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.journal"
    with Journal(path) as journal:
        for i in range(8):
            journal.append({"i": i, "text": "x" * i})
    content = path.read_bytes()
    kept = content[: max(0, len(content) - cut)]
    path.write_bytes(kept)
    whole = [json.loads(line) for line in kept.split(b"\n")[:-1]]
    assert drained(path) == [record for record in whole if "i" in record]


def test_appending_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
    with path.open("ab") as file:
        file.write(b'{"a": 2, "b"')
    with Journal(path) as journal:
        journal.append({"a": 3})
    assert drained(path) == [{"a": 1}, {"a": 3}]


def test_a_second_collector_is_told_who_is_at_work(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)), pytest.raises(UsageError) as caught:
        Journal(journal_path(database))
    assert str(caught.value) == (
        f"another collector (PID {os.getpid()}) is filling {database}; wait for it or give another --db"
    )
    Journal(journal_path(database)).close()


def test_a_journal_on_a_full_disk_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.append({"a": 1})
        whole, file = path.stat().st_size, journal._file
        journal._file = os.open("/dev/full", os.O_RDWR)
        with pytest.raises(JournalError, match="no space left on device; what was measured before is safe in it"):
            journal.append({"a": 2})
        os.close(journal._file)
        journal._file = file
    assert path.stat().st_size == whole


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write the journal .*: (file exists|not a directory)"):
        Journal(tmp_path / "file" / "a.journal")


def test_rows_of_a_block_that_nobody_closed_stay_and_say_so() -> None:
    records = [
        row(block=0), {"closed": 0, "session": "s"}, row(block=1), row(block=1, outcome="timeout", error="slow"),
        {"closed": 1, "session": "another"},
    ]  # fmt: skip
    found = [(m.outcome, m.error, m.origin.block_open) for m in measurements_of(records)]
    assert found == [("ok", None, None), ("ok", None, True), ("timeout", "slow", None)]


def test_rows_of_a_block_in_which_the_card_drifted_are_quarantined() -> None:
    records = [
        row(block=0), row(block=1, config={"a": 2}), row(block=1, outcome="timeout", error="slow", latency_s=None),
        {"closed": 0, "session": "s"}, {"drifted": 1, "session": "s", "error": "reference kernels drifted"},
        row(block=1, session="another"), {"closed": 1, "session": "another"},
    ]  # fmt: skip
    found = [(m.outcome, m.error) for m in measurements_of(records)]
    assert found == [
        ("ok", None), ("quarantined", "reference kernels drifted"), ("timeout", "slow"), ("ok", None),
    ]  # fmt: skip


def test_the_journal_is_emptied_only_when_the_database_has_its_rows(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    with Journal(journal_path(database)) as journal:
        journal.append(row())
        journal.append(row(latency_s=-1.0))  # no run time: the database refuses all of them
        with pytest.raises(UsageError):
            ingest(journal, database)
    assert [r["row"]["latency_s"] for r in drained(journal_path(database))] == [1e-3, -1.0]


def test_ingesting_twice_adds_nothing(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    for _ in range(2):  # as after a kill between the database's commit and the emptying of the journal
        with Journal(journal_path(database)) as journal:
            journal.append(row())
            assert ingest(journal, database) == 1
    with Database.open(database) as opened:
        assert opened.counts()["measurement"] == 1


def test_a_problem_that_only_a_spec_declares_comes_back_without_the_spec(tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    about = {"key": "mine[n=3]f32,any", "op": "mine", "dims": {"n": 3}, "dtype": "f32", "layout": "any"}
    with Journal(journal_path(database)) as journal:
        journal.append(row(problem=about))
        journal.append(row(problem=PROBLEM))  # as earlier versions wrote it
        assert ingest(journal, database) == 2
    with Database.open(database) as opened:
        assert {str(problem["key"]) for problem in opened.rows("problem")} == {about["key"], PROBLEM}
        assert opened.altered() == []
