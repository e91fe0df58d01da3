"""Add rows from files to a database, and compute the keys of many rows.

DuckDB computes keys faster than Python, but may format a number differently. So Python recomputes each key that
seems wrong.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.store.connection import quoted, transaction
from kernrec.store.gpu_scales import update_scales
from kernrec.store.rows import KEY_DIGITS, as_dicts, columns, row_key
from kernrec.store.schema import TABLES, layout_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CHECKED = "checked.duckdb"
"""Name of a database file with checked measurements."""
SOURCES = "sources.parquet"
"""Name of a file that lists each measurement's bundle by number (columns `measurement_id` and `number`)."""
MEASUREMENTS = "checked.main.measurement"
"""SQL name of the measurements in the file `CHECKED`."""
_LAUNCH = "kernel, kernel_hash, code_key, sm, launch"


def add_rows(
    connection: "DuckDBPyConnection",
    folder: Path,
    path: Path | str,
    apart_from: Sequence[str] = (),
    then: Sequence[str] = (),
    signer: str | None = None,
) -> int:
    """Add rows from the files `<table>*.parquet` and the database file `CHECKED` in a folder. Skip rows that the
    database already contains. Add nothing if an error occurs.

    Args:
        connection: Connection that has attached the database as `db`.
        folder: Folder from `exchange_folder`. Its files must not repeat a row. Columns that a file lacks are NULL.
        apart_from, signer: See `Database.add_from`.
        then: Additional SQL statements for the same transaction.

    Returns:
        Number of new rows.

    Raises:
        UsageError: A new row has the key of a stored row, but different content.
    """
    added = 0
    with _sources(connection, folder) as sources, transaction(connection):
        for table, files in sources.items():
            kinds = columns(connection, table)
            key = next(iter(kinds))
            present = [name for name, *_ in connection.execute(f"DESCRIBE FROM {files}").fetchall()]
            source = f"(SELECT {all_columns(kinds, present)} FROM {files})"
            rows = f"FROM {source} AS there"
            stored = connection.execute(f"SELECT count(*) FROM {source} SEMI JOIN db.{table} USING ({key})").fetchall()
            if stored[0][0]:
                if changed := _same_key_other_content(connection, table, source, kinds):
                    raise UsageError(
                        f"{path}: the row {changed} of the table {table} was changed after it was written; nothing "
                        f"was added (`kernrec db verify` lists all changed rows)"
                    )
                rows += f" ANTI JOIN db.{table} AS stored USING ({key})"
            if table == "measurement" and apart_from:
                _, *names = kinds
                equal = [f'here."{x}" IS NOT DISTINCT FROM there."{x}"' for x in names if x not in apart_from]
                rows += f" ANTI JOIN db.{table} AS here ON {' AND '.join(equal)}"
            if table == "profile" and signer is not None:  # Other people's profiles never replace the user's.
                rows += f" ANTI JOIN db.{table} AS here USING ({_LAUNCH})"
            if table == "measurement" and signer is not None:
                origin = f"there.measurement_id, there.gpu, there.problem_id, {quoted(signer)}"
                connection.execute(f"INSERT INTO db.merged SELECT {origin}, NULL {rows}")
            if table in ("kernel", "profile") and signer is not None:
                connection.execute(f"INSERT INTO db.merged_row SELECT {key}, {quoted(signer)} {rows}")
            added += int(connection.execute(f"INSERT INTO db.{table} BY NAME {rows}").fetchall()[0][0])
        for statement in then:
            connection.execute(statement)
        if signer is not None and added:
            update_scales(connection)
    return added


@contextmanager
def _sources(connection: "DuckDBPyConnection", folder: Path) -> Iterator[dict[str, str]]:
    sources = {}
    for table in TABLES:
        # Skip withdrawn measurements, because a withdrawal applies only to the database that contains it.
        if table != "retraction" and any(folder.glob(files := f"{table}*.parquet")):
            sources[table] = f"read_parquet({quoted(folder / files)}, union_by_name = true)"
    if not (folder / CHECKED).exists():
        yield sources
        return
    connection.execute(f"ATTACH {quoted(folder / CHECKED)} AS checked (READ_ONLY, TYPE duckdb)")
    try:
        yield sources | {"measurement": MEASUREMENTS}
    finally:
        connection.execute("DETACH checked")


def all_columns(kinds: Mapping[str, str], present: Collection[str]) -> str:
    """Return an SQL list of the columns in `kinds`, with NULL for columns that are not `present`."""
    return ", ".join(f'"{name}"' if name in present else f'NULL::{kind} AS "{name}"' for name, kind in kinds.items())


def _same_key_other_content(
    connection: "DuckDBPyConnection", table: str, source: str, kinds: Mapping[str, str]
) -> str | None:
    key, *names = kinds
    # Compare contents by hash, which is five times as fast as comparing eighty columns.
    listed = ", ".join(f'"{name}"' for name in names)
    content = f"{key}, hash({listed}) AS content"
    query = (
        f"SELECT {key} FROM (SELECT {content} FROM db.{table}) AS here JOIN (SELECT {content} FROM {source}) AS there "
        f"USING ({key}) WHERE here.content <> there.content LIMIT 1"
    )
    result = connection.execute(query).fetchone()
    return None if result is None else str(result[0])


_BATCH = 1000


def key_expression(table: str, kinds: Mapping[str, str]) -> str:
    """Return an SQL expression for the key of a row. The first column in `kinds` is the key."""
    _, *names = kinds
    required = layout_of().required[table]
    before, after = [], []
    for name in sorted(names):
        value = _TEXT[kinds[name]].format(f'"{name}"')
        # For a NULL value, `||` returns NULL, so `concat` also omits the name and the comma. Required columns are never
        # NULL and need no `||`, which is slow.
        joined = ", " if name in required else " || "
        if name < "table":
            before += [joined.join((f"'\"{name}\":'", value, "','"))]
        else:
            after += [joined.join((f"',\"{name}\":'", value))]
    parts = ", ".join(["'{'", *before, f'\'"table":"{table}"\'', *after, "'}'"])
    return f"substr(sha256(concat({parts})), 1, {KEY_DIGITS[table]})"


_TEXT = {
    "VARCHAR": "CAST(to_json({0}) AS VARCHAR)",  # `to_json` quotes and escapes text like Python.
    "INTEGER": "CAST({0} AS VARCHAR)",
    "BIGINT": "CAST({0} AS VARCHAR)",
    "DOUBLE": "CAST({0} AS VARCHAR)",
    "BOOLEAN": "CAST({0} AS VARCHAR)",
    # `to_json` is four times as fast as CAST, but writes exponents differently from Python.
    "DOUBLE[]": (
        "CASE WHEN list_min({0}) >= 1e-4 AND list_max({0}) < 1e16 THEN CAST(to_json({0}) AS VARCHAR) "
        "ELSE replace(CAST({0} AS VARCHAR), ' ', '') END"
    ),
    "TIMESTAMP": (
        "CASE WHEN microsecond({0}) % 1000000 = 0 THEN strftime({0}, '\"%Y-%m-%dT%H:%M:%S\"') "
        "ELSE strftime({0}, '\"%Y-%m-%dT%H:%M:%S.%f\"') END"
    ),
}
"""SQL expressions that format a value as canonical JSON, keyed by SQL type."""


def used_columns(connection: "DuckDBPyConnection", source: str, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL types of the key and of all columns that have a value in some row. Without rows, return all
    columns."""
    columns = ", ".join(f'count("{name}")' for name in kinds)
    ((total, *counts),) = connection.execute(f"SELECT count(*), {columns} FROM {source}").fetchall()
    return {
        name: kind
        for number, ((name, kind), count) in enumerate(zip(kinds.items(), counts, strict=True))
        if count or not total or not number
    }


def wrong_keys(
    connection: "DuckDBPyConnection", table: str, source: str, kinds: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield (stored key, correct key) for each row whose key does not match its content.

    The first column in `kinds` is the key. `kinds` need not list columns without values.
    """
    key = next(iter(kinds))
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {source} WHERE {key} IS DISTINCT FROM {key_expression(table, kinds)}")
    while rows := as_dicts(cursor, _BATCH):
        for row in rows:
            stored = row.pop(key)
            if (computed := row_key(table, row)) != stored:
                yield str(stored), computed
