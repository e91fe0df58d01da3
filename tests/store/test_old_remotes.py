"""Test reading remotes of kernrec 0.1 and the rows that it pulled."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from kernrec import paths
from kernrec.store import Database, Stack
from kernrec.store.keys import Signer, key_file
from kernrec.store.share.outgoing import Selection, outgoing
from tests.helpers.sharing import Person, measurements, sessions

pytestmark = pytest.mark.usefixtures("read_here")


def publish(person: Person, remote: Path, document: dict[str, object]) -> None:
    content = json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"
    name = remote / "manifests" / hashlib.sha256(content).hexdigest()
    name.parent.mkdir(parents=True, exist_ok=True)
    with person.at_work():
        name.with_suffix(".sig").write_bytes(Signer.of(key_file()).sign(content))
    name.with_suffix(".json").write_bytes(content)


@pytest.fixture
def remote(tmp_path):
    """Create a remote of kernrec 0.1 with three measurements pushed by Alice, one of them withdrawn."""
    alice, path = Person(tmp_path / "alice"), tmp_path / "remote"
    key = alice.key()
    alice.measure(measurements("monday", 3))
    (scratch := tmp_path / "scratch").mkdir()
    with Database.open(alice.database) as database:
        leaving = outgoing(database, Selection(), "secret", scratch)
    (path / "segments").mkdir(parents=True)
    for name, file in leaving.files.items():
        shutil.copy(file, path / name)
        if any(each.table == "measurement" and each.name == name for each in leaving.manifest.segments):
            import duckdb

            query = f"SELECT measurement_id FROM read_parquet('{file}') WHERE position = 0"
            ((first,),) = duckdb.execute(query).fetchall()
    document = json.loads(leaving.manifest.to_bytes())
    publish(alice, path, document | {"owner": key, "remote": "0" * 32})
    retraction = {"format": "kernrec retraction", "version": 1, "rows": [first], "created_at": "2026-03-02T00:00:00"}
    publish(alice, path, retraction | {"made_by": "kernrec 0.1.0", "reason": "a fan", "owner": key})
    (path / "remote.json").write_text(json.dumps({"format": "kernrec remote", "identity": "0" * 32, "version": 1}))
    return path


def test_old_remote_is_pulled_with_a_note_and_refuses_push(remote, tmp_path, refuses):
    bob = Person(tmp_path / "bob")
    report = bob.pull(remote)
    assert (report.measurements, report.withdrawn) == (3, 1)
    (line,) = report.left
    assert line.endswith("which is only read: `kernrec db push` to a new place moves your rows there")
    assert sessions(bob.pulled()) == [("monday", 1), ("monday", 2)]
    assert bob.pull(remote).left == []
    refuses(lambda: Person(tmp_path / "alice").push(remote))


def test_pulled_rows_of_0_1_are_named_in_a_note(tmp_path):
    bob = Person(tmp_path / "bob")
    with bob.at_work():
        paths.remotes().mkdir(parents=True)
        (note,) = Stack().notes
    assert note == "what kernrec 0.1 pulled is not read: `kernrec db pull PLACE` pulls it again"
