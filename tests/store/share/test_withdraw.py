"""Test that withdrawn rows are unused on every remote and in every copy, and only their signer can withdraw them."""

import shutil
from pathlib import Path

import pytest

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.keys import Signer, key_file, trust
from kernrec.store.share.servers import place_of
from kernrec.store.share.withdraw import forget, publish, withdraw_copies
from tests.helpers.reading import reading_here
from tests.helpers.sharing import Person, measurements, merge, sessions


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Create a folder to which Alice pushed Monday's measurements. Bob trusts her key and has pulled."""
    base = tmp_path_factory.mktemp("withdrawn")
    alice, bob = Person(base / "alice"), Person(base / "bob")
    (base / "team").mkdir()
    alice.measure(measurements("monday", 3))
    with reading_here():
        assert alice.push(base / "team") == 3
        with bob.at_work():
            trust(alice.key(), "alice")
        assert bob.pull(base / "team", untrusted=False).measurements == 3
    return base


@pytest.fixture
def base(shared, tmp_path, read_here):
    shutil.copytree(shared, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def alice(base):
    return Person(base / "alice")


@pytest.fixture
def bob(base):
    return Person(base / "bob")


def merge_into(person: Person, path: Path) -> None:
    with person.at_work(), Database.open(person.database, read_only=False, create=True) as database:
        assert merge(database, path) > 3


def standing(person: Person) -> list[tuple[object, object]]:
    with Database.open(person.database) as database:
        assert len(database.rows("measurement")) == 3  # the log keeps every row
        return sessions(database.rows("unretracted_rows"))


def copies(person: Person) -> dict[str, int]:
    with person.at_work():
        return withdraw_copies(person.database)


@pytest.mark.every(4)
def test_withdrawn_rows_are_ignored_locally_and_by_others(base, alice, bob):
    bob.key()
    with pytest.raises(UsageError, match="your key has pushed no such measurements"):
        bob.withdraw(base / "team", "session = 'monday'")
    assert alice.withdraw(base / "team", "position < 2") == 2
    # Alice's database also withdraws its rows, whose keys differ because they include private columns.
    assert standing(alice) == sessions(alice.pulled()) == [("monday", 2)]
    assert alice.push(base / "team") == 0  # withdrawn rows are not shared again
    report = bob.pull(base / "team")
    assert (report.withdrawn, report.left) == (2, [])
    assert sessions(bob.pulled()) == [("monday", 2)]
    carol = Person(base / "carol")
    assert carol.pull(base / "team").withdrawn == 2
    assert sessions(carol.pulled()) == [("monday", 2)]


@pytest.mark.every(3)
def test_withdrawal_of_rows_from_others_is_refused(base, alice, bob):
    """Mallory, whom Bob trusts, bypasses the command and withdraws Alice's rows by their keys."""
    mallory = Person(base / "mallory")
    mallory.pull(base / "team")
    with bob.at_work():
        trust(mallory.key(), "mallory")
    merge_into(bob, alice.database)
    with mallory.at_work(), Database.open(paths.pulled()) as pulled:
        from kernrec.store.share.outgoing import likeness_key

        rows = pulled.query(f"SELECT {likeness_key(pulled)} FROM db.measurement")
    with mallory.at_work():
        named = {"monday": [row for (row,) in rows]}
        publish(place_of(str(base / "team")), paths.pulled(), named, Signer.of(key_file()), "forged")
    assert bob.pull(base / "team", untrusted=False).withdrawn == 0
    assert copies(bob) == {}
    assert len(bob.pulled()) == len(standing(bob)) == 3


@pytest.mark.every(3)
def test_withdrawal_applies_to_copies_of_the_rows_on_other_remotes(base, alice, bob):
    """Mallory copies Alice's bundles to another remote before Alice withdraws them."""
    other = base / "other"
    shutil.copytree(base / "team", other)
    alice.withdraw(base / "team", "true")
    assert bob.pull(base / "team").withdrawn == 3
    assert bob.pull(other).measurements == 0
    with bob.at_work():
        paths.pulled().unlink()
    assert bob.pull(other).measurements == 3
    assert bob.pull(base / "team").withdrawn == 3
    assert bob.pulled() == []


@pytest.mark.every(2)
def test_changed_or_forged_withdrawal_is_refused(base, alice, bob):
    import hashlib

    alice.withdraw(base / "team", "true")
    (file,) = (base / "team/withdrawn").iterdir()
    content = file.read_bytes().replace(b"a broken fan", b"another fan!")
    file.unlink()
    for text in (content, b"{}", b"[" * 10_000, content.partition(b"\n")[0]):
        (file.parent / f"{hashlib.sha256(text).hexdigest()}.json").write_bytes(text)
    report = bob.pull(base / "team")
    assert report.withdrawn == 0
    reasons = " ".join(report.refused.values())
    assert "does not match" in reasons
    assert "is not a withdrawal" in reasons
    assert len(report.refused) == 4


@pytest.mark.every(3)
def test_withdrawn_rows_in_a_merged_database_are_ignored(base, alice, bob):
    """Alice's file has other keys than her pushed rows, which lack the private columns."""
    merge_into(bob, alice.database)
    alice.withdraw(base / "team", "position = 0")
    assert copies(bob) == {}  # Bob learns of the withdrawal only at the next pull
    assert bob.pull(base / "team").withdrawn == 1
    assert copies(bob) == {"alice": 1}
    assert copies(bob) == {}
    assert standing(bob) == [("monday", 1), ("monday", 2)]
    # Other readers ignore a withdrawal of Alice's rows by Bob.
    carol = Person(base / "carol")
    notes: list[str] = []
    with carol.at_work(), Database.open(carol.database, read_only=False, create=True) as database:
        trust(alice.key(), "alice")
        merge(database, bob.database, notes.append)
    assert [note.partition(" of ")[0] for note in notes] == ["not added: 1 withdrawal"]
    assert len(standing(carol)) == 3
    with Database.open(bob.database, read_only=False) as database:
        assert database.altered() == []
        assert forget(database, alice.key()) == 1
    assert len(standing(bob)) == 3


@pytest.mark.every(3)
def test_withdrawal_with_an_untrusted_key_is_ignored(base, alice):
    carol = Person(base / "carol")
    carol.pull(base / "team", untrusted=True)
    alice.withdraw(base / "team", "position = 0")
    assert carol.pull(base / "team", untrusted=False).withdrawn == 0
    carol.pull(base / "team", untrusted=True)
    carol.measure(measurements("monday", 3))
    assert copies(carol) == {}
    with carol.at_work():
        trust(alice.key(), "alice")
    assert copies(carol) == {"alice": 1}
