"""Test the contents of a bundle, which rows its receiver stores, and which bundles are refused."""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from kernrec.errors import UsageError
from kernrec.store import Database
from kernrec.store.keys import Signer, make_key
from kernrec.store.share.bundle import read_bundle, write_bundle
from kernrec.store.share.manifest import Manifest
from kernrec.store.share.outgoing import Selection, outgoing
from kernrec.store.share.place import Folder, Place, ZipFile, place_at
from tests.helpers.sharing import PROBLEM, UUID_HASH, import_bundle, measurement

pytestmark = pytest.mark.usefixtures("read_here")
ROWS = [
    measurement(position=0),
    measurement(position=1, config={"block_m": 32}, gpu="rtx4090", measured_at="2026-04-01T12:00:00"),
    measurement(position=2, outcome="compile", latency_s=None, error="/home/someone/work/a.cu(3): error: /usr/b.h no"),
]


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.duckdb"
    with Database.open(path, read_only=False, create=True) as database:
        database.add_measurements(ROWS)
    return path


def bundled(own: Path, place: Place, selection: Selection | None = None, signer: Signer | None = None) -> Manifest:
    """Return the manifest of a bundle of a database; the default signer uses a key stored beside the database."""
    if not (key := own.parent / "default key").exists():
        make_key(key)
    (folder := own.parent / "segments of the bundle").mkdir(exist_ok=True)
    with Database.open(own) as database:
        leaving = outgoing(database, selection or Selection(), "secret", folder)
    return write_bundle(place, leaving.manifest, leaving.files, signer or Signer.of(key))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_bundled_rows_arrive_unchanged_and_once(own, tmp_path, name):
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


def rows_of(file: Path) -> list[dict[str, object]]:
    cursor = duckdb.execute(f"FROM read_parquet('{file}')")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.mark.parametrize(
    ("selection", "measurements"),
    [
        (Selection(gpu="rtx4090"), 1),
        (Selection(op="conv2d"), 0),
        (Selection(kernel="matmul_simt"), 3),
    ],
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
    """Return a bundle whose manifest was edited and signed again."""
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
    """The segment's hash and the manifest are valid; only the rows are wrong."""

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
