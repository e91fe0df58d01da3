"""A folder as a remote: what leaves, what arrives and whose it is, also when somebody is killed or lies."""

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.recommender.result import MeasuredOn
from kernrec.store import Database, Stack
from kernrec.store.keys import Signer, distrust, key_file, trust
from kernrec.store.remotes import Remote, add_remote
from kernrec.store.share.entries import publish
from kernrec.store.share.log import remote_log
from kernrec.store.share.manifest import identity_document
from kernrec.store.share.object_store import place_of
from kernrec.store.share.place import Folder
from kernrec.store.share.pull import pull
from kernrec.store.share.pulled import Pulled, drop_signer
from kernrec.store.share.retract import Retraction, retract_at_others, retract_here, retract_there
from tests.helpers.reading import read_here, reading_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, UUID_HASH, Person, measurement, measurements, sessions

HOST, USER = "alices-machine", "aliceliddell"
PRIVATE = {
    "error": f"/home/{USER}/kernels/a.cu: error on {HOST}: /tmp/{USER}/x.h is missing",
    "measured_by": f"a tool of {USER} on {HOST}",
    "compiler_flags": "-I/opt/secret/include -O3",
}


pytestmark = pytest.mark.usefixtures("read_here")


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Alice has pushed twice: three measurements of Monday, two of Tuesday."""
    base = tmp_path_factory.mktemp("sharing")
    alice, team = Person(base / "alice"), base / "team"
    team.mkdir()
    with pytest.MonkeyPatch.context() as patch, reading_here():
        patch.setattr(socket, "gethostname", lambda: HOST)
        patch.setattr(getpass, "getuser", lambda: USER)
        alice.measure(measurements("monday", 3, **PRIVATE))
        assert alice.push(team) == 3
        first = files(team)
        assert alice.push(team) == 0
        assert files(team) == first
        alice.measure(measurements("tuesday", 2))
        assert alice.push(team) == 2
    # Config, problem and measurements of each; of Monday's, Tuesday's problem need not be sent again.
    assert len([name for name in files(team) if name.startswith("segments/")]) == 5
    return base


@pytest.fixture
def base(pushed: Path, tmp_path: Path) -> Path:
    """The same, for one test alone."""
    shutil.copytree(pushed, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_rows_answer_once_their_key_is_trusted_and_name_it(base: Path) -> None:
    alice, bob, team = Person(base / "alice"), Person(base / "bob"), base / "team"
    bob.measure(measurements("own", 1, latency_s=2e-3))
    lines = bob.pull(team, untrusted=False).left
    assert [line.endswith(f", signed by an unknown key, {alice.key()}") for line in lines] == [True, True]
    assert bob.pulled() == []
    with bob.at_work():
        add_remote(Remote("team", str(team)))
        trust(alice.key(), "alice")
    report = bob.pull(team, untrusted=False)
    assert (report.measurements, report.left) == (5, [])
    assert bob.pull(team, untrusted=False).measurements == 0
    with bob.at_work():
        stack = Stack()
        answers = stack.evidence(GPU, PROBLEM.op, [KERNEL], PROBLEM.key).measured
        seen = {answer.config["block_m"]: (answer.latency_s, answer.database, answer.signers) for answer in answers}
        assert seen[1] == (2e-3, "own", ())  # one's own comes first, faster or not
        assert seen[2] == seen[3] == (1e-3, "team", (alice.key(),))
        assert stack.measurements() == 1  # a model is trained on one's own rows
        on = MeasuredOn(1, "2026-03-01", None, "team", (alice.key(), ""))
        assert [signer["name"] for signer in on.signed_by()] == ["alice", "unsigned"]
    # What came from the team and was merged into one's own database is not one's own to share.
    bob.measure(measurements("monday", 3))
    assert bob.push(team) == 1
    with bob.at_work():
        assert drop_signer(Remote("team", str(team)), distrust("alice")) == 5
    assert sessions(bob.pulled()) == [("own", 0)]


def test_a_row_is_taken_back_by_its_owner_alone(base: Path) -> None:
    alice, bob, team = Person(base / "alice"), Person(base / "bob"), base / "team"
    bob.key()

    def take_back(person: Person, condition: str) -> int:
        with person.at_work():
            signer = Signer.of(key_file())
            remote, own = Remote("team", str(team)), person.database if person.database.exists() else None
            return retract_there(remote, condition, signer, "a broken fan", agree=lambda _: True, own=own)

    with pytest.raises(UsageError, match="your key has pushed no such measurements"):
        take_back(bob, "session = 'monday'")
    # Who goes round the command and names rows of others changes nothing.
    monday = tuple(str(row["measurement_id"]) for row in alice.pulled() if row["session"] == "monday")
    with bob.at_work():
        signer = Signer.of(key_file())
        forged = Retraction(monday, "2026-03-01T12:00:00", "forger", "", signer.key)
        publish(Remote("team", str(team)), place_of(str(team)), forged, signer)
    (line,) = alice.pull(team).left
    assert line.startswith("a retraction by unknown key")
    assert line.endswith("does nothing to 3 measurements that others shared")
    assert len(alice.pulled()) == 5
    assert take_back(alice, "session = 'monday' AND position < 2") == 2
    # Her own rows have other keys, for their private columns differ; they answer no more either.
    with Database.open(alice.database) as database:
        standing = database.rows("unretracted_rows")
    assert sessions(standing) == [("monday", 2), ("tuesday", 0), ("tuesday", 1)]
    assert sessions(alice.pulled()) == [("monday", 2), ("tuesday", 0), ("tuesday", 1)]
    assert alice.push(team) == 0  # what was taken back is not shared again
    (line,) = bob.pull(team).left
    assert line.startswith("a retraction by you does nothing to 3 measurements")
    assert sessions(bob.pulled()) == sessions(alice.pulled())
    with bob.at_work():
        rows = list(remote_log(Remote("team", str(team))))
    shown = {(row["signer"].partition(" ")[0], row["measurements"], row["state"], row["reason"]) for row in rows}
    pushes = {("unknown", 3, "answers", None), ("unknown", 2, "answers", None)}
    assert shown == pushes | {("you", -3, "retraction", ""), ("unknown", -2, "retraction", "a broken fan")}


def test_pushes_that_share_configs_are_read_together(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of Alice's pushes have the configs of Tuesday; one process reads them."""
    bob, team, read = Person(base / "bob"), base / "team", []

    def counted(task: str, *rest: object) -> dict[str, object]:
        read.append(task)
        return read_here(task, *rest)

    monkeypatch.setattr("kernrec.store.reader.read_apart", counted)
    assert bob.pull(team).measurements == 5
    assert read == ["segments"]


def test_a_push_tells_what_was_taken_back_here(base: Path) -> None:
    alice, bob, team = Person(base / "alice"), Person(base / "bob"), base / "team"
    alice.measure(measurements("wednesday", 1))
    with alice.at_work():
        for condition in ("session = 'monday'", "session = 'wednesday'"):
            signer = Signer.of(key_file())
            assert retract_here(alice.database, condition, signer, "a broken fan", agree=lambda _: True) > 0
    assert bob.pull(team).measurements == 5
    assert alice.push(team) == 0  # Wednesday never left, and does not now
    assert (report := bob.pull(team)).retracted == 3
    assert report.left == []
    assert sessions(bob.pulled()) == [("tuesday", 0), ("tuesday", 1)]
    before = files(team)
    assert alice.push(team) == 0
    assert files(team) == before  # it is told once


def test_nothing_private_leaves(pushed: Path) -> None:
    texts = []
    for path in (pushed / "team").rglob("*"):
        if path.suffix == ".parquet":
            texts += [
                repr(duckdb.execute(f"FROM {read}('{path}')").fetchall())
                for read in ("read_parquet", "parquet_kv_metadata")
            ]
        elif path.is_file():
            texts.append(path.read_text())
    seen = "\n".join(texts)
    assert "x.h is missing" in seen
    for private in (UUID_HASH, USER, HOST, "/home", "/tmp", "/opt", "secret", str(pushed)):
        assert private not in seen


def test_a_remote_that_lies_is_taken_for_what_it_proves(base: Path) -> None:
    alice, bob, team = Person(base / "alice"), Person(base / "bob"), base / "team"
    with alice.at_work():
        names = [row["manifest"] for row in remote_log(Remote("team", str(team)))]
    manifests = {name: json.loads((team / name).read_text()) for name in names}
    # Tuesday's rows are not those of its manifest, and a stranger's files lie around.
    (tuesday,) = [name for name in names if manifests[name]["rows"]["measurement"] == 2]
    for segment in manifests[tuesday]["segments"]:
        if segment["table"] == "measurement":
            (team / "segments" / f"{segment['sha256']}.parquet").write_bytes(b"PAR1 not really")
    (team / "manifests" / "notes.txt").write_text("x")
    (team / "manifests" / f"{'0' * 64}.json").write_text("{}")
    report = bob.pull(team)
    assert sessions(bob.pulled()) == [("monday", 0), ("monday", 1), ("monday", 2)]
    assert len([line for line in report.left if "has another content than its name says" in line]) == 2
    # Signatures of another key, and none.
    (first, second) = (team / name.replace(".json", ".sig") for name in names)
    document = json.loads(first.read_text())
    first.write_text(json.dumps(document | {"key": bob.key()}))
    second.unlink()
    carol = Person(base / "carol")
    report = carol.pull(team)
    assert any("does not fit its manifest" in line for line in report.left)
    assert any(f"has no manifests/{second.name}" in line for line in report.left)
    assert carol.pulled() == []
    shutil.rmtree(team)
    with pytest.raises(UsageError, match="there is no folder"):
        bob.pull(team)
    assert len(bob.pulled()) == 3  # what was pulled stays


def kill_when(process: "subprocess.Popen[bytes]", folder: Path, count: int) -> None:
    """Kill a process as soon as a folder has so many files."""
    while process.poll() is None and len(files(folder)) < count:
        time.sleep(0.001)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_pushes_and_pulls_that_are_killed_lose_double_and_show_nothing(base: Path) -> None:
    """A push writes some six files; each is killed after another number of them. A reader sees whole pushes alone."""
    alice, bob, team = Person(base / "alice"), Person(base / "bob"), base / "team"
    for person in (alice, bob):
        with person.at_work():
            add_remote(Remote("team", str(team)))
            trust(alice.key(), "alice")
    expected = 5
    for count in (1, 4):  # after a segment, and after the signature: the manifest is the next
        alice.measure([measurement(session=f"session {count}", position=i) for i in range(20)])
        expected += 20
        kill_when(alice.start("db", "push", "--licence", "CC0-1.0"), team, len(files(team)) + count)
    alice.push(team)
    assert len(alice.pulled()) == expected
    with bob.at_work():
        here = Remote("team", "").folder
    kill_when(bob.start("db", "pull"), here, len(files(here)) + 2)
    report = bob.pull(team, untrusted=False)
    assert report.left == []
    rows = bob.pulled()
    assert len(rows) == expected == len(set(sessions(rows)))
    with bob.at_work():
        shown = list(remote_log(Remote("team", str(team))))
    assert sum(row["measurements"] for row in shown) == expected  # no push is in the log twice
    listed = json.loads((team / "index.json").read_text())["names"]
    assert listed == Folder(team).names("manifests/")


def test_two_do_not_work_on_a_remote_at_once_on_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernrec.store.share import pulled

    monkeypatch.setattr(pulled, "_WAIT_S", 0.0)
    bob = Person(tmp_path / "bob")
    with bob.at_work():
        remote = Remote("team", str(tmp_path))
        with pulled.working_on(remote), pytest.raises(UsageError, match="another process pushes to team"):
            pulled.working_on(remote).__enter__()


def test_a_database_that_could_not_be_made_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Person(tmp_path / "bob").at_work():
        remote = Remote("team", str(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr("kernrec.store.database.Database.change", interrupted)
            with pytest.raises(KeyboardInterrupt):
                Pulled.open(remote).__enter__()
        assert list(remote.folder.iterdir()) == []
        with Pulled.open(remote) as pulled:
            assert pulled.taken() == set()


def test_what_was_taken_back_at_one_remote_cannot_be_replayed_at_another(base: Path) -> None:
    """Mallory copies Alice's push to another remote, first as it is, then with the identity of the first."""
    alice, bob, team, other = Person(base / "alice"), Person(base / "bob"), base / "team", base / "other"
    for folder in ("manifests", "segments"):
        shutil.copytree(team / folder, other / folder)
    lines = bob.pull(other).left
    assert len(lines) == 2
    assert all("was pushed to another remote" in line for line in lines)
    assert bob.pulled() == []
    shutil.copy(team / "remote.json", other)
    with bob.at_work():
        trust(alice.key(), "alice")
        remotes = [Remote(name, str(folder)) for name, folder in (("team", team), ("other", other))]
        for remote in remotes:
            add_remote(remote)
            assert pull(remote).measurements == 5
        own = Signer.of(alice.home / "config" / "kernrec" / "key")
        with alice.at_work():
            add_remote(remotes[0])
            retract_there(remotes[0], "session = 'monday'", own, "wrong clock", agree=lambda rows: True)
        assert pull(remotes[0]).retracted == 3
        assert retract_at_others() == {"other": 3}
        assert retract_at_others() == {}
        with Pulled.read(remotes[1]) as pulled:
            assert pulled.measurements() == 2


def test_a_remote_whose_identity_changes_is_not_pulled(base: Path) -> None:
    bob, team = Person(base / "bob"), base / "team"
    bob.pull(team)
    (team / "remote.json").write_bytes(identity_document("0" * 32))
    with pytest.raises(UsageError, match="is another remote than team was"):
        bob.pull(team)
    (team / "remote.json").write_text("{}")
    with pytest.raises(UsageError, match="is not the identity of a remote"):
        bob.pull(team)
