"""Read one untrusted file in a child process, check every row, and write the valid rows to files.

The child reads a request from standard input and prints one JSON object, `{"found": ...}` or `{"refused": text}`. A
request names one of these tasks:

    database      check the rows of a database: measurements stay in a copy, other rows go to `<table>.parquet`
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
from kernrec.store.exchange import CHECKED, SOURCES, all_columns, used_columns
from kernrec.store.intake.row_checks import check_rows, faults, is_possible
from kernrec.store.marks import Mark, has_open
from kernrec.store.reader import Limits, serve_request
from kernrec.store.schema import TABLES, layout_of, migrations, schema_version

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_PLAIN = (*_INTEGERS, *(f"U{name}" for name in _INTEGERS), "DOUBLE", "FLOAT", "BOOLEAN", "VARCHAR", "TIMESTAMP")
_ROUNDS = 8
"""Maximum number of passes. A row that refers to an excluded row is excluded in the next pass."""
_ALL = 10**9
_LARGEST_TABLE = 512 * 2**20
_ORDER = {"measurement": " ORDER BY gpu, problem_id"}
"""SQL order of each table's rows, keyed by table name. The order lets queries about one problem read less."""


def answer(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Run the requested task. Return `{"found": result}`, or `{"refused": reason}`."""
    reader = FileReader(request.get("path", request["title"]), Path(request["folder"]), limits)
    arguments = {name: value for name, value in request.items() if name not in _COMMON}
    try:
        return {"found": _TASKS[request["task"]](reader, **arguments)}
    except KernrecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{request['title']} needs more memory than a file of its size should"}


_COMMON = ("task", "title", "folder", "limits", "path")
"""Entries of a request that are not arguments of its task."""


class FileReader:
    """Reader of one untrusted file, or of several bundles. Each public method is a task."""

    def __init__(self, path: Path | str, folder: Path, limits: Limits) -> None:
        """Prepare to read a file.

        Args:
            path: Path of the file, or a name for messages if the reader reads several bundles.
            folder: Private folder for checked rows and temporary files.
        """
        self.path, self.folder, self.limits = Path(path), folder, limits
        self.title = str(path)

    def read_database(self) -> dict[str, int]:
        """Check all rows of a database, and write them to the folder for `exchange.add_rows`. Return each table's
        number of rows."""
        with self._opened(copied=True) as connection:
            counts = self._check_tables(connection, "nothing was added")
            self._write_tables(connection, [table for table, count in counts.items() if count])
            return counts

    def check_database(self, rows: bool, state: str) -> None:
        """Raise `UsageError` if the parent process must not open a database.

        Args:
            rows: Whether to check the values of the rows. If False, only read them, to find damage that crashes DuckDB.
            state: Result of `marks.file_state` that the file must still have.
        """
        with self._opened(state=state) as connection:
            if rows:
                self._check_tables(connection, "kernrec does not use the file (`kernrec db verify` lists the rows)")
                return
            for table in TABLES:
                connection.execute(f"SELECT count(hash(COLUMNS(*))) FROM db.{table}").fetchall()

    def find_faults(self, state: str) -> dict[str, dict[str, list[str]]]:
        """Return the keys of impossible rows in the user's own database, keyed by table name and then by fault."""
        now = datetime.now(UTC)
        changed = datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        # A slow system clock makes rows seem to come from the future. So accept rows up to the file's last change.
        latest = max(now, changed) if is_possible(changed) else now
        wrong: dict[str, dict[str, list[str]]] = {}
        with self._opened(state=state, filtered=True) as connection:
            for _ in range(_ROUNDS):
                show_filtered(connection, Mark("", True, "", wrong).dropped, own=True)
                if not (more := list(_faults(connection, latest))):
                    break
                for table, fault, keys in more:
                    wrong.setdefault(table, {}).setdefault(fault, []).extend(keys)
        return wrong

    @contextmanager
    def _opened(
        self, *, copied: bool = False, state: str = "", filtered: bool = False
    ) -> "Iterator[DuckDBPyConnection]":
        """Yield a connection to the file, or to a migrated copy if the file has an older schema.

        Args:
            copied: Whether to open a copy even if the file has the present schema.
            state: `marks.file_state` of the checked file, or empty. Raise `UsageError` if another file has replaced it.
            filtered: See `connect_untrusted`.
        """
        path, folder = self.path, self.folder
        with closing(connect_untrusted(path, folder, self.limits)) as connection, one_line(path):
            if state and not has_open(state):
                raise UsageError(f"{path} was replaced while it was checked; try again")
            check_whole(connection, path)
            version = schema_version(connection, path)
            if not (copied or filtered) and version == len(migrations()):
                yield connection
                return
            whole = self._copied() if copied or version < len(migrations()) else path
        if version < len(migrations()):
            Database.open_checked(whole, read_only=False).close()
        with closing(connect_untrusted(whole, folder, self.limits, filtered=filtered)) as connection, one_line(path):
            yield connection

    def _copied(self) -> Path:
        copy = self.folder / CHECKED
        for suffix in (".wal", ""):  # After a crash, changes may only be in DuckDB's log.
            if (file := self.path.with_name(self.path.name + suffix)).exists():
                try:
                    shutil.copyfile(file, copy.with_name(copy.name + suffix))
                except OSError as error:
                    raise UsageError(cannot_be(f"copied to {self.folder.parent}", self.path, error)) from None
        return copy

    def read_segments(self, groups: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[dict[str, Any]]]:
        """Check groups of Parquet files, and write all rows to the folder like `read_database`.

        Each group must contain all configs and problems of its measurements. The file `SOURCES` lists the groups of
        each measurement.

        Args:
            groups: For each group, the paths of its files, keyed by table name.

        Returns:
            `{"groups": [...]}` with a dictionary for each group: the number of rows of each table (`rows`), the GPUs of
                the measurements (`gpus`), and whether any measurement was replayed (`replayed`).
        """
        counts: list[dict[str, int]] = [dict.fromkeys(TABLES, 0) for _ in groups]
        with self._segments_opened(groups) as connection:
            for table in TABLES:
                of_groups = f"SELECT number, count(*) FROM {table}_rows GROUP BY 1"
                for group, count in connection.execute(of_groups).fetchall():
                    counts[group][table] = count
            # Use DISTINCT only if a row occurs twice, because DISTINCT takes as long as reading.
            again = "DISTINCT " if _double_keys(connection, "measurement", "db.measurement_read") else ""
            self._check_tables(connection, "nothing was added")
            for table in ("config", "problem") if len(groups) > 1 else ():
                lacking = f"FROM measurement_rows ANTI JOIN {table}_rows USING (number, {table}_id)"
                if missing := connection.execute(f"SELECT {table}_id {lacking} LIMIT 1").fetchone():
                    raise UsageError(
                        f"{self.title}: measurements refer to a {table} that is missing ({missing[0]}); nothing was"
                        " imported"
                    )
            self._write_tables(connection, TABLES)
            self._write(connection, f"SELECT {again}measurement_id, number FROM measurement_rows", SOURCES)
            seen = (
                "SELECT number, list_sort(list(DISTINCT gpu)), coalesce(bool_or(replayed), false) FROM measurement_rows"
                " GROUP BY 1"
            )
            facts = {number: fact for number, *fact in connection.execute(seen).fetchall()}
            if not again:  # Replace the view `measurement` by a table, because the parent process only reads tables.
                connection.execute("DROP VIEW db.measurement; ALTER TABLE db.measurement_read RENAME TO measurement")
        read: list[dict[str, Any]] = []
        for number, rows in enumerate(counts):
            gpus, replayed = facts.get(number, ([], False))
            read.append({"rows": rows, "gpus": gpus, "replayed": replayed})
        return {"groups": read}

    @contextmanager
    def _segments_opened(self, groups: Sequence[Mapping[str, Sequence[str]]]) -> "Iterator[DuckDBPyConnection]":
        """Yield a connection to the rows of all files.

        The relation `db.<table>` has the distinct rows of a table. The relation `<table>_rows` also has the `number` of
        each group that contains the row.
        """
        files = list(dict.fromkeys(file for group in groups for names in group.values() for file in names))
        places = {file: place for place, file in enumerate(files)}
        members = {
            (number, places[file]) for number, group in enumerate(groups) for some in group.values() for file in some
        }
        paths, database = [Path(file) for file in files], self.folder / CHECKED
        with (
            closing(connect_files(paths, self.folder, self.limits, database)) as connection,
            one_line(self.title),
        ):
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
                rows = self._rows_of_files(connection, some, table)
                self._count(connection, f"({rows})", table)
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

    def _rows_of_files(self, connection: "DuckDBPyConnection", files: Sequence[str], table: str) -> str:
        """Return an SQL query for the rows of Parquet files and the number of each row's file."""
        kinds = layout_of().columns[table]
        if not files:
            return f"SELECT {all_columns(kinds, ())}, 0 AS file LIMIT 0"
        source = f"read_parquet([{', '.join(map(quoted, files))}], union_by_name = true, filename = true)"
        described = connection.execute(f"DESCRIBE SELECT * EXCLUDE (filename) FROM {source}").fetchall()
        for name, kind, *_ in described:
            if kinds.get(name) != kind:
                column = f"{name[:40]!r} of type {kind[:40]}"
                raise UsageError(f"{self.title}: a segment of the table {table} has a column {column}")
        columns = all_columns(kinds, [name for name, *_ in described])
        return f"SELECT {columns}, file FROM {source} JOIN file USING (filename)"

    def _check_tables(self, connection: "DuckDBPyConnection", effect: str) -> dict[str, int]:
        """Return the number of rows in each table. Raise `UsageError` if a row is not valid. The message ends with the
        text `effect`."""
        try:
            counts = {table: self._count(connection, f"db.{table}", table) for table in TABLES}
            for table in (table for table, count in counts.items() if count):
                check_rows(connection, table, layout_of(), self.title)
                if double := _double_keys(connection, table, f"db.{table}"):
                    raise UsageError(f"{self.title}: rows of the table {table} occur twice ({double[0]})")
            return counts
        except UsageError as error:
            raise UsageError(f"{error}; {effect}") from None

    def _count(self, connection: "DuckDBPyConnection", source: str, table: str) -> int:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {source}").fetchall()
        if count > self.limits.rows:
            raise UsageError(f"{self.title}: the table {table} has more rows than a file of its size can hold")
        return int(count)

    def _write_tables(self, connection: "DuckDBPyConnection", tables: Iterable[str]) -> None:
        """Write the rows of tables to Parquet files, without empty columns."""
        for table in tables:
            if table != "measurement":
                kinds = used_columns(connection, f"db.{table}", layout_of().columns[table])
                columns = ", ".join(f'"{name}"' for name in kinds)
                self._write(connection, f"SELECT {columns} FROM db.{table}", f"{table}.parquet")

    def _write(self, connection: "DuckDBPyConnection", query: str, name: str) -> None:
        target = quoted(self.folder / name)
        connection.execute(f"COPY ({query}) TO {target} (FORMAT parquet, ROW_GROUP_SIZE 20000)")

    def read_table(self, most_rows: int) -> None:
        """Copy a Parquet file to `table.parquet`, with its columns in plain types. Raise `UsageError` if the file is
        too large."""
        path = self.path
        with closing(connect_files([path], self.folder, self.limits)) as connection, one_line(path):
            name = quoted(path.absolute())
            measure = (
                "SELECT sum(num_values) / count(DISTINCT column_id), sum(total_uncompressed_size) "
                f"FROM parquet_metadata({name})"
            )
            rows, size = connection.execute(measure).fetchone() or (0, 0)
            # Check the stated numbers of rows and bytes before reading, because a few bytes can encode any number of
            # rows.
            if (rows or 0) > most_rows or (size or 0) > _LARGEST_TABLE:
                raise UsageError(f"{path} holds {rows:.0f} rows, {size} bytes, more than any recording; it is not read")
            described = connection.execute(f"DESCRIBE FROM read_parquet({name})").fetchall()
            columns = ", ".join(_plain(column.replace('"', '""'), kind) for column, kind, *_ in described)
            self._write(
                connection, f"SELECT {columns} FROM read_parquet({name}) LIMIT {most_rows + 1}", "table.parquet"
            )


_TASKS: Mapping[str, Callable[..., object]] = {
    "database": FileReader.read_database,
    "segments": FileReader.read_segments,
    "check": FileReader.check_database,
    "faults": FileReader.find_faults,
    "table": FileReader.read_table,
}


def _faults(connection: "DuckDBPyConnection", latest: datetime) -> Iterator[tuple[str, str, list[str]]]:
    from kernrec.store.native_duckdb import duckdb

    for table in TABLES:
        wrong = False
        try:
            for fault, keys in faults(connection, table, layout_of(), most=_ALL, latest=latest):
                wrong = True
                yield table, fault, keys
        except (duckdb.Error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            if not wrong:
                raise


def _double_keys(connection: "DuckDBPyConnection", table: str, source: str) -> list[str]:
    # Count hashes first, because counting keys takes twice the memory. Compare keys only if two hashes are equal.
    ((some,),) = connection.execute(f"SELECT count(*) > count(DISTINCT hash({table}_id)) FROM {source}").fetchall()
    if not some:
        return []
    double = f"SELECT {table}_id FROM {source} GROUP BY 1 HAVING count(*) > 1 LIMIT 1"
    return [str(key) for (key,) in connection.execute(double).fetchall()]


def _plain(name: str, kind: str) -> str:
    if kind not in _PLAIN:
        kind = "DOUBLE" if kind.startswith("DECIMAL") else "TIMESTAMP" if kind.startswith("TIMESTAMP") else "VARCHAR"
    return f'CAST("{name}" AS {kind}) AS "{name}"'


if __name__ == "__main__":
    sys.exit(serve_request(answer))
