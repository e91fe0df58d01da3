"""Measurements that were taken back answer no more, wherever their database goes; strangers take nothing back."""

import shutil
from pathlib import Path

import pytest

from kernrec.store import Database, Stack
from kernrec.store.intake import merge
from kernrec.store.keys import Signer, key_file, trust
from kernrec.store.retractions import forget, retracted, retraction_rows
from kernrec.store.share import Folder, Selection, import_bundle, read_bundle, write_bundle
from kernrec.store.share.outgoing import outgoing
from kernrec.store.share.privacy import secret_of
from kernrec.store.share.withdraw import withdraw_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, Person, measurement, measurements, sessions


@pytest.fixture(scope="module")
def alices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Alice's key and database: three measurements of Monday, of which she has taken the first back."""
    base = tmp_path_factory.mktemp("retractions")
    alice = Person(base / "alice")
    alice.key()
    alice.measure(measurements("monday", 3))
    assert take_back(alice, "position = 0") == 1
    return base


@pytest.fixture
def base(alices: Path, tmp_path: Path, read_here: None) -> Path:
    """The same, for one test alone."""
    shutil.copytree(alices, tmp_path, dirs_exist_ok=True)
    return tmp_path


def take_back(person: Person, condition: str, reason: str = "a broken fan") -> int:
    with person.at_work():
        signer = Signer.of(key_file())
        return withdraw_here(person.database, condition, signer, reason, agree=lambda _: True)


def answering(database: Database) -> list[int]:
    """The configs that answer."""
    return sorted(answer.config["block_m"] for answer in database.measured(GPU, [KERNEL], PROBLEM.key))


def test_retracted_row_stays_in_the_log_but_is_not_used(base: Path) -> None:
    alice = Person(base / "alice")
    with Database.open(alice.database) as database:
        assert answering(database) == [2, 3]
        assert len(database.rows("measurement")) == 3
        assert len(database.measurements()) == len(database.rows("best")) + 1 == 2
        assert retracted(database) == 1
        entries = {(row["signer"], row["reason"]) for row in database.rows("retraction")}
        assert entries == {(alice.key(), "a broken fan")}
        assert database.altered() == []
    assert Stack([alice.database]).measurements() == 2
    answers = Stack([alice.database]).evidence(GPU, PROBLEM.op, [KERNEL], PROBLEM.key).measured
    assert sorted(answer.config["block_m"] for answer in answers) == [2, 3]
    assert take_back(alice, "true") == 2  # what is taken back already is not chosen again


def test_retraction_of_one_contradictory_row_restores_the_other() -> None:
    with Database.memory() as database:
        keys = database.add_measurements([measurement(position=0, latency_s=s) for s in (1e-3, 5e-3)])
        assert answering(database) == []
        database.add("retraction", retraction_rows(keys[1:], "", None))
        assert database.conflicts() == []
        assert [answer.latency_s for answer in database.measured(GPU, [KERNEL], PROBLEM.key)] == [1e-3]


def test_retraction_applies_only_for_those_who_trust_the_signer(base: Path) -> None:
    alice, bob = Person(base / "alice"), Person(base / "bob")
    notes: list[str] = []
    with bob.at_work(), Database.open(bob.database, read_only=False, create=True) as database:
        assert merge(database, alice.database, notes.append) == 7
        assert answering(database) == [1, 2, 3]
        assert notes == [f"left: 2 retractions of unknown keys, such as {alice.key()} (`kernrec db trust`)"]
        trust(alice.key(), "alice")
        assert merge(database, alice.database) == 2
        assert answering(database) == [2, 3]
        assert merge(database, alice.database) == 0
        assert forget(database, alice.key()) == 1
        assert answering(database) == [1, 2, 3]
    with alice.at_work():
        assert withdraw_here(alice.database, "position = 1", None, "", agree=lambda _: True) == 1  # without a key
    with bob.at_work(), Database.open(bob.database, read_only=False) as database:
        merge(database, alice.database, notes.append)
        assert answering(database) == [2, 3]
    assert notes[1:] == ["left: 2 retractions without a signature"]


def test_bundle_delivers_a_retraction_for_an_earlier_bundle(base: Path) -> None:
    """There the row has another key: what is private stayed at home."""
    alice, bob = Person(base / "alice"), Person(base / "bob")
    alice.measure(measurements("tuesday", 2))
    made: list[Folder] = []

    def bundled() -> Folder:
        (folder := base / f"segments {len(made)}").mkdir()
        with alice.at_work(), Database.open(alice.database) as database:
            leaving = outgoing(database, Selection(), secret_of(alice.database), folder)
            place = Folder(base / f"bundle {len(made)}")
            write_bundle(place, leaving.manifest, leaving.files, Signer.of(key_file()))
        made.append(place)
        return place

    with bob.at_work():
        trust(alice.key(), "alice")
    first = bundled()
    take_back(alice, "session = 'tuesday' AND position = 1")
    second = bundled()
    counts = [read_bundle(place).manifest.rows for place in (first, second)]
    assert [(rows["measurement"], rows["retraction"]) for rows in counts] == [(4, 1), (3, 2)]
    for order in ((first, second), (second, first)):
        with bob.at_work(), Database.memory() as database:
            for place in order:
                import_bundle(database, read_bundle(place))
            standing = sessions(database.rows("unretracted_rows"))
            assert standing == [("monday", 1), ("monday", 2), ("tuesday", 0)]
            assert retracted(database) == 1
