"""Read one untrusted file in a child process, check every row, and write valid rows to a database and to Parquet.

The parent process (`kernrec.store.reader`) starts this module. The child reads a request from standard input and prints
one JSON object, `{"found": ...}` or `{"refused": text}`. A request names one of these tasks:

    database      check the rows of a database: measurements stay in a copy of it, other rows go to `<table>.parquet`
    segments      check groups of Parquet files of our tables, as in bundles; measurements go to a new database
    check         only check whether the parent may open a database
    faults        only find the impossible rows of the user's own database
    table         copy a Parquet file of any columns, such as a recording, to `table.parquet`
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.store.connection import check_whole, connect_files, connect_untrusted, one_line, quoted
from kernrec.store.database import Database, show_filtered
from kernrec.store.exchange import CHECKED, SOURCES, used_columns
from kernrec.store.intake.row_checks import check_rows, faults, is_possible
from kernrec.store.marks import Mark, has_open
from kernrec.store.reader import Limits, serve_request
from kernrec.store.schema import TABLES, layout_of, migrations, schema_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_PLAIN = (*_INTEGERS, *(f"U{name}" for name in _INTEGERS), "DOUBLE", "FLOAT", "BOOLEAN", "VARCHAR", "TIMESTAMP")
_ROUNDS = 8
"""Maximum number of passes over the user's own rows. Excluding rows makes the rows that refer to them invalid."""
_ALL = 10**9
_LARGEST_TABLE = 512 * 2**20
_ORDER = {"measurement": " ORDER BY gpu, problem_id"}
"""SQL clause for the order of a table's rows, keyed by table name. It lets queries about one problem read less."""


def answer(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Run the requested task. Return `{"found": result}`, or `{"refused": reason}` if the task refuses the file."""
    try:
        return {"found": _TASKS[request["task"]](request, Path(request["folder"]), limits)}
    except KernrecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{request['title']} needs more memory than a file of its size should"}


def read_database(path: Path, folder: Path, limits: Limits) -> dict[str, int]:
    """Check all rows of a database, and write them to a folder as files that `exchange.add_rows` can read. Return the
    number of rows in each table. Measurements stay in a copy of the file. Nobody can change this copy after the
    check."""
    with _opened(path, folder, limits, copied=True) as connection:
        counts = _check_taken(connection, path, limits)
        _write_tables(connection, [table for table, count in counts.items() if count], folder)
        return counts


def check_database(path: Path, folder: Path, limits: Limits, rows: bool, state: str) -> None:
    """Raise `UsageError` if the parent process must not open a database.

    Args:
        folder: Folder for temporary files.
        rows: Whether to check the values of the rows. If False, only read the rows. A damaged file then crashes this
            process instead of the parent.
        state: Result of `marks.file_state` that the file must still have.
    """
    with _opened(path, folder, limits, copied=False, state=state) as connection:
        try:
            if rows:
                _check_tables(connection, path, limits)
                return
        except UsageError as error:
            raise UsageError(f"{error}; kernrec does not use the file (`kernrec db verify` lists the rows)") from None
        for table in TABLES:
            connection.execute(f"SELECT count(hash(COLUMNS(*))) FROM db.{table}").fetchall()


def find_faults(path: Path, folder: Path, limits: Limits, state: str) -> dict[str, dict[str, list[str]]]:
    """Return the keys of impossible rows in the user's own database, keyed by table name and then by fault.

    A row that refers to an impossible row is impossible, too. If the system clock is slow, all rows seem to come from
    the future. So a row's time is possible if it is not later than the file's last change.
    """
    now = datetime.now(UTC)
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    latest = max(now, changed) if is_possible(changed) else now
    wrong: dict[str, dict[str, list[str]]] = {}
    with _opened(path, folder, limits, copied=False, state=state, filtered=True) as connection:
        for _ in range(_ROUNDS):
            show_filtered(connection, Mark("", True, "", wrong).dropped, own=True)
            if not (more := list(_faults(connection, latest))):
                break
            for table, fault, keys in more:
                wrong.setdefault(table, {}).setdefault(fault, []).extend(keys)
    return wrong


def _faults(connection: "DuckDBPyConnection", latest: datetime) -> Iterator[tuple[str, str, list[str]]]:
    import duckdb

    for table in TABLES:
        wrong = False
        try:
            for fault, keys in faults(connection, table, layout_of(), most=_ALL, latest=latest):
                wrong = True
                yield table, fault, keys
        except (duckdb.Error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if not wrong:
                raise


@contextmanager
def _opened(
    path: Path, folder: Path, limits: Limits, *, copied: bool, state: str = "", filtered: bool = False
) -> "Iterator[DuckDBPyConnection]":
    """Yield a connection to a database that has the present schema, migrating a copy of an older file.

    Args:
        folder: Folder for temporary files.
        copied: Whether to open a copy even if the file has the present schema.
        state: Result of `marks.file_state` that the file must still have. If empty, the file may have changed.
        filtered: See `connect_untrusted`.
    """
    with closing(connect_untrusted(path, folder, limits)) as connection, one_line(path):
        if state and not has_open(state):
            raise UsageError(f"{path} was replaced while it was checked; try again")
        version = _version(connection, path)
        if not (copied or filtered) and version == len(migrations()):
            yield connection
            return
        whole = _copied(path, folder) if copied or version < len(migrations()) else path
    if version < len(migrations()):
        Database.open_checked(whole, read_only=False).close()
    with closing(connect_untrusted(whole, folder, limits, filtered=filtered)) as connection, one_line(path):
        yield connection


def _version(connection: "DuckDBPyConnection", path: Path) -> int:
    check_whole(connection, path)
    if version := schema_version(connection, path):
        return version
    raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")


def _copied(path: Path, folder: Path) -> Path:
    copy = folder / CHECKED
    for suffix in (".wal", ""):  # After a crash, changes may only be in DuckDB's log.
        if (file := path.with_name(path.name + suffix)).exists():
            try:
                shutil.copyfile(file, copy.with_name(copy.name + suffix))
            except OSError as error:
                raise UsageError(cannot_be(f"copied to {folder.parent}", path, error)) from None
    return copy


def read_segments(
    groups: Sequence[Mapping[str, Sequence[str]]], title: str, folder: Path, limits: Limits
) -> list[dict[str, Any]]:
    """Check all rows of groups of Parquet files, and write them to a folder like `read_database`.

    A row that is in several groups is written once. Each group must contain all configs and problems of its
    measurements. The file `SOURCES` in the folder lists the groups of each measurement.

    Args:
        groups: For each group, the paths of its files, keyed by table name.
        title: Name of the files, for messages.
        folder: Folder for the checked rows.

    Returns:
        A dictionary for each group: `rows` is the number of rows for each table (a row in two files counts twice),
            `gpus` lists the GPUs of the measurements, and `replayed` states whether any measurement was replayed.
    """
    counts: list[dict[str, int]] = [{} for _ in groups]
    with _segments_opened(groups, title, folder, limits) as connection:
        for table in TABLES:
            for group, count in connection.execute(f"SELECT number, count(*) FROM {table}_rows GROUP BY 1").fetchall():
                counts[group][table] = count
        # Use DISTINCT only if a row occurs twice, because DISTINCT takes as long as reading.
        again = "DISTINCT " if _double_keys(connection, "measurement", "db.measurement_read") else ""
        _check_taken(connection, title, limits)
        for table in ("config", "problem") if len(groups) > 1 else ():
            lacking = f"FROM measurement_rows ANTI JOIN {table}_rows USING (number, {table}_id)"
            if missing := connection.execute(f"SELECT {table}_id {lacking} LIMIT 1").fetchone():
                raise UsageError(
                    f"{title}: measurements refer to a {table} that is missing ({missing[0]}); nothing was imported"
                )
        _write_tables(connection, TABLES, folder)
        _write(connection, f"SELECT {again}measurement_id, number FROM measurement_rows", folder / SOURCES)
        seen = "SELECT number, list_sort(list(DISTINCT gpu)), coalesce(bool_or(replayed), false) FROM measurement_rows"
        facts = {number: fact for number, *fact in connection.execute(f"{seen} GROUP BY 1").fetchall()}
        if not again:  # The parent process reads only tables, so replace the view by a table.
            connection.execute("DROP VIEW db.measurement; ALTER TABLE db.measurement_read RENAME TO measurement")
    read: list[dict[str, Any]] = []
    for number, each in enumerate(counts):
        gpus, replayed = facts.get(number, ([], False))
        rows = {table: each.get(table, 0) for table in TABLES}
        read.append({"rows": rows, "gpus": gpus, "replayed": replayed})
    return read


@contextmanager
def _segments_opened(
    groups: Sequence[Mapping[str, Sequence[str]]],
    title: str,
    folder: Path,
    limits: Limits,
) -> "Iterator[DuckDBPyConnection]":
    """Yield a connection to the rows of all files.

    The relation `db.<table>` has the distinct rows of a table. The relation `<table>_rows` also has the `number` of
    each group that contains the row. Each file is read only once, so nobody can change it after the check.

    Args:
        groups: For each group, the paths of its files, keyed by table name.
        title: Name of the files, for messages.
        folder: Folder for temporary files.
    """
    files = list(dict.fromkeys(file for group in groups for names in group.values() for file in names))
    places = {file: place for place, file in enumerate(files)}
    members = {
        (number, places[file]) for number, group in enumerate(groups) for some in group.values() for file in some
    }
    paths = [Path(file) for file in files]
    with closing(connect_files(paths, folder, limits, folder / CHECKED)) as connection, one_line(title):
        connection.execute("USE memory.main")
        connection.execute(
            "CREATE TABLE file AS SELECT unnest($1::VARCHAR[]) AS filename, unnest($2::INTEGER[]) AS file",
            [files, list(range(len(files)))],
        )
        connection.execute(
            "CREATE TABLE member AS SELECT unnest($1::INTEGER[]) AS number, unnest($2::INTEGER[]) AS file",
            [list(column) for column in zip(*sorted(members), strict=True)] or [[], []],
        )
        for table in TABLES:
            some = list(dict.fromkeys(file for group in groups for file in group.get(table, ())))
            rows = _rows_of_files(connection, some, table, title)
            _count(connection, f"({rows})", table, title, limits)
            connection.execute(f"CREATE TABLE db.{table}_read AS {rows}{_ORDER.get(table, '')}")
            connection.execute(
                f"CREATE VIEW {table}_rows AS SELECT * EXCLUDE (file) FROM db.{table}_read JOIN member USING (file)"
            )
            once = f"SELECT * EXCLUDE (file) FROM db.{table}_read"
            if _double_keys(connection, table, f"db.{table}_read"):  # Several segments may contain the same row.
                connection.execute(f"CREATE TABLE db.{table} AS SELECT DISTINCT ON ({table}_id) * FROM ({once})")
            else:
                connection.execute(f"CREATE VIEW db.{table} AS {once}")
        yield connection


def _rows_of_files(connection: "DuckDBPyConnection", files: Sequence[str], table: str, title: str) -> str:
    """Check the columns of Parquet files, and return an SQL query for their rows and the number of each row's file."""
    kinds = layout_of().columns[table]
    if not files:
        columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in kinds.items())
        return f"SELECT {columns}, 0 AS file LIMIT 0"
    source = f"read_parquet([{', '.join(map(quoted, files))}], union_by_name = true, filename = true)"
    described = connection.execute(f"DESCRIBE SELECT * EXCLUDE (filename) FROM {source}").fetchall()
    for name, kind, *_ in described:
        if kinds.get(name) != kind:
            raise UsageError(f"{title}: a segment of the table {table} has a column {name[:40]!r} of type {kind[:40]}")
    present = {name for name, *_ in described}
    columns = ", ".join(f'"{name}"' if name in present else f'NULL::{kind} AS "{name}"' for name, kind in kinds.items())
    return f"SELECT {columns}, file FROM {source} JOIN file USING (filename)"


def _check_tables(connection: "DuckDBPyConnection", path: Path | str, limits: Limits) -> dict[str, int]:
    counts = {table: _count(connection, f"db.{table}", table, path, limits) for table in TABLES}
    for table in (table for table, count in counts.items() if count):
        try:
            check_rows(connection, table, layout_of())
            if double := _double_keys(connection, table, f"db.{table}"):
                raise UsageError(f"rows of the table {table} occur twice ({double[0]})")
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    return counts


def _count(connection: "DuckDBPyConnection", source: str, table: str, path: Path | str, limits: Limits) -> int:
    ((count,),) = connection.execute(f"SELECT count(*) FROM {source}").fetchall()
    if count > limits.rows:
        raise UsageError(f"{path}: the table {table} has more rows than a file of its size can hold")
    return int(count)


def _double_keys(connection: "DuckDBPyConnection", table: str, source: str) -> list[str]:
    # Count hashes first, which takes half the memory of counting keys. Compare keys only if two hashes are equal.
    ((some,),) = connection.execute(f"SELECT count(*) > count(DISTINCT hash({table}_id)) FROM {source}").fetchall()
    if not some:
        return []
    double = f"SELECT {table}_id FROM {source} GROUP BY 1 HAVING count(*) > 1 LIMIT 1"
    return [str(key) for (key,) in connection.execute(double).fetchall()]


def _check_taken(connection: "DuckDBPyConnection", path: Path | str, limits: Limits) -> dict[str, int]:
    try:
        return _check_tables(connection, path, limits)
    except UsageError as error:
        raise UsageError(f"{error}; nothing was added") from None


def _write_tables(connection: "DuckDBPyConnection", tables: Iterable[str], folder: Path) -> None:
    """Write the rows of tables to Parquet files, without columns that are NULL in all rows. Measurements stay in the
    database."""
    for table in tables:
        if table != "measurement":
            columns = ", ".join(f'"{n}"' for n in used_columns(connection, f"db.{table}", layout_of().columns[table]))
            _write(connection, f"SELECT {columns} FROM db.{table}", folder / f"{table}.parquet")


def _write(connection: "DuckDBPyConnection", query: str, file: Path) -> None:
    connection.execute(f"COPY ({query}) TO {quoted(file)} (FORMAT parquet, ROW_GROUP_SIZE 20000)")


def read_table(path: Path, folder: Path, limits: Limits, most_rows: int) -> None:
    """Copy a Parquet file to `table.parquet`, and convert its columns to plain types. Raise `UsageError` if, according
    to its metadata, the file has more rows or bytes than any recording can have."""
    with closing(connect_files([path], folder, limits)) as connection, one_line(path):
        name = quoted(path.absolute())
        measure = (
            "SELECT sum(num_values) / count(DISTINCT column_id), sum(total_uncompressed_size) "
            f"FROM parquet_metadata({name})"
        )
        rows, size = connection.execute(measure).fetchone() or (0, 0)
        # Check the stated numbers of rows and bytes before reading, because a few bytes can encode any number of rows.
        if (rows or 0) > most_rows or (size or 0) > _LARGEST_TABLE:
            raise UsageError(f"{path} holds {rows:.0f} rows, {size} bytes, more than any recording; it is not read")
        described = connection.execute(f"DESCRIBE FROM read_parquet({name})").fetchall()
        columns = ", ".join(_plain(column.replace('"', '""'), kind) for column, kind, *_ in described)
        target = quoted(folder / "table.parquet")
        connection.execute(
            f"COPY (SELECT {columns} FROM read_parquet({name}) LIMIT {most_rows + 1}) TO {target} (FORMAT parquet)"
        )


def _plain(name: str, kind: str) -> str:
    if kind not in _PLAIN:
        kind = "DOUBLE" if kind.startswith("DECIMAL") else "TIMESTAMP" if kind.startswith("TIMESTAMP") else "VARCHAR"
    return f'CAST("{name}" AS {kind}) AS "{name}"'


_TASKS: Mapping[str, Callable[[Mapping[str, Any], Path, Limits], object]] = {
    "database": lambda request, folder, limits: read_database(Path(request["path"]), folder, limits),
    "segments": lambda request, folder, limits: {
        "groups": read_segments(request["groups"], request["title"], folder, limits)
    },
    "check": lambda request, folder, limits: check_database(
        Path(request["path"]), folder, limits, request["rows"], request["state"]
    ),
    "faults": lambda request, folder, limits: find_faults(Path(request["path"]), folder, limits, request["state"]),
    "table": lambda request, folder, limits: read_table(Path(request["path"]), folder, limits, request["most_rows"]),
}


if __name__ == "__main__":
    sys.exit(serve_request(answer))
