"""Rows of a database as segments: Parquet files of one table each, named by their content."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.row_hash import key_expression
from kernrec.store.share.manifest import Segment
from kernrec.store.share.privacy import PRIVATE, public_column

SEGMENT_ROWS = 250_000
"""Rows of a segment at most; a measurement takes some 200 bytes there."""


@dataclass(frozen=True)
class Selection:
    """Which measurements are shared; None: all."""

    gpu: str | None = None
    op: str | None = None
    kernel: str | None = None
    since: datetime | None = None
    """Measured at or after this time, UTC."""

    def condition(self) -> str:
        """The selection as SQL about `measurement JOIN problem`."""
        parts = ["replayed IS DISTINCT FROM true"]  # a replay repeats what a recording says
        if self.gpu is not None:
            parts.append(f"gpu = {quoted(self.gpu)}")
        if self.op is not None:
            parts.append(f"op = {quoted(self.op)}")
        if self.kernel is not None:
            parts.append(f"kernel = {quoted(self.kernel)}")
        if self.since is not None:
            parts.append(f"measured_at >= TIMESTAMP {quoted(self.since.isoformat(sep=' '))}")
        return " AND ".join(parts)


def write_segments(database: Database, selection: Selection, secret: str, folder: Path) -> list[Segment]:
    """Write what may leave of the selected measurements, with their configs, problems and profiles.

    Args:
        database: to read.
        selection: which measurements.
        secret: of the database (`privacy.secret_of`).
        folder: for the files, which have the names of their segments.

    Returns:
        The segments; those of equal rows are equal.
    """
    segments = []
    for table, query in queries(database, selection, secret).items():
        for path, rows in database.export(query, folder, SEGMENT_ROWS):
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            segment = Segment(table, sha256, path.stat().st_size, rows)
            path.replace(folder / f"{sha256}.parquet")
            segments.append(segment)
    return segments


def queries(database: Database, selection: Selection, secret: str) -> dict[str, str]:
    """By table, the query for the rows that leave, in the order of their keys."""
    kinds = database.columns("measurement")
    key, *names = kinds
    public = ", ".join(f'{public_column(name, secret)} AS "{name}"' for name in names)
    chosen = (
        f"SELECT measurement.* FROM db.measurement AS measurement JOIN "
        f"(SELECT problem_id, op FROM db.problem) USING (problem_id) WHERE {selection.condition()}"
    )
    rows = f"SELECT {public} FROM ({chosen})"
    kernels = f"SELECT DISTINCT kernel, kernel_hash FROM ({chosen})"
    return {
        "measurement": f"SELECT {key_expression('measurement', kinds)} AS {key}, * FROM ({rows}) ORDER BY 1",
        "config": f"FROM db.config WHERE config_id IN (SELECT config_id FROM ({chosen})) ORDER BY 1",
        "problem": f"FROM db.problem WHERE problem_id IN (SELECT problem_id FROM ({chosen})) ORDER BY 1",
        "profile": f"FROM db.profile WHERE (kernel, kernel_hash) IN ({kernels}) ORDER BY 1",
    }


def provenance(database: Database, selection: Selection) -> dict[str, list[str]]:
    """What a manifest says of where the selected measurements come from."""
    rows = (
        f"FROM db.measurement AS measurement JOIN (SELECT problem_id, op FROM db.problem) USING (problem_id) "
        f"WHERE {selection.condition()}"
    )
    found: dict[str, list[str]] = {}
    for name, expression in (("gpus", "gpu"), ("ops", "op"), ("kernels", "kernel")):
        found[name] = [str(one) for (one,) in database.query(f"SELECT DISTINCT {expression} {rows} ORDER BY 1")]
    ((first, last),) = database.query(f"SELECT min(measured_at), max(measured_at) {rows}")
    found["days"] = [f"{moment:%Y-%m-%d}" for moment in (first, last) if moment is not None]
    return found


def taken_out(database: Database, selection: Selection, secret: str) -> dict[str, int]:
    """By column, in how many of the selected measurements it leaves in another form than it has here."""
    changed = ", ".join(
        f'count(*) FILTER ("{name}" IS DISTINCT FROM {public_column(name, secret)})' for name in PRIVATE
    )
    (counts,) = database.query(
        f"SELECT {changed} FROM db.measurement AS measurement JOIN (SELECT problem_id, op FROM db.problem) "
        f"USING (problem_id) WHERE {selection.condition()}"
    )
    return {name: count for name, count in zip(PRIVATE, counts, strict=True) if count}
