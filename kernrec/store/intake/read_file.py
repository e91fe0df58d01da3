"""The child: reads one file of a stranger, checks every row, and writes what passed as Parquet.

Started by `checked_rows` as `python -m kernrec.store.intake.read_file REQUEST`; prints one JSON object, `{"rows": ...}`
or `{"refused": text}`.
"""

import json
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError, UsageError
from kernrec.store.connection import check_whole, connect_stranger, one_line, quoted
from kernrec.store.database import Database
from kernrec.store.intake.limits import Limits
from kernrec.store.intake.row_checks import check_rows
from kernrec.store.migrations import TABLES, migrations, schema_version
from kernrec.store.rows import columns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def main() -> int:
    """Do what the request says; the exit status."""
    request = json.loads(sys.argv[1])
    limits = Limits(**request["limits"])
    limits.apply()
    path, folder = Path(request["path"]), Path(request["folder"])
    try:
        done: dict[str, Any] = {"rows": read_database(path, folder, limits)}
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
            return _write_tables(connection, path, folder, limits)
    copy = folder / "older.duckdb"
    for suffix in ("", ".wal"):  # DuckDB's log of what is not yet in the file, after a crash
        if (file := path.with_name(path.name + suffix)).exists():
            shutil.copyfile(file, copy.with_name(copy.name + suffix))
    Database.open(copy, read_only=False).close()
    with closing(connect_stranger(copy, folder, limits.database_bytes)) as connection, one_line(path):
        return _write_tables(connection, path, folder, limits)


def _write_tables(connection: "DuckDBPyConnection", path: Path, folder: Path, limits: Limits) -> dict[str, int]:
    _attach_expected(connection)
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
