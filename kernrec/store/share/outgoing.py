"""Write the rows that leave a machine, without private values.

kernrec removes folders, UUIDs of GPUs, and the names of user and host from errors and compiler options. It also
replaces the hash of the GPU's UUID by another hash, which depends on a secret beside the database. So nobody else can
link a row to the GPU. A row's key may change when the row leaves the machine.
"""

import getpass
import hashlib
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kernrec.errors import UsageError, file_errors
from kernrec.store.connection import quoted
from kernrec.store.database import Database
from kernrec.store.exchange import key_expression
from kernrec.store.share.manifest import LARGEST_SEGMENT, LICENCE, MOST_TEXTS, TEXT, Manifest, Segment, parse_manifest
from kernrec.version import __version__

PRIVATE = ("device_uuid_hash", "error", "compiler_flags", "measured_by")
"""Columns of `measurement` that may contain private values. Copies of a measurement may differ in these columns."""

_FOLDERS = r"(?:[A-Za-z]:)?(?:[\\/]+[^\\/\s:\"'']+)+[\\/]+"
"""Matches the folders of an absolute path, but not the last part."""
_UUID = r"(?i)\b(?:(?:GPU|MIG)-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
"""Matches the UUID of a GPU or of a MIG slice. Error messages of drivers contain UUIDs."""

_CONTROL = r"[\x00-\x1f\x7f-\x9f]+"


def secret_of(database: Path) -> str:
    """Return the secret beside a database. Create the secret if there is none. Raise `UsageError` if there is no
    database."""
    if not database.exists():
        raise UsageError(f"there is no database at {database}")
    path = database.with_name(f"{database.name}.secret")
    with file_errors(path, "written"):
        with suppress(FileNotFoundError):
            return path.read_text(encoding="ascii")
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secret := os.urandom(16).hex(), encoding="ascii")
    return secret


def private_names() -> list[str]:
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(Exception):  # In some containers, the user has no name.
        names.add(getpass.getuser())
    # Keep names such as `root` and single letters. They identify nobody, and errors would be unreadable without them.
    words = [name for name in names if len(name) > 1 and name not in ("root", "home", "localhost")]
    return sorted(words, key=len)[::-1]


def public_column(name: str, secret: str) -> str:
    """Return an SQL expression for a column of `measurement` without private values. `secret` comes from
    `secret_of`."""
    column = f'"{name}"'
    if name == "device_uuid_hash":
        return f"substr(sha256({quoted(secret)} || {column}), 1, 16)"
    if name in PRIVATE:
        text = _without(column, _CONTROL, " ")
        text = _without(text, _FOLDERS)
        text = _without(text, _UUID, "-")
        for word in private_names():
            text = _without(text, rf"(?i)\b{re.escape(word)}\b", "-")
        return text
    return column


def _without(text: str, pattern: str, instead: str = "") -> str:
    return f"regexp_replace({text}, {quoted(pattern)}, {quoted(instead)}, 'g')"


MADE_BY = f"kernrec {__version__}"


@dataclass(frozen=True)
class Selection:
    """Conditions on the measurements to share. A field that is None sets no condition."""

    gpu: str | None = None
    op: str | None = None
    kernel: str | None = None
    fresh: bool = False
    """Whether to select only measurements that a shared folder or server lacks, according to `keep_fresh`."""

    def condition(self) -> str:
        """Return the selection as an SQL condition on `measurement JOIN problem`."""
        parts = [
            "measurement_id NOT IN (SELECT measurement_id FROM db.retraction)",
            "replayed IS DISTINCT FROM true",  # A replayed row repeats a recording, so do not share it.
        ]
        for column, value in (("gpu", self.gpu), ("op", self.op), ("kernel", self.kernel)):
            if value is not None:
                parts.append(f"{column} = {quoted(value)}")
        if self.fresh:
            parts.append("measurement_id IN (FROM fresh)")
        return " AND ".join(parts)

    def source(self) -> str:
        """Return the `FROM` and `WHERE` clauses that select measurements, joined with the `op` of their problems."""
        return (
            "FROM db.measurement AS measurement JOIN (SELECT problem_id, op FROM db.problem) USING (problem_id) "
            f"WHERE {self.condition()}"
        )


@dataclass(frozen=True)
class Outgoing:
    """Rows that leave the machine if the user agrees."""

    manifest: Manifest
    files: Mapping[str, Path]
    """Paths of the segments' files, keyed by `Segment.name`."""

    @property
    def measurements(self) -> int:
        return self.manifest.rows["measurement"]


def outgoing(
    database: Database,
    selection: Selection,
    secret: str,
    folder: Path,
    licence: str | None = None,
) -> Outgoing:
    """Write the selected rows to segments in a folder, without private values. `secret` comes from `secret_of`.

    Raise `UsageError` if the license is not one line of text or the manifest exceeds a limit.
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
    # Check the manifest in the same way as the people who receive it.
    parse_manifest(manifest.to_bytes(), "what would leave")
    files = {segment.name: folder / f"{segment.sha256}.parquet" for segment in segments}
    return Outgoing(manifest, files)


def now() -> str:
    """Return the present time in UTC, in the format of a manifest."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"


def write_segments(database: Database, selection: Selection, secret: str, folder: Path) -> list[Segment]:
    """Write the selected measurements with their configs, problems and profiles, and return the segments. Each file is
    named by the hash of its content. Raise `UsageError` if a file is too large."""
    segments = []
    for table, query in _queries(database, selection, secret).items():
        path, rows = database.export(query, folder)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        path.replace(final := folder / f"{sha256}.parquet")
        if (size := final.stat().st_size) > LARGEST_SEGMENT:
            raise UsageError(
                f"{rows} rows of {table} take more than {LARGEST_SEGMENT} bytes; share parts of them with"
                " `kernrec db export --kernel`"
            )
        if rows:
            segments.append(Segment(table, sha256, size, rows))
    return segments


def _queries(database: Database, selection: Selection, secret: str) -> dict[str, str]:
    """Return the SQL queries for the rows that leave the machine, keyed by table name."""
    kinds = database.columns("measurement")
    key, *names = kinds
    public = ", ".join(f'{public_column(name, secret)} AS "{name}"' for name in names)
    chosen = f"SELECT measurement.* {selection.source()}"
    # Rows without private values keep their keys. Other rows get new keys, because their content changes.
    same = " AND ".join(f'"{name}" IS NOT DISTINCT FROM {public_column(name, secret)}' for name in PRIVATE)
    rows = f"SELECT {key} AS here, {same} AS same, {public} FROM ({chosen})"
    shared = f"CASE WHEN same THEN here ELSE {key_expression('measurement', kinds)} END AS {key}"
    kernels = f"SELECT DISTINCT kernel, kernel_hash FROM ({chosen})"
    return {
        "measurement": f"SELECT {shared}, * EXCLUDE (here, same) FROM ({rows}) ORDER BY 1",
        "config": f"FROM db.config WHERE config_id IN (SELECT config_id FROM ({chosen})) ORDER BY 1",
        "problem": f"FROM db.problem WHERE problem_id IN (SELECT problem_id FROM ({chosen})) ORDER BY 1",
        "profile": f"FROM db.profile WHERE (kernel, kernel_hash) IN ({kernels}) ORDER BY 1",
    }


def provenance(database: Database, selection: Selection) -> dict[str, list[str]]:
    """Return the GPUs, ops, kernels, and first and last day of the selected measurements."""
    values: dict[str, list[str]] = {}
    for name, column in (("gpus", "gpu"), ("ops", "op"), ("kernels", "kernel")):
        texts = database.query(f"SELECT DISTINCT {column} {selection.source()} ORDER BY 1 LIMIT {MOST_TEXTS}")
        values[name] = [str(value) for (value,) in texts]
    stated = "FILTER (measured_at > TIMESTAMP '1970-01-01')"  # Skip recordings without a date.
    query = f"SELECT min(measured_at) {stated}, max(measured_at) {stated} {selection.source()}"
    values["days"] = [f"{moment:%Y-%m-%d}" for moment in database.query(query)[0] if moment is not None]
    return values


def keep_fresh(database: Database, selection: Selection, stale: Path) -> None:
    """Store the IDs of new measurements in the selection, for a later `Selection(fresh=True)`.

    A measurement is new if the Parquet file `stale` does not contain the hash of its columns (`likeness_key`).
    """
    chosen = f"SELECT measurement.* {selection.source()}"
    query = f"SELECT measurement_id FROM ({chosen}) WHERE {likeness_key(database)} NOT IN (FROM {{rows}})"
    database.keep("fresh", query, stale)


def likeness_key(database: Database) -> str:
    """Return an SQL expression for a hash of all columns of a measurement, except private columns.

    All copies of a measurement have the same hash, even if several people share it. The hash does not depend on the
    version of DuckDB or of the schema.
    """
    kinds = database.columns("measurement").items()
    return key_expression("measurement", {name: kind for name, kind in kinds if name not in PRIVATE})
