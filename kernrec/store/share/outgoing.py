"""What would leave a machine: rows of a database as segments, models on request, and the manifest that lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.database import Database
from kernrec.store.share.manifest import LICENCE, TEXT, Manifest, Model
from kernrec.store.share.segments import Selection, provenance, taken_out, write_segments
from kernrec.version import __version__

MADE_BY = f"kernrec {__version__}"


@dataclass(frozen=True)
class Outgoing:
    """What would leave."""

    manifest: Manifest
    files: Mapping[str, Path]
    """By name, the files of the manifest's segments and models."""
    changed: Mapping[str, int]
    """By column, in how many measurements it leaves in another form than it has here."""
    retracted: int = 0
    """Measurements that left earlier and are taken back."""

    @property
    def measurements(self) -> int:
        """How many would leave."""
        return self.manifest.rows["measurement"]


def outgoing(
    database: Database,
    selection: Selection,
    secret: str,
    folder: Path,
    licence: str | None = None,
    models: Mapping[Path, Model] | None = None,
) -> Outgoing:
    """Write what would leave of a database to a folder.

    Args:
        database: to read.
        selection: which measurements.
        secret: of the database (`privacy.secret_of`).
        folder: for the segments.
        licence: of the rows; None: `LICENCE`.
        models: by file, the models and calibrations that go with the rows.

    Raises:
        UsageError: if others could not read the manifest.
    """
    if licence is not None and not TEXT.fullmatch(licence):
        raise UsageError("--licence: one line of at most 200 characters is expected")
    segments = write_segments(database, selection, secret, folder)
    models = models or {}
    manifest = Manifest(
        tuple(segments),
        tuple(models.values()),
        now(),
        MADE_BY,
        licence or LICENCE,
        provenance(database, selection),
        database.schema,
    )
    Manifest.from_bytes(manifest.to_bytes(), "what would leave")  # what others refuse stays here
    files = {segment.name: folder / f"{segment.sha256}.parquet" for segment in segments}
    files |= {model.name: file for file, model in models.items()}
    return Outgoing(manifest, files, taken_out(database, selection, secret))


def now() -> str:
    """The time as a manifest has it, UTC."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
