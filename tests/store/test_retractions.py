"""Test that withdrawn measurements are not used, and that withdrawals stay in their database."""

import shutil
from pathlib import Path

import pytest

from kernrec.store import Database, Stack
from kernrec.store.intake import merge
from kernrec.store.keys import Signer, key_file
from kernrec.store.share.bundle import read_bundle, write_bundle
from kernrec.store.share.outgoing import Selection, outgoing, secret_of
from kernrec.store.share.place import Folder
from kernrec.store.share.withdraw import retracted, retraction_rows, withdraw_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, Person, import_bundle, measurement, measurements, sessions


@pytest.fixture(scope="module")
def alices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create Alice's database of three measurements of Monday, the first of which is withdrawn."""
    base = tmp_path_factory.mktemp("retractions")
    alice = Person(base / "alice")
    alice.measure(measurements("monday", 3))
    assert take_back(alice, "position = 0") == 1
    return base


@pytest.fixture
def base(alices: Path, tmp_path: Path, read_here: None) -> Path:
    """Return a copy of Alice's folder for one test."""
    shutil.copytree(alices, tmp_path, dirs_exist_ok=True)
    return tmp_path


def take_back(person: Person, condition: str, reason: str = "a broken fan") -> int:
    return withdraw_here(person.database, condition, reason, agree=lambda _: True)


def answering(database: Database) -> list[int]:
    """Return the configs whose measurements are used."""
    return sorted(answer.config["block_m"] for answer in database.measured(GPU, [KERNEL], PROBLEM.key))


def test_retracted_row_stays_in_the_log_but_is_not_used(base: Path) -> None:
    alice = Person(base / "alice")
    with Database.open(alice.database) as database:
        assert answering(database) == [2, 3]
        assert len(database.rows("measurement")) == 3
        assert len(database.measurements()) == len(database.rows("best")) + 1 == 2
        assert retracted(database) == 1
        entries = {(row["signer"], row["reason"]) for row in database.rows("retraction")}
        assert entries == {("", "a broken fan")}
        assert database.altered() == []
    assert Stack([alice.database]).measurements() == 2
    answers = Stack([alice.database]).evidence(GPU, PROBLEM.op, [KERNEL], PROBLEM.key).measured
    assert sorted(answer.config["block_m"] for answer in answers) == [2, 3]
    assert take_back(alice, "true") == 2  # a withdrawn row is not selected again


def test_retraction_of_one_contradictory_row_restores_the_other() -> None:
    with Database.memory() as database:
        keys = database.add_measurements([measurement(position=0, latency_s=s) for s in (1e-3, 5e-3)])
        assert answering(database) == []
        database.add("retraction", retraction_rows(keys[1:], ""))
        assert database.conflicts() == []
        assert [answer.latency_s for answer in database.measured(GPU, [KERNEL], PROBLEM.key)] == [1e-3]


def test_merge_adds_every_row_but_no_withdrawal(base: Path) -> None:
    notes: list[str] = []
    with Database.memory() as database:
        assert merge(database, base / "alice" / "data/kernrec/kernrec.duckdb", notes.append) == 7
        assert answering(database) == [1, 2, 3]
        assert database.rows("retraction") == []
    (note,) = notes
    assert note.startswith("not added: 1 withdrawal of ")


def test_bundle_excludes_withdrawn_rows(base: Path) -> None:
    alice = Person(base / "alice")
    alice.key()
    (folder := base / "segments").mkdir()
    with alice.at_work(), Database.open(alice.database) as database:
        leaving = outgoing(database, Selection(), secret_of(alice.database), folder)
        write_bundle(place := Folder(base / "bundle"), leaving.manifest, leaving.files, Signer.of(key_file()))
    rows = read_bundle(place).manifest.rows
    assert (rows["measurement"], rows["retraction"]) == (2, 0)
    with Database.memory() as database:
        import_bundle(database, read_bundle(place))
        assert sessions(database.rows("measurement")) == [("monday", 1), ("monday", 2)]
