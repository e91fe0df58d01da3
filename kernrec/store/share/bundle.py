"""Bundles: written to a place, read from one, and their rows taken. A push to a remote is a bundle, too."""

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from kernrec.errors import UsageError
from kernrec.store.database import Database
from kernrec.store.intake import add_checked, adding_to
from kernrec.store.keys import LARGEST_SIGNATURE, Signer, signer_of
from kernrec.store.reader import checked_segments
from kernrec.store.share.manifest import (
    LARGEST_MANIFEST,
    TABLES,
    Manifest,
    Model,
    Retraction,
    Segment,
    parse_manifest,
)
from kernrec.store.share.place import MANIFEST, Folder, Place, ZipFile
from kernrec.store.share.privacy import PRIVATE
from kernrec.util.scratch import scratch_folder

_MOST_UNPACKED = 4
"""Times the bytes of a zip file: files in it are stored, and other programs pack Parquet little smaller."""
Document = TypeVar("Document", bound=Manifest | Retraction)


@dataclass(frozen=True)
class Bundle:
    """A bundle at a place, of which only the manifest was read."""

    place: Place
    manifest: Manifest
    signer: str | None
    """Public key of a valid signature; None for an unsigned bundle. Whether to trust it is for the caller."""


def write_bundle(place: Place, manifest: Manifest, files: Mapping[str, Path], signer: Signer | None = None) -> Manifest:
    """Write a bundle: its segments and models first, then the signature, and the manifest last.

    Args:
        files: by name (`Segment.name`, `Model.name`) the files that the place may lack.
        signer: whose bundle it is; None: it stays unsigned.

    Returns:
        The manifest as it was written, with its owner.
    """
    write_parts(place, manifest, files)
    owned = replace(manifest, owner=signer.key if signer else "")
    write_documents(place, signed(MANIFEST, owned.to_bytes(), signer))
    return owned


def write_parts(place: Place, manifest: Manifest, files: Mapping[str, Path], there: Collection[str] = ()) -> None:
    """Write the segments and models of a bundle, apart from those whose names are in `there`."""
    for item in manifest.items:
        if item.name not in there:
            place.write(item.name, files[item.name])


def signed(name: str, content: bytes, signer: Signer | None) -> dict[str, bytes]:
    """The files of a document by name, its signature first: whoever sees the document can check it."""
    signature = {} if signer is None else {_signature_name(name): signer.sign(content)}
    return signature | {name: content}


def write_documents(place: Place, files: Mapping[str, bytes]) -> None:
    """Write small files in this order."""
    with scratch_folder() as folder:
        file = folder / "document"
        for name, content in files.items():
            file.write_bytes(content)
            place.write(name, file)


def read_signed(place: Place, name: str, parse: Callable[[bytes, str], Document]) -> tuple[Document, dict[str, bytes]]:
    """A document of a place, checked, and its files by name.

    Raises:
        UsageError: if it is not what `parse` reads, or not signed by its owner.
    """
    content = b"".join(place.read(name, LARGEST_MANIFEST))
    if name != MANIFEST and name != f"manifests/{hashlib.sha256(content).hexdigest()}.json":
        raise UsageError(f"{name} of {place.title} has another content than its name says")
    document = parse(content, f"{name} of {place.title}")
    files = {name: content}
    if document.owner:
        signature = b"".join(place.read(_signature_name(name), LARGEST_SIGNATURE))
        if signer_of(content, signature, place.title) != document.owner:
            raise UsageError(f"{name} of {place.title} is not signed by its owner")
        files = {_signature_name(name): signature} | files
    return document, files


def read_bundle(place: Place) -> Bundle:
    """The bundle at a place: its manifest checked, and its signature, if it has an owner.

    Raises:
        UsageError: for anything else than a bundle, and for a signature that does not fit.
    """
    manifest, _ = read_signed(place, MANIFEST, parse_manifest)
    if isinstance(place, ZipFile) and manifest.size > _MOST_UNPACKED * place.path.stat().st_size:
        raise UsageError(f"{place.title} unpacks to {manifest.size} bytes, more than rows of its size can")
    return Bundle(place, manifest, manifest.owner or None)


def sign_bundle(place: Folder | ZipFile, signer: Signer) -> None:
    """Sign a bundle that nobody has signed yet; raises `UsageError` if somebody else has."""
    bundle = read_bundle(place)
    if bundle.signer not in (None, signer.key):
        raise UsageError(f"{place.title} is signed already, by {bundle.signer}")
    files = signed(MANIFEST, replace(bundle.manifest, owner=signer.key).to_bytes(), signer)
    if isinstance(place, Folder):
        write_documents(place, files)
        return
    with tempfile.TemporaryDirectory(prefix=f".{place.path.name}.", dir=place.path.parent) as folder:
        whole = ZipFile(Path(folder) / "signed.zip")
        for item in bundle.manifest.items:
            fetch(place, item, file := Path(folder) / item.sha256)
            whole.write(item.name, file)
        write_documents(whole, files)
        whole.path.replace(place.path)


def import_bundle(database: Database, bundle: Bundle, note: Callable[[str], object] = str) -> int:
    """Add the rows of a bundle that are not in a database yet, all or nothing; returns how many were new.

    Rows that are the database's own, and came back without their private columns, are not new. `note` is given a line
    about each kind of retraction that was left because nobody trusted signed it.

    Raises:
        UsageError: if a file is not what the manifest says, or a row cannot be taken.
    """
    with scratch_folder() as checked:
        take_rows(bundle.place, bundle.manifest.segments, checked)
        return add_checked(database, checked, note, bundle.signer or "", PRIVATE)


def import_to(path: Path, bundle: Bundle, note: Callable[[str], object] = str) -> int:
    """Add the rows of a bundle as `import_bundle` does to the database at a path, which is not open meanwhile."""
    with scratch_folder() as checked:
        take_rows(bundle.place, bundle.manifest.segments, checked)
        with adding_to(path, checked) as database:
            return add_checked(database, checked, note, bundle.signer or "", PRIVATE)


def take_rows(place: Place, segments: Iterable[Segment], folder: Path) -> None:
    """Write the rows of a place's segments to a folder, as `exchange.add_rows` takes them, once all were checked.

    Configs and problems that measurements refer to must be among them. The folder is private to this program.

    Raises:
        UsageError: if a file is not what the manifest says, or a row cannot be taken.
    """
    take_groups([(place, segments)], folder, place.title)


def take_groups(groups: Sequence[tuple[Place, Iterable[Segment]]], folder: Path, title: str) -> None:
    """The same of several bundles at once, each complete in itself; `exchange.SOURCES` says by number which of them a
    measurement is in.

    title: of all of them, in messages.
    """
    with scratch_folder() as temporary:
        files: list[dict[str, list[Path]]] = []
        wanted = [list(dict.fromkeys(segments)) for _, segments in groups]
        for (place, _), segments in zip(groups, wanted, strict=True):
            files.append({table: [] for table in TABLES})
            for segment in segments:
                file = temporary / segment.sha256
                if not file.exists():
                    fetch(place, segment, file)
                files[-1][segment.table].append(file)
        counts = checked_segments(files, folder, title)
    for (place, _), segments, count in zip(groups, wanted, counts, strict=True):
        for table in TABLES:
            if count[table] != sum(each.rows for each in segments if each.table == table):
                raise UsageError(f"{place.title}: it has not as many rows as its manifest says")


def _signature_name(name: str) -> str:
    return name.removesuffix(".json") + ".sig"


def fetch(place: Place, item: Segment | Model, target: Path) -> None:
    """Copy a segment or model from a place; raises `UsageError` if its size or hash is not that of the manifest."""
    digest = hashlib.sha256()
    with target.open("xb") as file:
        for piece in place.read(item.name, item.size):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != item.sha256:
        raise UsageError(f"{item.name} of {place.title} has another content than its name says")
