"""Write, read and import bundles of rows."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.store.intake import adding_to
from kernrec.store.keys import LARGEST_SIGNATURE, Signer, signer_of
from kernrec.store.reader import checked_segments
from kernrec.store.share.manifest import LARGEST_DOCUMENT, TABLES, Manifest, Segment, parse_manifest
from kernrec.store.share.outgoing import PRIVATE
from kernrec.store.share.place import MANIFEST, Place, ZipFile
from kernrec.util.files import scratch_folder

_MOST_UNPACKED = 4
"""Maximum ratio of unpacked size to zip size. The Parquet files in a zip file are already compressed."""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest has been read, but not its rows."""

    place: Place
    manifest: Manifest
    content: bytes


def write_bundle(place: Place, manifest: Manifest, files: Mapping[str, Path], signer: Signer) -> Manifest:
    """Write a bundle, and return its manifest with the owner.

    Args:
        manifest: Manifest without an owner.
        files: Paths of the segments' files, keyed by `Segment.name`.
    """
    for segment in manifest.segments:
        place.write(segment.name, files[segment.name])
    owned = replace(manifest, owner=signer.key)
    write_content(place, _signature_name(MANIFEST), signer.sign(owned.to_bytes()))
    write_content(place, MANIFEST, owned.to_bytes())
    return owned


def write_content(place: Place, name: str, content: bytes) -> None:
    with scratch_folder() as folder:
        (file := folder / "document").write_bytes(content)
        place.write(name, file)


def read_bundle(place: Place, name: str = MANIFEST) -> Bundle:
    """Read the manifest of a bundle. Raise `UsageError` if the manifest or its signature is not valid."""
    manifest, content = read_signed(place, name, parse_manifest)
    if isinstance(place, ZipFile) and manifest.size > _MOST_UNPACKED * place.path.stat().st_size:
        raise UsageError(f"{place.title} unpacks to {manifest.size} bytes, more than its rows need")
    return Bundle(place, manifest, content)


def read_signed(place: Place, name: str, parse: Callable[[bytes, str], Any]) -> tuple[Any, bytes]:
    """Read a document and check its signature. Return (parsed document, bytes of the document).

    `parse` gets the bytes and a title for messages. Raise `UsageError` if the document's owner did not sign the
    bytes.
    """
    content = b"".join(place.read(name, LARGEST_DOCUMENT))
    document = parse(content, f"{name} of {place.title}")
    if not document.owner:
        raise UsageError(f"{name} of {place.title} is not signed; `kernrec db export --bundle` writes a signed one")
    signature = b"".join(place.read(_signature_name(name), LARGEST_SIGNATURE))
    if signer_of(content, signature, place.title) != document.owner:
        raise UsageError(f"{name} of {place.title} is not signed by its owner")
    return document, content


def import_to(path: Path, bundle: Bundle) -> int:
    """Add the rows of a bundle to the database at `path`, and return the number of new rows. Add nothing if an error
    occurs.

    A row is not new if it differs from a stored row only in private columns.

    Raises:
        UsageError: A file does not match the manifest, or a row is refused.
    """
    with scratch_folder() as checked:
        take_groups([bundle], checked, bundle.place.title)
        with adding_to(path, checked) as database:
            return database.add_from(checked, apart_from=PRIVATE, signer=bundle.manifest.owner)


def take_groups(bundles: Sequence[Bundle], folder: Path, title: str, *, placed: bool = False) -> None:
    """Check the rows of bundles, and write them to a folder for `exchange.add_rows`.

    Each bundle must contain the configs and problems of its measurements. The file `exchange.SOURCES` lists which
    bundles contain each measurement, as indices in `bundles`.

    Args:
        bundles: At least one bundle.
        folder: Private folder for the checked rows.
        title: Name for all bundles together, in messages.
        placed: Whether the bundles were shared. Then replays of recordings are an error, and all measurements
            must be of the GPU in the manifest.

    Raises:
        UsageError: A file does not match the manifest, or a row is refused.
    """
    with scratch_folder() as temporary:
        files: list[dict[str, list[Path]]] = []
        for bundle in bundles:
            files.append({table: [] for table in TABLES})
            for segment in dict.fromkeys(bundle.manifest.segments):
                file = temporary / segment.sha256
                if not file.exists():
                    fetch(bundle.place, segment, file)
                files[-1][segment.table].append(file)
        groups = checked_segments(files, folder, title)
    for bundle, group in zip(bundles, groups, strict=True):
        segments = set(bundle.manifest.segments)
        for table in TABLES:
            if group["rows"][table] != sum(each.rows for each in segments if each.table == table):
                raise UsageError(f"{bundle.place.title}: its number of rows differs from its manifest")
        if placed and group["replayed"]:
            raise UsageError("its rows were replayed from a recording, so they are not measurements")
        if placed and group["gpus"] != sorted(bundle.manifest.provenance.get("gpus", [])):
            rows = ", ".join(group["gpus"] or ["no GPU"])[:100]
            raise UsageError(f"its rows are of {rows}, but its manifest states other GPUs")


def fetch(place: Place, item: Segment, target: Path) -> None:
    """Copy a segment of a bundle to the new file `target`. Raise `UsageError` if its size or hash is wrong."""
    digest = hashlib.sha256()
    with target.open("xb") as file:
        for piece in place.read(item.name, item.size):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != item.sha256:
        raise UsageError(f"{item.name} of {place.title} has content that does not match its name")


def _signature_name(name: str) -> str:
    return name.removesuffix(".json") + ".sig"
