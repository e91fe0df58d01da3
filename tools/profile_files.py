"""Read, write and compare the profiles that ship with kernrec.

NVRTC arranges some code differently in each process. With NVRTC 13.5, counts of arithmetic, global memory accesses and
barriers were always equal; up to 2 % of the other instructions and up to 19 registers differed.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from kernrec.errors import UsageError
from kernrec.store import ProfileRow
from kernrec.store.connection import connect_memory, exchange_folder, one_line, parquet_rows, quoted
from kernrec.store.profiles import COLUMN_OF_FIELD
from kernrec.store.rows import Row, as_dicts, insert
from kernrec.store.schema import migrate
from kernrec.util.files import write_whole

_FIXED = ("global.", "barriers", "issue.fma", "issue.mma", "mma.", "issue.bar", "issue.cp_async", "issue.st_")
_COUNTS_VARY = 0.04  # Maximum difference of a count, as a fraction of all issued instructions
_REGISTERS_VARY = 32


def read_profile_rows(path: Path) -> list[ProfileRow]:
    """Return all rows of a Parquet file of profiles, in the order of the file."""
    with one_line(path), parquet_rows(path) as (connection, source):
        rows = as_dicts(connection.execute(f"FROM {source}"))
    return [_from_columns(row) for row in rows]


def write_profiles(path: Path, rows: Iterable[ProfileRow]) -> None:
    """Replace a Parquet file by sorted rows. Raises `UsageError` if two have the same launch, variant and
    architecture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_line(path), connect_memory() as connection, exchange_folder(connection) as folder:
        migrate(connection, 0)
        insert(connection, "profile", [row.columns() for row in rows])
        duplicate = connection.execute(
            "SELECT kernel, code_key, sm, launch FROM db.profile GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"
        ).fetchone()
        if duplicate:
            raise UsageError("two different profiles of {} variant {} on sm_{}, launch {}".format(*duplicate))
        connection.execute(
            "COPY (SELECT * EXCLUDE profile_id FROM db.profile ORDER BY kernel, kernel_hash, sm, launch, code_key) "
            f"TO {quoted(folder / 'profiles.parquet')} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 19, "
            "ROW_GROUP_SIZE 2048)"
        )
        write_whole(path, (folder / "profiles.parquet").read_bytes(), shared=True)


def _from_columns(row: Row) -> ProfileRow:
    fields = dict(row)
    for field, column in COLUMN_OF_FIELD.items():
        fields[field] = fields.pop(column)
    metrics, terms = str(fields["metrics"]).split(), str(fields["terms"]).split()
    counts = np.array(fields["counts"], dtype=np.float64).reshape(len(metrics), len(terms))
    fields |= {"variant": json.loads(str(fields["variant"])), "metrics": tuple(metrics), "terms": tuple(terms)}
    return ProfileRow(**fields | {"counts": counts})  # type: ignore[arg-type]


def within_compiler_variation(row: ProfileRow, other: ProfileRow) -> bool:
    """Return whether two profiles of a variant differ no more than the results of two runs of the compiler. Counts that
    the algorithm determines (arithmetic, global memory, barriers) must be equal. Other counts may differ slightly."""
    if row.terms != other.terms or abs(row.registers - other.registers) > _REGISTERS_VARY:
        return False
    first, second = (dict(zip(r.metrics, r.counts, strict=True)) for r in (row, other))
    nothing = np.zeros(len(row.terms))
    slack = _COUNTS_VARY * max(first["issue"].sum(), second["issue"].sum())
    for metric in {*first, *second}:
        difference = np.abs(first.get(metric, nothing) - second.get(metric, nothing)).max()
        allowed = slack * (32 if metric == "lanes" else 1)  # An instruction can count 32 lanes.
        if difference > (0.0 if metric.startswith(_FIXED) else allowed):
            return False
    return True
