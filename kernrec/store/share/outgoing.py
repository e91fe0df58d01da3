"""Write the rows that leave a machine: segments of selected measurements, and the manifest that lists the segments.

A segment is a Parquet file of rows of one table, named by a hash of its content. Private columns are changed
(privacy.py), so a row's key may change when it leaves.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.row_hash import key_expression
from kernrec.store.share.manifest import LICENCE, MOST_TEXTS, TEXT, Manifest, Segment, parse_manifest
from kernrec.store.share.privacy import PRIVATE, public_column
from kernrec.version import __version__

MADE_BY = f"kernrec {__version__}"
SEGMENT_ROWS = 250_000
"""Maximum rows of a segment; a measurement takes some 200 bytes."""


@dataclass(frozen=True)
class Selection:
    """Selection of measurements to share; a field that is None selects all."""

    gpu: str | None = None
    op: str | None = None
    kernel: str | None = None
    fresh: bool = False
    """Whether to select only measurements that `keep_fresh` stored."""

    def condition(self) -> str:
        """Return the selection as an SQL condition on `measurement JOIN problem`."""
        parts = [
            "measurement_id NOT IN (SELECT measurement_id FROM db.retraction)",
            "replayed IS DISTINCT FROM true",  # A replayed row only repeats a recording.
        ]
        for column, value in (("gpu", self.gpu), ("op", self.op), ("kernel", self.kernel)):
            if value is not None:
                parts.append(f"{column} = {quoted(value)}")
        if self.fresh:
            parts.append("measurement_id IN (FROM fresh)")
        return " AND ".join(parts)

    def source(self) -> str:
        """Return the SQL of the selection from `FROM` on; it follows `SELECT` and columns of `measurement` or the
        op."""
        return (
            "FROM db.measurement AS measurement JOIN (SELECT problem_id, op FROM db.problem) USING (problem_id) "
            f"WHERE {self.condition()}"
        )


@dataclass(frozen=True)
class Outgoing:
    """Rows that would leave the machine."""

    manifest: Manifest
    files: Mapping[str, Path]
    """Files of the manifest's segments, by name."""
    changed: Mapping[str, int]
    """Number of measurements with a changed value, by private column."""

    @property
    def measurements(self) -> int:
        """Number of measurements that would leave."""
        return self.manifest.rows["measurement"]

    def by_table(self, tables: Iterable[str]) -> dict[str, list[Path]]:
        """Return the segments' files by table."""
        segments = self.manifest.segments
        return {table: [self.files[each.name] for each in segments if each.table == table] for table in tables}


def outgoing(
    database: Database,
    selection: Selection,
    secret: str,
    folder: Path,
    licence: str | None = None,
) -> Outgoing:
    """Write the rows that would leave a database to a folder.

    Args:
        database: Database to read.
        selection: Measurements to write.
        secret: Secret of the database (`privacy.secret_of`).
        folder: Folder for the segments.
        licence: License of the rows; None: `LICENCE`.

    Raises:
        UsageError: Other people could not read the manifest.
    """
    if licence is not None and not TEXT.fullmatch(licence):
        raise UsageError("--licence: expected one line of at most 200 visible characters")
    segments = write_segments(database, selection, secret, folder)
    manifest = Manifest(
        tuple(segments),
        (),
        now(),
        MADE_BY,
        licence or LICENCE,
        provenance(database, selection),
        database.schema,
    )
    parse_manifest(manifest.to_bytes(), "what would leave")  # Rows that others would refuse stay here.
    files = {segment.name: folder / f"{segment.sha256}.parquet" for segment in segments}
    return Outgoing(manifest, files, taken_out(database, selection, secret))


def now() -> str:
    """Return the present UTC time in the format of a manifest."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"


def write_segments(database: Database, selection: Selection, secret: str, folder: Path) -> list[Segment]:
    """Write the selected measurements without private values, with their configs, problems and profiles.

    Files have the names of their segments; segments with equal rows are equal.
    """
    segments = []
    for table, query in _queries(database, selection, secret).items():
        for path, rows in database.export(query, folder, SEGMENT_ROWS):
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            segments.append(Segment(table, sha256, path.stat().st_size, rows))
            path.replace(folder / f"{sha256}.parquet")
    return segments


def _queries(database: Database, selection: Selection, secret: str) -> dict[str, str]:
    """Return by table the query for the rows that leave, sorted by key."""
    kinds = database.columns("measurement")
    key = next(iter(kinds))
    chosen = f"SELECT measurement.* {selection.source()}"
    # A row without private values keeps its key.
    same = " AND ".join(f'"{name}" IS NOT DISTINCT FROM {public_column(name, secret)}' for name in PRIVATE)
    rows = f"SELECT {key} AS here, {same} AS same, {_public(kinds, secret)} FROM ({chosen})"
    shared = f"CASE WHEN same THEN here ELSE {key_expression('measurement', kinds)} END AS {key}"
    kernels = f"SELECT DISTINCT kernel, kernel_hash FROM ({chosen})"
    return {
        "measurement": f"SELECT {shared}, * EXCLUDE (here, same) FROM ({rows}) ORDER BY 1",
        "config": f"FROM db.config WHERE config_id IN (SELECT config_id FROM ({chosen})) ORDER BY 1",
        "problem": f"FROM db.problem WHERE problem_id IN (SELECT problem_id FROM ({chosen})) ORDER BY 1",
        "profile": f"FROM db.profile WHERE (kernel, kernel_hash) IN ({kernels}) ORDER BY 1",
    }


def _public(kinds: Mapping[str, str], secret: str) -> str:
    _, *names = kinds
    return ", ".join(f'{public_column(name, secret)} AS "{name}"' for name in names)


def provenance(database: Database, selection: Selection) -> dict[str, list[str]]:
    """Return the origin of the selected measurements, in the form of `Manifest.provenance`."""
    values: dict[str, list[str]] = {}
    for name, column in (("gpus", "gpu"), ("ops", "op"), ("kernels", "kernel")):
        texts = database.query(f"SELECT DISTINCT {column} {selection.source()} ORDER BY 1 LIMIT {MOST_TEXTS}")
        values[name] = [str(value) for (value,) in texts]
    stated = "FILTER (measured_at > TIMESTAMP '1970-01-01')"  # Recordings without a date have this time.
    query = f"SELECT min(measured_at) {stated}, max(measured_at) {stated} {selection.source()}"
    values["days"] = [f"{moment:%Y-%m-%d}" for moment in database.query(query)[0] if moment is not None]
    return values


def taken_out(database: Database, selection: Selection, secret: str) -> dict[str, int]:
    """Return by private column the number of selected measurements whose value changes."""
    changed = [f'count(*) FILTER ("{name}" IS DISTINCT FROM {public_column(name, secret)})' for name in PRIVATE]
    (counts,) = database.query(f"SELECT {', '.join(changed)} {selection.source()}")
    return {name: count for name, count in zip(PRIVATE, counts, strict=True) if count}


def keep_fresh(database: Database, selection: Selection, stale: Mapping[str, Sequence[Path]]) -> None:
    """Store which selected measurements a place lacks, for a later `Selection(fresh=True)`.

    Rows are compared without private columns. If another person's row came in a bundle, it would leave with another
    hash for the GPU, although it is the same measurement. Both versions would contradict each other.

    Args:
        database: Database to read.
        selection: Measurements to compare.
        stale: Parquet files of measurements to exclude: `likeness` (`likeness_hash`) of measurements at the place, and
            `withdrawn` (`likeness_key`) of withdrawn measurements.
    """
    kinds = database.columns("measurement")
    conditions = {"likeness": likeness_hash(kinds), "withdrawn": likeness_key(kinds)}
    lacking = " AND ".join(f"{conditions[name]} NOT IN (FROM {{{name}}})" for name, paths in stale.items() if paths)
    query = f"SELECT measurement_id FROM (SELECT measurement.* {selection.source()}) WHERE {lacking or 'true'}"
    database.keep("fresh", query, stale)


def likeness_hash(kinds: Mapping[str, str]) -> str:
    """Return SQL for a fast hash of a measurement without private columns; the hash depends on DuckDB's version."""
    _, *names = kinds
    listed = ", ".join(f'"{name}"' for name in names if name not in PRIVATE)
    return f"hash({listed})"


def likeness_key(kinds: Mapping[str, str]) -> str:
    """Return SQL for a measurement's key without private columns, stable across versions of DuckDB and of the
    schema."""
    return key_expression("measurement", {name: kind for name, kind in kinds.items() if name not in PRIVATE})
