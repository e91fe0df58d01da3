"""Remotes of kernrec 0.1, and what it pulled, are read once more."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from kernrec import paths
from kernrec.store import Database, Stack
from kernrec.store.keys import Signer, key_file, write_settings
from kernrec.store.schema import migrations
from kernrec.store.share.outgoing import Selection, outgoing
from tests.helpers.refusals import Refuses
from tests.helpers.sharing import GPU, KERNEL, PROBLEM, Person, measurements, sessions

pytestmark = pytest.mark.usefixtures("read_here")


def publish(person: Person, remote: Path, document: dict[str, object]) -> None:
    """Sign a document as kernrec 0.1 did."""
    content = json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"
    name = remote / "manifests" / hashlib.sha256(content).hexdigest()
    name.parent.mkdir(parents=True, exist_ok=True)
    with person.at_work():
        name.with_suffix(".sig").write_bytes(Signer.of(key_file()).sign(content))
    name.with_suffix(".json").write_bytes(content)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A remote of kernrec 0.1 to which Alice has pushed three measurements, of which she took one back."""
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


def test_an_old_remote_is_pulled_with_a_line_and_not_pushed_to(remote: Path, tmp_path: Path, refuses: Refuses) -> None:
    bob = Person(tmp_path / "bob")
    report = bob.pull(remote)
    assert (report.measurements, report.withdrawn) == (3, 1)
    (line,) = report.left
    assert line.endswith("which is only read: `kernrec db push` to a new place moves your rows there")
    assert sessions(bob.pulled()) == [("monday", 1), ("monday", 2)]
    assert bob.pull(remote).left == []
    refuses(lambda: Person(tmp_path / "alice").push(remote))


def test_what_kernrec_0_1_pulled_answers_after_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two remotes; of the second, one row was taken back and is not there any more."""
    bob = Person(tmp_path / "bob")
    with bob.at_work():
        for number, name in enumerate(("team", "others")):
            path = paths.remotes() / name / "rows.duckdb"
            with monkeypatch.context() as earlier:
                earlier.setattr("kernrec.store.schema.migrations", lambda: migrations()[:10])
                shared = f"SELECT measurement_id, {number}::VARCHAR AS signer FROM db.measurement"
                with Database.open(path, read_only=False, create=True) as database:
                    database.add_measurements(measurements(name, 2 + number))
                    database.change(
                        [
                            "CREATE TABLE db.pulled (manifest VARCHAR, signer VARCHAR)",
                            f"CREATE TABLE db.origin AS {shared}",
                            "CREATE TABLE db.retracted (measurement_id VARCHAR, signer VARCHAR, likeness VARCHAR)",
                        ]
                    )
        write_settings("remotes.json", [{"name": name, "url": "/nowhere"} for name in ("team", "others")])
        answers = Stack().evidence(GPU, PROBLEM.op, [KERNEL], PROBLEM.key).measured
        assert sorted((answer.config["block_m"], answer.signers) for answer in answers) == [
            (1, ("0", "1")), (2, ("0", "1")), (3, ("1",)),
        ]  # fmt: skip
        with Database.open(paths.pulled()) as database:
            assert database.counts()["measurement"] == 5
            assert database.altered() == []
