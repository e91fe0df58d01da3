"""Test that commands refuse hostile files in one line, and store nothing from the files."""

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kernrec.store.keys import Signer, key_file
from kernrec.store.share.bundle import write_bundle
from kernrec.store.share.manifest import Manifest, Segment, Withdrawal, bundle_name
from kernrec.store.share.place import ZipFile
from tests.helpers.command import run_apart, run_here
from tests.helpers.reading import reading_here
from tests.helpers.sharing import GPU, Person, measurements, store_measurements


@pytest.fixture
def untrusted(tmp_path):
    person = Person(tmp_path / "stranger")
    person.key()
    return person


@pytest.fixture
def user(tmp_path):
    person = Person(tmp_path / "user")
    person.measure(measurements("mine", 3))
    return person


def ask(person: Person, *words: object) -> "CompletedProcess[str]":
    with reading_here():
        return run_here(*words, variables=os.environ | person.variables | {"KERNREC_DB": str(person.database)})


def refusal(done: "CompletedProcess[str]") -> str:
    line = done.stderr.strip().split("\n")[-1]
    assert done.returncode == 2, done
    assert line.startswith("kernrec: ")
    assert line.isprintable()
    return line


@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes in folders")
@pytest.mark.parametrize(("kind", "reason"), [("pipe", "is a named pipe"), ("loop", "symbolic links")])
def test_unreadable_model_file_adds_a_note(user, kind, reason):
    (card := user.database.parent / "models" / "matmul.json").parent.mkdir()
    if kind == "pipe":
        os.mkfifo(card)
    else:
        card.symlink_to(card.name)
    assert any(str(card) in line and reason in line for line in notes_of_recommend(user))


@pytest.mark.skipif(os.name == "nt", reason="links need permission")
def test_models_path_that_is_not_a_folder_adds_a_note(user):
    (models := user.database.parent / "models").symlink_to("models")
    assert f"note: {models} is not a folder; your models are not used" in notes_of_recommend(user)


def notes_of_recommend(user):
    done = ask(user, "recommend", "--op", "matmul", "--gpu", "t4", "--shape", "m=64,n=64,k=64", "--db", user.database)
    assert done.returncode == 0, done
    return done.stderr.splitlines()


CHILDREN = {
    "merge": ("db", "merge", "theirs.duckdb"),
    "collect": ("collect", "--replay", "shipped", "--budget", "1s", "--db", "new.duckdb"),
    "check": ("check", "kernel.cu", "x=zeros:f32[64]", "--grid", "1", "--block", "64"),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", list(CHILDREN))
def test_child_processes_import_nothing_from_the_working_folder(user, tmp_path, name):
    (folder := tmp_path / "downloads").mkdir()
    store_measurements(folder / "theirs.duckdb", measurements("theirs", 1))
    (folder / "kernel.cu").write_text('extern "C" __global__ void f(float* x) { x[threadIdx.x] = 1; }')
    for module in ("json", "queue", "signal", "tempfile", "numpy", "duckdb", "multiprocessing"):
        (folder / f"{module}.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    done = run_apart(*CHILDREN[name], cwd=folder, variables=user.variables)
    assert done.returncode == 0, done
    assert not (folder / "ran").exists()


@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes in folders")
@pytest.mark.parametrize("words", [("merge",), ("import",), ("info", "--db")])
def test_pipe_is_refused_without_waiting(user, tmp_path, words):
    os.mkfifo(pipe := tmp_path / "pipe.zip")
    assert "is a named pipe" in refusal(run_apart("db", *words, pipe, variables=user.variables))


def signed_bundle(untrusted: Person, path: Path, parts: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write an index with a bundle that an untrusted user signed. `parts` maps each table to its segment's content."""
    segments = tuple(Segment(table, sha256(content).hexdigest(), len(content), 1) for table, content in parts.items())
    manifest = Manifest(segments, (), "2026-03-01T12:00:00", "kernrec", provenance={"gpus": [GPU]})
    files = {}
    path.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        files[segment.name] = path / segment.sha256
        files[segment.name].write_bytes(parts[segment.table])
    with untrusted.at_work():
        written = write_bundle(ZipFile(whole := path / "whole.zip"), manifest, files, Signer.of(key_file()))
    target = path / bundle_name(written)
    target.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(target, "w", method) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    for file in (whole, *files.values()):
        file.unlink()
    return target


def test_bundle_that_unpacks_to_1000_times_its_size_is_refused(user, untrusted, tmp_path):
    bomb = signed_bundle(untrusted, tmp_path / "index", {"measurement": b"\0" * 2**25}, zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 2**16
    assert "unpacks to 33554432 bytes" in refusal(ask(user, "db", "import", bomb, "--untrusted"))
    done = ask(user, "db", "verify", tmp_path / "index")
    assert (done.returncode, done.stdout) == (1, "0 bundles, 1 refused\n")
    done = ask(user, "db", "pull", tmp_path / "index", "--untrusted")
    assert "index: 0 new measurements" in done.stdout
    assert "unpacks to 33554432 bytes, more than its rows need" in done.stderr


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_bundle_is_refused_in_one_line(user, untrusted, tmp_path, method):
    """Each decompressor raises different exceptions for damaged data."""
    path = signed_bundle(untrusted, tmp_path / "index", {"measurement": os.urandom(300)}, method)
    content = path.read_bytes()
    for place in range(30, len(content), len(content) // 20):
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 0x5A, content[place - 1] ^ 0xFF]) + content[place + 2 :]
        )
        refusal(ask(user, "db", "import", path, "--untrusted"))


def test_hostile_file_names_in_an_index_are_refused_and_escaped(user, untrusted, tmp_path):
    index = tmp_path / "index"
    good = signed_bundle(untrusted, tmp_path / "elsewhere", {"measurement": b"no rows"})
    (index / "a100-pcie").mkdir(parents=True)
    (index / "a100-pcie" / good.name).symlink_to(good)
    for name in ("a\nb", "::error::x", "a\x1b[2J.zip", "\u202egnp.zip"):
        (index / "a100-pcie" / name).write_text("x")
    done = ask(user, "db", "verify", index)
    lines = done.stderr.strip("\n").split("\n")
    assert done.returncode == 1
    assert all(line.isprintable() and not line.startswith("::") for line in lines)
    assert sum("refused: " in line for line in lines) == 5
    assert any(f"a100-pcie/{good.name}: refused: it is not a file" in line for line in lines)
    (index / GPU).symlink_to(good.parent)
    assert f"{GPU} is a link to a folder" in refusal(ask(user, "db", "verify", index))


def test_withdrawal_with_an_impossible_date_does_not_block_a_pull(user, untrusted, tmp_path):
    (team := tmp_path / "team").mkdir()
    with reading_here():
        Person(tmp_path / "honest").measure(measurements("theirs", 2))
        Person(tmp_path / "honest").push(team)
    with untrusted.at_work():
        signer = Signer.of(key_file())
    (team / "withdrawn").mkdir()
    for moment in ("2026-99-99T99:99:99", "9999-12-31T23:59:59"):
        line = Withdrawal({"x": ["0" * 32]}, moment, "kernrec", "x", signer.key).to_bytes()
        content = line + b"\n" + signer.sign(line)
        (team / "withdrawn" / f"{sha256(content).hexdigest()}.json").write_bytes(content)
    done = ask(user, "db", "pull", team, "--untrusted")
    assert (done.returncode, done.stdout) == (0, f"{team}: 2 new measurements\n")
    assert "is not a withdrawal: " in done.stderr


@pytest.mark.parametrize("document", [
    "[" * 100_000, '{"format":"kernrec bundle","version":NaN}',
    '{"format":"kernrec bundle","version":' + "9" * 5000 + "}", '{"format":"kernrec bundle","version":1e999}',
    json.dumps({"format": "kernrec bundle", "version": 1, "provenance": {}, "segments": {"a": 1}, "models": []}),
    '{"format":"kernrec bundle","format":"kernrec retraction","version":1,"rows":["x"]}', '"\\ud800"',
])  # fmt: skip
def test_empty_manifest_is_refused_in_one_line(user, tmp_path, document):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("manifest.json", document)
    assert "is not the manifest of a bundle" in refusal(ask(user, "db", "import", tmp_path / "a.zip", "--untrusted"))


COMMANDS = {
    "db.duckdb.wal": ("db", "info", "--db", "db.duckdb"),
    "merged.duckdb.wal": ("db", "merge", "merged.duckdb"),
    "db.duckdb.journal.sqlite": ("collect", "--replay", "shipped", "--budget", "1s", "--db", "db.duckdb"),
    "card.toml": ("recommend", "--op", "matmul", "--gpu", "card.toml"),
    "spec.json": ("analyze", "kernel.cu", "--spec", "spec.json", "--gpu", "t4"),
    "kernel.cu": ("check", "kernel.cu"),
    "kernel.ptx": ("check", "kernel.ptx"),
    "layers.csv": ("recommend", "--workload", "layers.csv", "--gpu", "t4"),
    "layers.toml": ("recommend", "--workload", "layers.toml", "--gpu", "t4"),
    "results.json": ("db", "import", "results.json"),
}


@pytest.mark.every(3)
@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes in folders")
@pytest.mark.parametrize("kind", ["pipe", "loop", "zero"])
@pytest.mark.parametrize("name", list(COMMANDS))
def test_input_that_is_not_a_file_is_refused_at_once(user, tmp_path, name, kind):
    (path := tmp_path / name).parent.mkdir(exist_ok=True)
    if name.endswith(".wal"):
        shutil.copyfile(user.database, path.with_suffix(""))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if kind == "loop" else "/dev/zero")
    line = refusal(run_apart(*COMMANDS[name], cwd=tmp_path, variables=user.variables))
    assert path.name in line
    if kind == "pipe":
        assert "is a named pipe; expected a regular file" in line
