"""Bundles: written to a place, read from one, and their rows taken."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.database import Database
from kernrec.store.intake.checked_rows import checked_segments
from kernrec.store.share.manifest import LARGEST_MANIFEST, TABLES, Manifest, Model, Segment
from kernrec.store.share.place import MANIFEST, SIGNATURE, Place
from kernrec.store.share.privacy import PRIVATE
from kernrec.store.share.signature import LARGEST_SIGNATURE, signer_of


@dataclass(frozen=True)
class Bundle:
    """A bundle at a place, of which only the manifest was read."""

    place: Place
    manifest: Manifest
    signer: str | None
    """Public key of a valid signature; None for an unsigned bundle. Whether to trust it is for the caller."""


def write_bundle(
    place: Place,
    manifest: Manifest,
    files: Mapping[str, Path],
    sign: Callable[[bytes], bytes] | None = None,
) -> None:
    """Write a bundle: its segments and models first, then the signature, and the manifest last.

    Args:
        place: where to.
        manifest: what the bundle is made of.
        files: by name (`Segment.name`, `Model.name`) the files that the place may lack.
        sign: gives the content of the signature file for the bytes of the manifest; None: the bundle stays unsigned.
    """
    for name in [segment.name for segment in manifest.segments] + [model.name for model in manifest.models]:
        place.write(name, files[name])
    content = manifest.to_bytes()
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        for name, data in ((SIGNATURE, sign(content) if sign else None), (MANIFEST, content)):
            if data is not None:
                (file := Path(folder) / name).write_bytes(data)
                place.write(name, file)


def read_bundle(place: Place) -> Bundle:
    """The bundle at a place: its manifest checked, and its signature, if it has one.

    Raises:
        UsageError: for anything else than a bundle, and for a signature that does not fit.
    """
    content = b"".join(place.read(MANIFEST, LARGEST_MANIFEST))
    manifest = Manifest.from_bytes(content, f"{MANIFEST} of {place.title}")
    signer = None
    if SIGNATURE in place.names():
        signer = signer_of(content, b"".join(place.read(SIGNATURE, LARGEST_SIGNATURE)), place.title)
    return Bundle(place, manifest, signer)


def import_bundle(database: Database, bundle: Bundle, segments: Iterable[Segment] | None = None) -> int:
    """Add the rows of a bundle that are not in a database yet, all or nothing; returns how many were new.

    Rows that are the database's own, and came back without their private columns, are not new.

    Args:
        database: to add to.
        bundle: whose rows.
        segments: only these of its segments; None: all. Rows refer to configs and problems of the same bundle.

    Raises:
        UsageError: if a file is not what the manifest says, or a row cannot be taken.
    """
    wanted = bundle.manifest.segments if segments is None else tuple(segments)

    def take(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="kernrec-") as temporary:
            files: dict[str, list[Path]] = {table: [] for table in TABLES}
            for segment in wanted:
                file = Path(temporary) / segment.sha256
                fetch(bundle.place, segment, file)
                files[segment.table].append(file)
            counts = checked_segments(files, folder, bundle.place.title)
        stated = {table: sum(each.rows for each in wanted if each.table == table) for table in TABLES}
        if any(counts[table] != rows for table, rows in stated.items()):
            raise UsageError(f"{bundle.place.title}: it has not as many rows as its manifest says")

    return database.add_from(take, apart_from=PRIVATE)


def fetch(place: Place, item: Segment | Model, target: Path) -> None:
    """Copy a segment or model from a place; raises `UsageError` if its size or hash is not that of the manifest."""
    digest = hashlib.sha256()
    with target.open("xb") as file:
        for piece in place.read(item.name, item.size):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != item.sha256:
        raise UsageError(f"{item.name} of {place.title} has another content than its name says")
