"""Test bundles: their content, their signatures, and checks of all bundles in a location."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.keys import Signer, make_key
from kernrec.store.measurement import Measurement
from kernrec.store.share.bundle import read_bundle, write_bundle
from kernrec.store.share.manifest import Manifest
from kernrec.store.share.outgoing import Selection, outgoing
from kernrec.store.share.place import Folder, Place, ZipFile, place_at
from kernrec.store.share.push import check_place
from tests.helpers.command import run_here
from tests.helpers.paths import ROOT
from tests.helpers.sharing import (
    GPU,
    PROBLEM,
    UUID_HASH,
    Person,
    import_bundle,
    measurement,
    measurements,
    store_measurements,
)

pytestmark = pytest.mark.usefixtures("read_here")


ROWS = [
    measurement(position=0),
    measurement(position=1, config={"block_m": 32}, gpu="rtx4090", measured_at="2026-04-01T12:00:00"),
    measurement(position=2, outcome="compile", latency_s=None, error="/home/someone/work/a.cu(3): error: /usr/b.h no"),
]


@pytest.fixture
def own(tmp_path):
    return store_measurements(tmp_path / "own.duckdb", ROWS)


def bundled(own: Path, place: Place, selection: Selection | None = None, signer: Signer | None = None) -> Manifest:
    """Return the manifest of a bundle of a database. The default signer uses a key stored beside the database."""
    if not (key := own.parent / "default key").exists():
        make_key(key)
    (folder := own.parent / "segments of the bundle").mkdir(exist_ok=True)
    with Database.open(own) as database:
        leaving = outgoing(database, selection or Selection(), "secret", folder)
    return write_bundle(place, leaving.manifest, leaving.files, signer or Signer.of(key))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_bundled_rows_are_imported_unchanged_and_only_once(own, tmp_path, name):
    manifest = bundled(own, place_at(tmp_path / name))
    bundle = read_bundle(place_at(tmp_path / name))
    assert bundle.manifest == manifest
    assert bundle.manifest.owner == manifest.owner
    assert bundle.manifest.rows == {"config": 2, "problem": 1, "profile": 0, "measurement": 3, "retraction": 0}
    assert bundle.manifest.provenance["gpus"] == ["h200-sxm", "rtx4090"]
    with Database.memory() as database:
        assert import_bundle(database, bundle) == 6
        assert import_bundle(database, bundle) == 0
        assert database.altered() == []
        (answer,) = database.measured("h200-sxm", ["matmul_simt"], PROBLEM.key)
        assert answer.latency_s == 1e-3


def test_bundle_omits_uuids_paths_and_names(own, tmp_path):
    bundled(own, Folder(tmp_path / "bundle"))
    with Database.memory() as database:
        import_bundle(database, read_bundle(Folder(tmp_path / "bundle")))
        rows = database.rows("measurement")
    hashes = {row["device_uuid_hash"] for row in rows}
    assert len(hashes) == 1  # rows of one GPU still share a hash
    assert hashes != {UUID_HASH}
    assert {row["error"] for row in rows} == {None, "a.cu(3): error: b.h no"}


@pytest.mark.parametrize(
    ("selection", "measurements"),
    [(Selection(gpu="rtx4090"), 1), (Selection(op="conv2d"), 0), (Selection(kernel="matmul_simt"), 3)],
)
def test_bundle_contains_the_selected_rows(own, tmp_path, selection, measurements):
    assert bundled(own, Folder(tmp_path / "bundle"), selection).rows["measurement"] == measurements


def test_signature_names_its_signer_and_fits_only_its_manifest(own, tmp_path, refuses):
    public = make_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    place = Folder(tmp_path / "bundle")
    bundled(own, place, signer=Signer.of(tmp_path / "key"))
    assert read_bundle(place).manifest.owner == public
    file = tmp_path / "bundle" / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"CC0-1.0", b"CC0-1.1"))
    refuses(lambda: read_bundle(place))


def edited(own: Path, tmp_path: Path, edit: Callable[[dict], object]) -> Folder:
    place = Folder(tmp_path / "bundle")
    bundled(own, place)
    file = tmp_path / "bundle" / "manifest.json"
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))
    signer = Signer.of(tmp_path / "default key")
    (tmp_path / "bundle" / "manifest.sig").write_bytes(signer.sign(file.read_bytes()))
    return place


def test_untrusted_manifest_is_refused_in_one_line(own, tmp_path, refuses):
    refuses(lambda edit: read_bundle(edited(own, tmp_path, edit)), [
        lambda d: d.update(version=99), lambda d: d.update(format="zip"),
        lambda d: d["segments"][0].update(sha256="../../etc/passwd"),
        lambda d: d["segments"][0].update(table="migration"), lambda d: d["segments"][0].update(size=10**15),
        lambda d: d["segments"][0].update(rows=-1), lambda d: d.update(licence="a\x1b[2J"),
        lambda d: d.update(segments={}), lambda d: d.update(models=[{"file": "../x", "sha256": "0" * 64, "size": 1}]),
        lambda d: d.pop("provenance"), lambda d: d.update(owner=""),
    ])  # fmt: skip


def test_segment_that_contradicts_its_hash_is_refused(own, tmp_path, refuses):
    manifest = bundled(own, Folder(tmp_path / "bundle"))
    file = tmp_path / "bundle" / manifest.segments[0].name
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with Database.memory() as database:
        refuses(lambda: import_bundle(database, read_bundle(Folder(tmp_path / "bundle"))))
        assert set(database.counts().values()) == {0}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT * REPLACE (latency_s / 1000 AS latency_s)", "do not match their key"),
        ("SELECT *, 1 AS more", "has a column 'more' of type INTEGER"),
        ("SELECT * REPLACE (latency_s::VARCHAR AS latency_s)", "has a column 'latency_s' of type VARCHAR"),
        ("SELECT * EXCLUDE session", "have no session"),
    ],
)
def test_untrusted_rows_are_checked(own, tmp_path, query, says):
    """The segment's hash and the manifest are valid. Only the rows are wrong."""

    def forge(document: dict) -> None:
        (segment,) = (each for each in document["segments"] if each["table"] == "measurement")
        old = tmp_path / "bundle" / "segments" / f"{segment['sha256']}.parquet"
        duckdb.execute(f"COPY ({query} FROM read_parquet('{old}')) TO '{tmp_path / 'forged'}' (FORMAT parquet)")
        content = (tmp_path / "forged").read_bytes()
        segment |= {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        (old.parent / f"{segment['sha256']}.parquet").write_bytes(content)

    place = edited(own, tmp_path, forge)
    with Database.memory() as database, pytest.raises(UsageError) as caught:
        import_bundle(database, read_bundle(place))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_zip_file_that_unpacks_to_too_much_is_refused(tmp_path, refuses):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * 2**23)
    refuses(lambda: read_bundle(ZipFile(tmp_path / "bomb.zip")))


def test_zip_file_with_an_endless_listing_is_refused_at_once(tmp_path, refuses):
    with zipfile.ZipFile(tmp_path / "long.zip", "w") as archive:
        for number in range(700):
            archive.writestr(zipfile.ZipInfo(f"{number:06}{'a' * 6000}"), b"")
    refuses(lambda: read_bundle(ZipFile(tmp_path / "long.zip")))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 but no zip file", b"{}"])
def test_invalid_bundle_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UsageError, match="is not a bundle"):
        read_bundle(place_at(tmp_path / "a.zip"))
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        read_bundle(place_at(tmp_path))


def contribute(person: Person, folder: Path, rows: Sequence[Measurement]) -> Path:
    """Measure and push rows. Each bundle is a minute newer than the last bundle, because dates decide the order."""
    person.measure(rows)
    before = set(folder.glob("*/*.zip"))
    made_at = datetime(2026, 3, 2, 12, len(before))
    session = f"session = '{rows[0].session}'"
    with (
        patch("kernrec.store.share.outgoing.now", return_value=made_at.isoformat()),
        patch.object(Selection, "condition", lambda _: session),
    ):
        assert person.push(folder) == len(rows)
    (new,) = set(folder.glob("*/*.zip")) - before
    return new


@pytest.fixture
def folder(tmp_path):
    (path := tmp_path / "contributed").mkdir()
    return path


@pytest.mark.every(3)
def test_bundles_of_several_users_are_listed_pulled_and_compared(folder, tmp_path):
    for name, slower in (("ann", 1.0), ("ben", 1.0), ("cyd", 1.5)):
        contribute(Person(tmp_path / name), folder, measurements(name, 5, latency_s=1e-3 * slower))
    report = check_place(Folder(folder))
    assert (report.bundles, report.bad) == (3, {})
    (row,) = report.rows
    assert (row["gpu"], row["kernel"], row["configs"], row["rows"]) == (GPU, "matmul_simt", 5, 15)
    assert len(row["signers"]) == 3  # type: ignore[arg-type]
    assert Person(tmp_path / "reader").pull(folder).measurements == 15


@pytest.mark.every(3)
def test_each_invalid_bundle_is_reported_on_one_line(folder, tmp_path):
    ann, ben, reader = (Person(tmp_path / name) for name in ("ann", "ben", "reader"))
    good = contribute(ann, folder, measurements("monday", 3))
    replayed = contribute(ben, folder, measurements("replayed", 2, replayed=True))
    renamed = good.with_name(good.name.replace("2", "3", 1))
    shutil.copy(good, renamed)
    copied = contribute(ben, folder, measurements("monday", 3))
    broken = good.with_name(f"{good.name[:-16]}{'0' * 12}.zip")
    broken.write_bytes(good.read_bytes()[:-300])
    (folder / GPU / "notes.md").write_text("hello")
    changed = folder / GPU / "changed.zip"
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(changed, "w") as new:
        for each in old.namelist():
            content = old.read(each)
            new.writestr(each, content.replace(b"CC0-1.0", b"GPL-3.0") if each == "manifest.json" else content)
    target = good.with_name(f"{good.name[:-16]}{'1' * 12}.zip")
    changed.rename(target)
    bad = {name.partition("/")[2]: reason for name, reason in check_place(Folder(folder)).bad.items()}
    assert set(bad) == {replayed.name, renamed.name, copied.name, broken.name, "notes.md", target.name}
    assert "replayed from a recording" in bad[replayed.name]
    assert f"its name has to be {GPU}/{good.name}" in bad[renamed.name]
    assert f"3 rows of it are in {GPU}/{good.name} already" in bad[copied.name]
    assert "not a bundle" in bad[broken.name]
    assert "its name is not" in bad["notes.md"]
    assert "signature" in bad[target.name]
    assert not any(str(tmp_path) in reason for reason in bad.values())
    done = run_here("db", "verify", folder, "--list", home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("refused: ") == 6
    assert "1 bundle, 6 refused" in done.stdout
    assert json.loads((folder / "index.json").read_text()) == {"names": [f"{GPU}/{good.name}"]}
    left = reader.pull(folder).left
    assert {row["session"] for row in reader.pulled()} >= {"monday"}
    assert any(broken.name in line for line in left)


def test_contributed_datasets_pass_the_check():
    assert check_place(Folder(ROOT / "datasets/contributed")).bad == {}
