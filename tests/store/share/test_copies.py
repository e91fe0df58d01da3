"""What its owner took back at a remote stops answering in a database that it was merged into, too."""

import shutil
from pathlib import Path

import pytest

from kernrec.store import Database
from kernrec.store.intake import merge
from kernrec.store.keys import Signer, key_file, trust
from kernrec.store.remotes import Remote, add_remote
from kernrec.store.retractions import forget
from kernrec.store.share.log import own_log
from kernrec.store.share.retract import retract_copies, retract_there
from tests.helpers.reading import reading_here
from tests.helpers.sharing import Person, measurements, sessions


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: Alice has pushed Monday's measurements; Bob trusts her key, has added the remote and pulled."""
    base = tmp_path_factory.mktemp("copies")
    alice, bob, remote = people(base)
    Path(remote.url).mkdir()
    alice.measure(measurements("monday", 3))
    assert alice.push(remote.url) == 3
    with bob.at_work(), reading_here():
        add_remote(remote)
        trust(alice.key(), "alice")
        assert bob.pull(remote.url).measurements == 3
    return base


def people(base: Path) -> tuple[Person, Person, Remote]:
    return Person(base / "alice"), Person(base / "bob"), Remote("team", str(base / "team"))


@pytest.fixture
def team(shared: Path, tmp_path: Path, read_here: None) -> tuple[Person, Person, Remote]:
    """The same, for one test alone."""
    shutil.copytree(shared, tmp_path, dirs_exist_ok=True)
    return people(tmp_path)


def take_back(alice: Person, remote: Remote) -> None:
    """Alice takes the first back at the remote."""
    with alice.at_work():
        signer = Signer.of(key_file())
        assert retract_there(remote, "position = 0", signer, "a broken fan", agree=lambda _: True) == 1


def merge_into(bob: Person, path: Path) -> None:
    with bob.at_work(), Database.open(bob.database, read_only=False, create=True) as database:
        assert merge(database, path) > 3


def standing(person: Person) -> list[tuple[object, object]]:
    with Database.open(person.database) as database:
        assert len(database.rows("measurement")) == 3  # the log keeps every row
        return sessions(database.rows("unretracted_rows"))


def test_a_copy_answers_no_more_and_stays_in_the_log(team: tuple[Person, Person, Remote]) -> None:
    """Alice's file has other keys than what she pushed: what is private stayed at home."""
    alice, bob, remote = team
    merge_into(bob, alice.database)
    take_back(alice, remote)
    with bob.at_work():
        assert retract_copies(bob.database) == {}  # nothing is known of it before the next pull
        assert bob.pull(remote.url).retracted == 1
        assert retract_copies(bob.database) == {"alice": 1}
        assert retract_copies(bob.database) == {}
        assert standing(bob) == [("monday", 1), ("monday", 2)]
        (entry,) = own_log(bob.database)
        assert (entry["signer"], entry["reason"], entry["measurements"]) == ("alice", "a broken fan", -1)
        with Database.open(bob.database, read_only=False) as database:
            assert database.altered() == []
            assert forget(database, alice.key()) == 1
    assert len(standing(bob)) == 3


def test_a_copy_that_comes_later_does_not_answer_and_bobs_word_for_alices_counts_nowhere_else(
    team: tuple[Person, Person, Remote],
) -> None:
    alice, bob, remote = team
    with bob.at_work():
        earlier = shutil.copyfile(remote.pulled, bob.home / "earlier.duckdb")
        take_back(alice, remote)
        bob.pull(remote.url)
        merge_into(bob, earlier)
        assert retract_copies(bob.database) == {"alice": 1}
    carol = Person(bob.home.parent / "carol")
    with carol.at_work(), Database.open(carol.database, read_only=False, create=True) as database:
        trust(alice.key(), "alice")
        notes: list[str] = []
        merge(database, bob.database, notes.append)
        assert notes == ["left: 1 retraction without a signature"]
    assert len(standing(carol)) == 3


def test_what_somebody_else_shares_too_stays(team: tuple[Person, Person, Remote]) -> None:
    """The same measurements are in Bob's database, and he has pushed them too."""
    alice, bob, remote = team
    with bob.at_work():
        remote.pulled.unlink()
    bob.measure(measurements("monday", 3))
    assert bob.push(remote.url) == 3
    take_back(alice, remote)
    bob.pull(remote.url)
    with bob.at_work():
        assert retract_copies(bob.database) == {}
    assert len(standing(bob)) == 3


def test_a_key_that_is_not_trusted_takes_nothing_back(team: tuple[Person, Person, Remote]) -> None:
    alice, bob, remote = team
    take_back(alice, remote)
    carol = Person(bob.home.parent / "carol")
    carol.pull(remote.url, untrusted=True)
    carol.measure(measurements("monday", 3))
    with carol.at_work():
        add_remote(remote)
        assert retract_copies(carol.database) == {}
        trust(alice.key(), "alice")
        assert retract_copies(carol.database) == {"alice": 1}
