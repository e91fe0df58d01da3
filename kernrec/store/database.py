"""Open a database file, add rows to it, and hide rows that queries must not use.

To hide rows, kernrec attaches the file as `file`, and creates views in an in-memory database `db`. So queries are the
same for all files.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from shutil import move
from typing import TYPE_CHECKING

from kernrec.errors import UsageError, unknown
from kernrec.store import exchange, schema
from kernrec.store import rows as store_rows
from kernrec.store.connection import (
    check_whole,
    connect,
    connect_memory,
    exchange_folder,
    is_open,
    one_line,
    transaction,
)
from kernrec.store.gpu_scales import update_scales
from kernrec.store.marks import Faults, Mark, file_state, has_open, inode_of, is_own, read_mark, write_mark
from kernrec.store.profiles import ProfileRow
from kernrec.store.queries import DatabaseQueries
from kernrec.store.query_file import write_cache
from kernrec.store.reader import read_untrusted
from kernrec.store.rows import Row
from kernrec.store.schema import TABLES, layout_of
from kernrec.util.files import remove_abandoned

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from kernrec.kernel import Kernel
    from kernrec.op import Problem
    from kernrec.store.measurement import Measurement

_OTHERS = {
    "merged": (
        "SELECT measurement_id, gpu, problem_id, '' AS signer, NULL::VARCHAR AS bundle FROM file.main.measurement"
    ),
    "merged_row": (
        "SELECT kernel_id AS row_id, '' AS signer FROM file.main.kernel"
        " UNION ALL SELECT profile_id, '' FROM file.main.profile"
    ),
    **{table: f"SELECT * FROM file.main.{table} LIMIT 0" for table in ("gpu_scale", "bundle", "withdrawn")},
}
"""SQL queries that replace tables about contributors in another person's file, keyed by table name. Each row gets an
unknown contributor (an empty signer), because the file may claim anything."""

ADOPT = (
    *(f"DELETE FROM db.{table}" for table in _OTHERS),
    *(
        f"INSERT INTO db.{table} {query.replace('file.main', 'db')}"
        for table, query in _OTHERS.items()
        if not query.endswith("LIMIT 0")
    ),
)
"""SQL statements that replace tables by the results of `_OTHERS` before the first write to another person's file."""


def show_filtered(connection: "DuckDBPyConnection", dropped: Mapping[str, Sequence[str]], own: bool) -> None:
    """Create or replace a view for each table of the file that is attached as `file`.

    Args:
        dropped: Keys of the rows to hide, keyed by table name.
        own: Whether the file belongs to the user. In other files, only tables of the schema get a view.
    """
    connection.execute("CREATE OR REPLACE TABLE db.left_out (name VARCHAR, id VARCHAR)")
    for table, keys in dropped.items():
        connection.execute("INSERT INTO db.left_out SELECT $1, unnest($2::VARCHAR[])", [table, list(keys)])
    there = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'file' AND schema_name = 'main'"
    tables = [str(name) for (name,) in connection.execute(there).fetchall()] if own else list(layout_of().columns)
    for table in tables:
        name = '"' + table.replace('"', '""') + '"'
        query = f"SELECT * FROM file.main.{name}"
        if table == "kernel":  # Keep the order in which the rows were added.
            query = "SELECT *, rowid AS rowid FROM file.main.kernel"
        if table in TABLES and dropped.get(table):
            query += f" WHERE {table}_id NOT IN (SELECT id FROM db.left_out WHERE name = '{table}')"
        if not own:
            query = _OTHERS.get(table, query)
        connection.execute(f"CREATE OR REPLACE VIEW db.{name} AS {query}")


LONGEST_SOURCE = 2**20
"""Maximum length of a stored kernel source, in characters."""
_ATTEMPTS = 5
"""Number of attempts to open a file that other processes keep replacing."""
_CHUNK = 2000
"""Maximum number of measurements per insertion, to limit memory."""


class Database(DatabaseQueries):
    """An open database. Use it in only one thread, and call `close` or use a `with` statement.

    Methods raise `UsageError` if the database cannot be read or written.
    """

    def __init__(self, connection: "DuckDBPyConnection", path: Path | str, mark: Mark | None = None) -> None:
        super().__init__(connection, path, mark)
        self._written = ""  # Device and inode of the file while it is open for writing, or ""
        self.schema = len(schema.migrations())
        """Number of the last migration of this file's schema."""
        self.caches = False
        """Whether `close` creates the cache file of queries if there is none."""

    @classmethod
    def open(cls, path: Path, *, read_only: bool = True, create: bool = False, check_rows: bool = True) -> "Database":
        """Open a database. Update its schema if the schema is old, even if the database is opened only for reading.

        A separate process checks a file that kernrec has not checked before. A row is faulty if it has an impossible
        value or was changed after kernrec wrote it. In the user's own file, queries skip faulty rows, and `faults`
        lists them.

        Args:
            create: Whether to create a missing file. Has no effect if `read_only` is True.
            check_rows: Whether to check for faulty rows.

        Raises:
            UsageError: The file is damaged, in use, not a kernrec database, or has a newer schema. Also raised if
                another person's file has a faulty row. The file is not changed.
        """
        path = Path(path)
        if create and not read_only and not path.exists():
            schema.make_file(path)
            return cls.open_checked(path, read_only=False, mark=Mark("", True))
        for _ in range(_ATTEMPTS):
            state = file_state(path)
            if read_only and path.is_file() and is_open(path):
                return cls(connect(path, read_only=True), path, read_mark(path))
            if not state or not path.is_file() or is_open(path):
                return cls.open_checked(path, read_only=read_only, mark=Mark("", True))
            mark = _checked(path, state, check_rows)
            with suppress(_ReplacedError):
                filtered = read_only and check_rows and bool(mark.faults or not mark.own)
                return cls.open_checked(path, read_only=read_only, mark=mark, state=state, filtered=filtered)
        raise UsageError(f"{path} is replaced repeatedly while it is opened; try again")

    @classmethod
    def open_checked(
        cls, path: Path, *, read_only: bool = True, mark: Mark | None = None, state: str = "", filtered: bool = False
    ) -> "Database":
        """Open a file that was already checked. `open` describes the other arguments.

        Args:
            mark: Result of the check, to be cached (`marks.Mark`). If None, cache nothing.
            state: Result of `marks.file_state` at the check, or empty if the file may have changed since.
            filtered: Whether to hide faulty rows, and in another person's file also the contributors of rows.
        """
        database = cls(connect(path, read_only=read_only), path, mark)
        try:
            with one_line(path):
                _check_opened(path, state, read_only)
                check_whole(database._connection, path)
                version = schema.schema_version(database._connection, path, writing=not read_only)
                if version < len(schema.migrations()):
                    if read_only:
                        database.close()
                        _bring_up_to_date(path, version, mark, state)
                        if mark is not None:
                            raise _ReplacedError
                        return cls(connect(path, read_only=True), path)
                    schema.check_migratable(database._connection, path)
                    schema.migrate(database._connection, version)
                if mark is not None and filtered:
                    database.close()
                    database._connection = connect(path, read_only=True, filtered=True)
                    _check_opened(path, state, read_only)
                    show_filtered(database._connection, mark.dropped, mark.own)
                if mark is not None and not read_only:
                    database._begin_writing(mark)
        except BaseException:
            database.close()
            raise
        return database

    @staticmethod
    def create(path: Path) -> None:
        """Create an empty database file, unless another process creates the file."""
        if schema.make_file(path):
            write_mark(path, Mark(file_state(path), True))

    def _begin_writing(self, mark: Mark) -> None:
        path = Path(self.path)
        if not mark.own:
            with transaction(self._connection):
                for statement in ADOPT:
                    self._connection.execute(statement)
        self._written = inode_of(file_state(path))
        self.mark = replace(mark, own=True, writing=self._written)
        write_mark(path, self.mark)

    @classmethod
    def memory(cls) -> "Database":
        connection = connect_memory()
        schema.migrate(connection, 0, views=False)
        return cls(connection, "the database in memory")

    def close(self) -> None:
        """Write pending changes and close the file."""
        try:
            if self._written and self.mark is not None:
                with suppress(UsageError, OSError):  # If this fails, the next query writes the file.
                    write_cache(self, self.mark, self.caches)
        finally:
            self._connection.close()
        if self._written and self.mark is not None:
            state = file_state(Path(self.path))
            if inode_of(state) == self._written:  # Another process may have replaced the file.
                self.mark = replace(self.mark, state=state, writing="")
                write_mark(Path(self.path), self.mark)

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, table: str, rows: Iterable[Row]) -> list[str]:
        """Add rows to a table. Skip rows that the table already contains. Add nothing if an error occurs.

        Args:
            table: One of `schema.TABLES`.
            rows: Values of each row, keyed by column name, without the key. Absent columns are NULL. A mapping or list
                in a text column is stored as canonical JSON.

        Returns:
            Key of each row, in the order of `rows`.
        """
        if table not in TABLES:
            raise unknown("table", table, TABLES)
        with one_line(self.path):
            return store_rows.insert(self._connection, table, rows)

    def add_measurements(self, measurements: "Iterable[Measurement]") -> list[str]:
        """Add measurements with their configs and problems, and return their keys. If an error occurs, add nothing."""
        keys: list[str] = []
        remaining = iter(measurements)
        with one_line(self.path), transaction(self._connection):
            while chunk := list(islice(remaining, _CHUNK)):
                rows = [{n: value for n, value in each.columns().items() if value is not None} for each in chunk]
                configs = [{"kernel": row.get("kernel"), "tunables": row.pop("config")} for row in rows]
                problems = [vars(row.pop("problem")) for row in rows]
                config_ids = store_rows.insert(self._connection, "config", configs)
                problem_ids = store_rows.insert(self._connection, "problem", problems)
                for row, config_id, problem_id in zip(rows, config_ids, problem_ids, strict=True):
                    row |= {"config_id": config_id, "problem_id": problem_id}
                keys += store_rows.insert(self._connection, "measurement", rows)
        return keys

    def add_profiles(self, rows: Iterable[ProfileRow]) -> list[str]:
        """Add static profiles of the user, and return their keys in the order of `rows`."""
        keys = self.add("profile", (row.columns() for row in rows))
        self._own_rows(keys)
        return keys

    def add_kernel(self, kernel: "Kernel", problem: "Problem") -> None:
        """Add a user's kernel and one of its problems. Skip the kernel if its source is longer than
        `LONGEST_SOURCE`."""
        row = {
            "name": kernel.name,
            "kernel_hash": kernel.hash,
            "op": kernel.op,
            "spec": json.dumps(kernel.spec),  # The order of tunables and dimensions matters.
            "source": kernel.source,
        }
        if len(kernel.source) > LONGEST_SOURCE:
            return
        self._own_rows(self.add("kernel", [row]))
        self.add("problem", [problem.as_dict()])

    def _own_rows(self, keys: list[str]) -> None:
        self.query("DELETE FROM db.merged_row WHERE row_id IN (SELECT unnest(?))", [keys])

    def add_from(
        self,
        checked: Path,
        *,
        apart_from: Sequence[str] = (),
        then: Callable[[Path], Sequence[str]] | None = None,
        signer: str | None = None,
    ) -> int:
        """Add checked rows from files, and return the number of new rows. If an error occurs, add nothing.

        Args:
            checked: Folder with checked files for `exchange.add_rows`. This method moves the files out of the folder.
            apart_from: Columns of `measurement` to ignore when comparing new rows with stored rows.
            then: Function that receives the files' new folder and returns more SQL statements for the same transaction.
            signer: Public key of the contributor, or empty for an unknown contributor. None stores no contributor.
        """
        remove_abandoned()
        with exchange_folder(self._connection) as folder:
            for file in checked.iterdir():
                if file.suffix in (".duckdb", ".parquet"):
                    move(file, folder / file.name)
            with one_line(self.path):
                last = then(folder) if then else ()
                return exchange.add_rows(self._connection, folder, self.path, apart_from, last, signer)

    def rescale(self) -> None:
        with one_line(self.path), transaction(self._connection):
            update_scales(self._connection)

    def change(self, statements: Iterable[str]) -> None:
        """Execute SQL statements in one transaction. Table names must begin with `db.`."""
        with one_line(self.path), transaction(self._connection):
            for statement in statements:
                self._connection.execute(statement)

    def remove(self, faults: Faults) -> int:
        """Delete the faulty rows, and return their number."""
        before = sum(self.counts().values())
        with one_line(self.path), transaction(self._connection):
            for table, by in faults.items():
                keys = [key for some in by.values() for key in some]
                self._connection.execute(f"DELETE FROM db.{table} WHERE {table}_id IN (SELECT unnest(?))", [keys])
            update_scales(self._connection)
        if self.mark is not None:
            self.mark = replace(self.mark, faults={})
        return before - sum(self.counts().values())


def _checked(path: Path, state: str, check_rows: bool) -> Mark:
    mark = read_mark(path)
    own = is_own(path, mark)
    if not mark.holds(state):
        faults: Faults = {}
        if own and check_rows:
            faults = read_untrusted("faults", path, state=state)
        else:
            read_untrusted("check", path, rows=check_rows, state=state)
        mark = Mark(state, own, "", faults, time.time())
        if check_rows:
            write_mark(path, mark)
    return replace(mark, own=own)


def replace_file(new: Path, path: Path, faults: Faults | None = None) -> None:
    """Move a closed database file to `path`, replacing any file there."""
    # Write a mark that is valid before and after `os.replace`, because the process may be killed in between.
    write_mark(path, replace(read_mark(path), writing=inode_of(file_state(new))))
    os.replace(new, path)
    write_mark(path, Mark(file_state(path), True, "", faults or {}, time.time()))


class _ReplacedError(UsageError):
    """Another process replaced the file after it was checked."""


def _check_opened(path: Path, state: str, read_only: bool) -> None:
    now = file_state(path)
    # Opening for writing applies DuckDB's log, which changes the file's size and time. Then compare only the inode.
    exact = read_only or state.endswith("\n")
    if state and (inode_of(now) != inode_of(state) or not has_open(state) or (exact and now != state)):
        raise _ReplacedError(f"{path} was replaced while it was opened")


def _bring_up_to_date(path: Path, version: int, mark: Mark | None, state: str) -> None:
    try:
        Database.open_checked(path, read_only=False, mark=mark, state=state).close()
    except _ReplacedError:
        raise
    except UsageError as error:
        raise UsageError(
            f"{error} (it has schema {version} and this kernrec needs {len(schema.migrations())})"
        ) from None
