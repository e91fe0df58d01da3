"""Test pushing to and pulling from a folder, also when a process is killed or a sender lies."""

import getpass
import json
import os
import shutil
import socket
from pathlib import Path
from unittest.mock import patch

import duckdb
import pytest

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store import Stack
from kernrec.store.keys import Signer, distrust, key_file, signer_name, trust
from kernrec.store.share import pulled
from kernrec.store.share.place import Folder, bundle_names
from tests.helpers.reading import reading_here
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, UUID_HASH, Person, measurements, sessions

HOST, USER = "alices-machine", "aliceliddell"
PRIVATE = {
    "error": f"/home/{USER}/kernels/a.cu: error on {HOST}: /tmp/{USER}/x.h is missing",
    "measured_by": f"a tool of {USER} on {HOST}",
    "compiler_flags": "-I/opt/secret/include -O3",
}
pytestmark = pytest.mark.usefixtures("read_here")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """Create a folder in which Alice has pushed three measurements of Monday and two of Tuesday."""
    base = tmp_path_factory.mktemp("sharing")
    alice, team = Person(base / "alice"), base / "team"
    team.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch, reading_here():
        monkeypatch.setattr(socket, "gethostname", lambda: HOST)
        monkeypatch.setattr(getpass, "getuser", lambda: USER)
        alice.measure(measurements("monday", 3, **PRIVATE))
        assert alice.push(team) == 3
        first = Folder(team).names()
        assert alice.push(team) == 0
        assert Folder(team).names() == first
        alice.measure(measurements("tuesday", 2))
        assert alice.push(team) == 2
    assert len(bundles(team)) == 2
    return base


@pytest.fixture
def base(pushed, tmp_path):
    shutil.copytree(pushed, tmp_path, dirs_exist_ok=True)
    return tmp_path


def bundles(team: Path) -> list[Path]:
    return sorted(team.glob("*/*.zip"))


def bundle_of(team: Path, count: int) -> Path:
    import zipfile

    def rows(path: Path) -> int:
        with zipfile.ZipFile(path) as archive:
            return int(json.loads(archive.read("manifest.json"))["rows"]["measurement"])

    return next(path for path in bundles(team) if rows(path) == count)


@pytest.mark.every(2)
def test_pulled_rows_are_used_once_their_key_is_trusted(base):
    alice, bob, team = Person(base / "alice"), Person(base / "bob"), base / "team"
    bob.measure(measurements("own", 1, latency_s=2e-3))
    assert bob.pull(team, untrusted=False).left == [f"skipped: 2 bundles, signed by an unknown key, {alice.key()}"]
    assert bob.pulled() == []
    with bob.at_work():
        trust(alice.key(), "alice")
    report = bob.pull(team, untrusted=False)
    assert (report.measurements, report.left) == (5, [])
    assert bob.pull(team, untrusted=False).measurements == 0
    with bob.at_work():
        stack = Stack()
        answers = stack.evidence(GPU, PROBLEM.op, [KERNEL], PROBLEM.key).measured
        seen = {answer.config["block_m"]: (answer.latency_s, answer.database, answer.signers) for answer in answers}
        assert seen[1] == (2e-3, "own", ())  # the user's own rows take precedence, even if slower
        assert seen[2] == seen[3] == (1e-3, "pulled", (alice.key(),))
        assert stack.measurements() == 1  # models train on the user's own rows
        assert [signer_name(key) for key in (alice.key(), "")] == ["alice", "unsigned"]
    # Bob pushes only his own row, even after Alice's rows are merged into his database.
    bob.measure(measurements("monday", 3))
    assert bob.push(team) == 1
    with bob.at_work():
        assert pulled.drop_signer(paths.pulled(), distrust("alice")) == 5
    assert sessions(bob.pulled()) == [("own", 0)]


def test_push_contains_no_private_data(pushed, tmp_path):
    import zipfile

    texts = []
    for path in bundles(pushed / "team"):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path)
    for path in tmp_path.rglob("*"):
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


def test_pull_skips_only_the_damaged_foreign_or_missing_file(base):
    bob, team = Person(base / "bob"), base / "team"
    bob.key()
    tuesday, monday = bundle_of(team, 2), bundle_of(team, 3)
    content = tuesday.read_bytes()
    tuesday.write_bytes(content[:-300])
    (team / "withdrawn").mkdir()
    (team / "withdrawn" / f"{'0' * 64}.json").write_text("{}")
    (team / "notes.txt").write_text("x")
    shutil.copy(monday, monday.with_name(f"{monday.name[:-16]}{'0' * 12}.zip"))
    report = bob.pull(team)
    assert sessions(bob.pulled()) == [("monday", 0), ("monday", 1), ("monday", 2)]
    reasons = " ".join(report.refused.values())
    assert len(report.refused) == 3
    assert "not a bundle" in reasons
    assert "its name has to be" in reasons
    assert "its content does not match its name" in reasons
    assert str(base) not in reasons
    tuesday.write_bytes(content)
    assert bob.pull(team).measurements == 2


def test_remote_listing_never_deletes_rows(base, refuses):
    """After an empty, short or unreadable listing, pulled rows stay until their signer withdraws them."""
    bob, team = Person(base / "bob"), base / "team"
    bob.pull(team)
    for path in bundles(team):
        path.unlink()
        assert bob.pull(team).withdrawn == 0
        assert len(bob.pulled()) == 5
    shutil.rmtree(team)
    refuses(lambda: bob.pull(team))
    assert len(bob.pulled()) == 5


def test_links_pipes_and_hostile_names_are_not_followed(base, refuses):
    team, (first, second) = base / "team", bundles(base / "team")
    for path in (first, second):
        path.rename(base / path.name)
    first.symlink_to(base / first.name)
    if os.name != "nt":
        os.mkfifo(second)
    report = Person(base / "bob").pull(team)
    assert set(report.refused.values()) == {"it is not a file"}
    assert report.measurements == 0
    name = f"{GPU}/{second.name}"
    assert bundle_names(["../secret", "/etc/passwd", f"../team/{name}", name, f"{GPU}/../{name}"]) == [name]
    shutil.move(team / GPU, base / "elsewhere")
    (team / GPU).symlink_to(base / "elsewhere")
    refuses(lambda: Person(base / "bob").pull(team))


@pytest.mark.every(2)
def test_interrupted_pull_keeps_only_whole_bundles(base):
    bob, team = Person(base / "bob"), base / "team"
    with patch("kernrec.store.share.pull.BATCH_BYTES", 1):
        with (
            patch("kernrec.store.share.pulled.Database.add_from", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            bob.pull(team)
        assert bob.pulled() == []
        assert bob.pull(team).measurements == 5


def test_killed_push_does_not_upload_its_bundle_twice(base):
    """The push was killed after it wrote the bundle and before this machine recorded it."""
    alice, team = Person(base / "alice"), base / "team"
    with alice.at_work():
        paths.pulled().unlink()
    assert alice.push(team) == 0
    assert len(bundles(team)) == 2
    assert json.loads((team / "index.json").read_text())["names"] == [
        name for name in Folder(team).names() if name.endswith(".zip")
    ]


@pytest.mark.every(2)
def test_signed_but_physically_impossible_rows_are_refused(tmp_path, monkeypatch):
    """The sender removed the check from their copy of kernrec."""
    ben, team = Person(tmp_path / "ben"), tmp_path / "team"
    team.mkdir()
    ben.measure(measurements("wednesday", 1, latency_s=1e-12))
    with pytest.raises(UsageError, match="have a latency of 1e-12 s"):
        ben.push(team)
    monkeypatch.setattr("kernrec.store.share.push.checked_segments", lambda groups, folder, title: [])
    with patch("kernrec.store.share.push.add_bundles"):
        assert ben.push(team) == 1
    report = Person(tmp_path / "reader").pull(team)
    assert report.measurements == 0
    assert "have a latency of 1e-12 s" in " ".join(report.left)


@pytest.mark.parametrize("limit", ["push.LARGEST_BUNDLE", "outgoing.LARGEST_SEGMENT"])
def test_push_refuses_rows_that_no_pull_would_read(tmp_path, monkeypatch, limit):
    ben, team = Person(tmp_path / "ben"), tmp_path / "team"
    team.mkdir()
    ben.measure(measurements("wednesday", 3))
    monkeypatch.setattr(f"kernrec.store.share.{limit}", 1000)
    with pytest.raises(UsageError, match=r"^3 \w+ .* take more than 1000 bytes; share parts of them with `[^\n]*`$"):
        ben.push(team)
    assert list(team.iterdir()) == []


def test_push_requires_a_signing_key(tmp_path):
    with Person(tmp_path).at_work(), pytest.raises(UsageError, match="`kernrec db trust --own` makes one"):
        Signer.of(key_file())
