"""Rows that were checked are added to a database: a set union by key."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.store.connection import quoted, transaction
from kernrec.store.migrations import TABLES
from kernrec.store.rows import columns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CHECKED = "checked.duckdb"
"""A database whose measurements were checked; they are read where they are, because a file between two processes would
cost as much as checking them does."""
COLUMNS = "checked.json"
"""Beside it: the columns that have a value in some of them."""


def add_rows(
    connection: "DuckDBPyConnection",
    folder: Path,
    path: Path | str,
    apart_from: Sequence[str] = (),
    then: Sequence[str] = (),
) -> int:
    """Add the rows of `<table>*.parquet` and `CHECKED` in a folder that are not in a database yet, all or nothing.

    A row whose key the database has already is the same row. If its content differs, the row here was changed since it
    was written (or somebody computed two rows of one hash): then nothing is added, rather than one of the two chosen.

    Args:
        connection: with the database attached as `db`.
        folder: `exchange_folder` of the connection; tables without a file are left alone, and no row is there twice.
            Columns that a table's files lack are NULL.
        path: of the database.
        apart_from: columns of `measurement`; a row that differs from one that is there in these alone is not added.
        then: statements that belong to the same transaction.

    Returns:
        How many rows were added.
    """
    added = 0
    with _sources(connection, folder) as sources, transaction(connection):
        for table, given in sources.items():
            kinds = columns(connection, table)
            key = next(iter(kinds))
            source = _with_all(connection, given, kinds)
            rows = f"FROM {source} AS there"
            known = connection.execute(f"SELECT count(*) FROM {source} SEMI JOIN db.{table} USING ({key})").fetchone()
            if known and known[0]:
                if changed := _same_key_other_content(connection, table, source, kinds):
                    raise UsageError(
                        f"{path}: the row {changed} of the table {table} is not the one that was written under this "
                        "key; nothing was added (`kernrec db verify` names all such rows)"
                    )
                rows += f" ANTI JOIN db.{table} AS known USING ({key})"
            if table == "measurement" and apart_from:
                rows += f" ANTI JOIN db.{table} AS here ON {_same_but(kinds, apart_from)}"
            done = connection.execute(f"INSERT INTO db.{table} BY NAME {rows}").fetchone()
            added += int(done[0]) if done else 0
        for statement in then:
            connection.execute(statement)
    return added


@contextmanager
def _sources(connection: "DuckDBPyConnection", folder: Path) -> Iterator[dict[str, str]]:
    """By table, the rows in a folder, in SQL."""
    sources = {}
    for table in TABLES:
        if any(folder.glob(files := f"{table}*.parquet")):
            sources[table] = f"read_parquet({quoted(folder / files)}, union_by_name = true)"
    if not (folder / CHECKED).exists():
        yield sources
        return
    names = ", ".join(_quoted(name) for name in json.loads((folder / COLUMNS).read_text(encoding="utf-8")))
    connection.execute(f"ATTACH {quoted(folder / CHECKED)} AS checked (READ_ONLY, TYPE duckdb)")
    try:
        yield sources | {"measurement": f"(SELECT {names} FROM checked.main.measurement)"}
    finally:
        connection.execute("DETACH checked")


def _with_all(connection: "DuckDBPyConnection", source: str, kinds: Mapping[str, str]) -> str:
    """The rows of a source with all columns of their table, in SQL."""
    there = {name for name, *_ in connection.execute(f"DESCRIBE FROM {source}").fetchall()}
    lacking = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in kinds.items() if name not in there)
    return f"(SELECT *, {lacking} FROM {source})" if lacking else source


def _same_but(kinds: Mapping[str, str], apart_from: Sequence[str]) -> str:
    _, *names = kinds
    alike = (f'here."{name}" IS NOT DISTINCT FROM there."{name}"' for name in names if name not in apart_from)
    return " AND ".join(alike)


def _same_key_other_content(
    connection: "DuckDBPyConnection", table: str, source: str, kinds: Mapping[str, str]
) -> str | None:
    key, *names = kinds
    # Contents are compared by one number for each: eighty columns side by side take five times as long.
    content = f"{key}, hash({', '.join(map(_quoted, names))}) AS content"
    query = (
        f"SELECT {key} FROM (SELECT {content} FROM db.{table}) AS here JOIN (SELECT {content} FROM {source}) AS there "
        f"USING ({key}) WHERE here.content <> there.content LIMIT 1"
    )
    result = connection.execute(query).fetchone()
    return None if result is None else str(result[0])


def _quoted(name: str) -> str:
    return f'"{name}"'
