"""Rows of a database as segments: Parquet files of one table each, named by their content."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.row_hash import key_expression
from kernrec.store.share.manifest import MOST_TEXTS, Segment
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
    fresh: bool = False
    """Only those that `keep_fresh` kept."""
    retractions: bool = True
    """Whether what was taken back goes along; remotes have documents of their own for that."""

    def condition(self) -> str:
        """The selection as SQL about `measurement JOIN problem`."""
        parts = [
            "replayed IS DISTINCT FROM true",  # a replay repeats what a recording says
            "measurement_id NOT IN (SELECT measurement_id FROM db.retraction)",
        ]
        if self.gpu is not None:
            parts.append(f"gpu = {quoted(self.gpu)}")
        if self.op is not None:
            parts.append(f"op = {quoted(self.op)}")
        if self.kernel is not None:
            parts.append(f"kernel = {quoted(self.kernel)}")
        if self.since is not None:
            parts.append(f"measured_at >= TIMESTAMP {quoted(self.since.isoformat(sep=' '))}")
        if self.fresh:
            parts.append("measurement_id IN (FROM fresh)")
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
    key = next(iter(kinds))
    chosen = _chosen(selection)
    # Of a row that has nothing private the key stays what it is.
    same = " AND ".join(f'"{name}" IS NOT DISTINCT FROM {public_column(name, secret)}' for name in PRIVATE)
    rows = f"SELECT {key} AS here, {same} AS same, {_public(kinds, secret)} FROM ({chosen})"
    shared = f"CASE WHEN same THEN here ELSE {key_expression('measurement', kinds)} END AS {key}"
    kernels = f"SELECT DISTINCT kernel, kernel_hash FROM ({chosen})"
    # A measurement that leaves with another key is taken back by that one: `retract_here` names both.
    at_home = f"SELECT measurement_id FROM ({shared_keys(kinds, secret)}) WHERE shared_id <> measurement_id"
    # Nobody else believes one that names its signer and is not signed (`kernrec.store.share.copies`).
    believed = "(signature <> '' OR signer = '')"
    retractions = (
        f"FROM db.retraction WHERE {selection.retractions} AND {believed} AND measurement_id NOT IN ({at_home}) "
        "ORDER BY 1"
    )
    return {
        "measurement": f"SELECT {shared}, * EXCLUDE (here, same) FROM ({rows}) ORDER BY 1",
        "config": f"FROM db.config WHERE config_id IN (SELECT config_id FROM ({chosen})) ORDER BY 1",
        "problem": f"FROM db.problem WHERE problem_id IN (SELECT problem_id FROM ({chosen})) ORDER BY 1",
        "profile": f"FROM db.profile WHERE (kernel, kernel_hash) IN ({kernels}) ORDER BY 1",
        "retraction": retractions,
    }


def shared_keys(
    kinds: Mapping[str, str], secret: str, rows: str = "db.measurement SEMI JOIN db.retraction USING (measurement_id)"
) -> str:
    """The keys of measurements, and `shared_id`, those that they leave with, in SQL; by default of retracted ones."""
    key = next(iter(kinds))
    return (
        f"SELECT {key}, {key_expression('measurement', kinds)} AS shared_id "
        f"FROM (SELECT {key}, {_public(kinds, secret)} FROM {rows})"
    )


def keep_fresh(database: Database, selection: Selection, known: Mapping[str, Sequence[Path]]) -> None:
    """Keep which of the selected measurements a remote lacks, for a later `Selection(fresh=True)`.

    Rows are compared by what is not private: a row of somebody else that came by a bundle, and leaves again with
    another hash for the card, is the same measurement; were it shared twice, the two would contradict each other.

    Args:
        database: to read.
        selection: which measurements.
        known: Parquet files of what is not fresh: `likeness` (`likeness_hash`) of what the remote has, and `retracted`
            (`likeness_key`) of what was taken back.
    """
    kinds = database.columns("measurement")
    conditions = {"likeness": likeness_hash(kinds), "retracted": likeness_key(kinds)}
    lacking = " AND ".join(f"{conditions[name]} NOT IN (FROM {{{name}}})" for name, paths in known.items() if paths)
    database.keep("fresh", f"SELECT measurement_id FROM ({_chosen(selection)}) WHERE {lacking or 'true'}", known)


def likeness_hash(kinds: Mapping[str, str]) -> str:
    """A hash, in SQL, of all of a measurement that is not private; of this process and its DuckDB only, but fast."""
    _, *names = kinds
    return f"hash({', '.join(_quoted(name) for name in names if name not in PRIVATE)})"


def likeness_key(kinds: Mapping[str, str]) -> str:
    """The same as a key, which stays as it is in later versions of DuckDB and of the schema."""
    return key_expression("measurement", {name: kind for name, kind in kinds.items() if name not in PRIVATE})


def _chosen(selection: Selection) -> str:
    return f"SELECT measurement.* {_joined(selection)}"


def _joined(selection: Selection) -> str:
    return (
        "FROM db.measurement AS measurement JOIN (SELECT problem_id, op FROM db.problem) USING (problem_id) "
        f"WHERE {selection.condition()}"
    )


def _public(kinds: Mapping[str, str], secret: str) -> str:
    _, *names = kinds
    return ", ".join(f"{public_column(name, secret)} AS {_quoted(name)}" for name in names)


def _quoted(name: str) -> str:
    return f'"{name}"'


def provenance(database: Database, selection: Selection) -> dict[str, list[str]]:
    """What a manifest says of where the selected measurements come from."""
    rows = _joined(selection)
    values: dict[str, list[str]] = {}
    for name, expression in (("gpus", "gpu"), ("ops", "op"), ("kernels", "kernel")):
        texts = database.query(f"SELECT DISTINCT {expression} {rows} ORDER BY 1 LIMIT {MOST_TEXTS}")
        values[name] = [str(value) for (value,) in texts]
    stated = "FILTER (measured_at > TIMESTAMP '1970-01-01')"  # the time of a recording that does not say when
    ((first, last),) = database.query(f"SELECT min(measured_at) {stated}, max(measured_at) {stated} {rows}")
    values["days"] = [f"{moment:%Y-%m-%d}" for moment in (first, last) if moment is not None]
    return values


def taken_out(database: Database, selection: Selection, secret: str) -> dict[str, int]:
    """By column, in how many of the selected measurements it leaves in another form than it has here."""
    changed = ", ".join(
        f'count(*) FILTER ("{name}" IS DISTINCT FROM {public_column(name, secret)})' for name in PRIVATE
    )
    (counts,) = database.query(f"SELECT {changed} {_joined(selection)}")
    return {name: count for name, count in zip(PRIVATE, counts, strict=True) if count}
