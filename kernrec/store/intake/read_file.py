"""The child: reads one file of a stranger, checks every row, and writes what passed as Parquet.

Started by `checked_rows`; reads a request from standard input and prints one JSON object, `{"rows": ...}` or
`{"refused": text}`.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError, UsageError
from kernrec.store.connection import check_whole, connect_files, connect_stranger, one_line, quoted
from kernrec.store.database import Database
from kernrec.store.intake.limits import Limits
from kernrec.store.intake.row_checks import check_rows
from kernrec.store.migrations import TABLES, migrations, schema_version
from kernrec.store.rows import columns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def main() -> int:
    """Do what the request says; the exit status."""
    request = json.loads(sys.stdin.read())
    limits = Limits(**request["limits"])
    limits.apply()
    path, folder = Path(request["path"]), Path(request["folder"])
    try:
        if "segments" in request:
            done: dict[str, Any] = {"rows": read_segments(request["segments"], str(path), folder, limits)}
        else:
            done = {"rows": read_database(path, folder, limits)}
    except KernrecError as error:
        done = {"refused": str(error)}
    except MemoryError:
        done = {"refused": f"{path} takes more memory than a file of its size may"}
    print(json.dumps(done))
    return 0


def read_database(path: Path, folder: Path, limits: Limits) -> dict[str, int]:
    """Write the rows of a database to `<table>.parquet` in a folder; returns how many each table has."""
    with closing(connect_stranger(path, folder, limits.database_bytes)) as connection, one_line(path):
        check_whole(connection, path)
        version = schema_version(connection, path)
        if version == 0:
            raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")
        if version == len(migrations()):
            _attach_expected(connection)
            return _write_tables(connection, path, folder, limits)
    copy = folder / "older.duckdb"
    for suffix in ("", ".wal"):  # DuckDB's log of what is not yet in the file, after a crash
        if (file := path.with_name(path.name + suffix)).exists():
            shutil.copyfile(file, copy.with_name(copy.name + suffix))
    Database.open(copy, read_only=False).close()
    with closing(connect_stranger(copy, folder, limits.database_bytes)) as connection, one_line(path):
        _attach_expected(connection)
        return _write_tables(connection, path, folder, limits)


def read_segments(segments: Mapping[str, Sequence[str]], title: str, folder: Path, limits: Limits) -> dict[str, int]:
    """The same for Parquet files, given by table."""
    files = [Path(file) for names in segments.values() for file in names]
    with closing(connect_files(files, folder, limits.database_bytes)) as connection:
        _attach_expected(connection)
        with one_line(title):
            for table in TABLES:
                kinds = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE expected.{table}").fetchall()}
                rows = [_segment_rows(connection, file, table, kinds, title) for file in segments.get(table, ())]
                union = " UNION ALL ".join(rows) or f"FROM expected.{table}"
                connection.execute(f"CREATE VIEW db.{table} AS {union}")
            return _write_tables(connection, title, folder, limits)


def _segment_rows(connection: "DuckDBPyConnection", file: str, table: str, kinds: Mapping[str, str], title: str) -> str:
    """The rows of a Parquet file in SQL, once its columns were checked; columns of later schemas are NULL."""
    source = f"read_parquet({quoted(file)})"
    found = {name: kind for name, kind, *_ in connection.execute(f"DESCRIBE FROM {source}").fetchall()}
    for name, kind in found.items():
        if kinds.get(name) != kind:
            raise UsageError(f"{title}: a segment of the table {table} has a column {name[:40]!r} of type {kind[:40]}")
    columns = ", ".join(f'"{name}"' if name in found else f'NULL::{kind} AS "{name}"' for name, kind in kinds.items())
    return f"SELECT {columns} FROM {source}"


def _write_tables(connection: "DuckDBPyConnection", path: Path | str, folder: Path, limits: Limits) -> dict[str, int]:
    counts = {}
    for table in TABLES:
        found = connection.execute(f"SELECT count(*) FROM db.{table}").fetchone()
        counts[table] = int(found[0]) if found else 0
        if counts[table] > limits.rows:
            raise UsageError(f"{path}: the table {table} has more rows than a file of its size can hold")
    for table in TABLES:
        kinds = columns(connection, table)
        try:
            check_rows(connection, table, kinds)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        file = folder / f"{table}.parquet"
        connection.execute(f"COPY (FROM db.{table}) TO {quoted(file)} (FORMAT parquet, ROW_GROUP_SIZE 20000)")
    return counts


def _attach_expected(connection: "DuckDBPyConnection") -> None:
    """Attach an empty database of the present schema as `expected`, for its constraints."""
    connection.execute("ATTACH ':memory:' AS expected")
    connection.execute("USE expected")
    for step in migrations():
        connection.execute(step.sql)
    connection.execute("USE memory")


if __name__ == "__main__":
    sys.exit(main())
