"""A database file: opening, adding rows and queries."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kernrec.errors import UsageError, unknown
from kernrec.store import exchange, new_file
from kernrec.store import rows as store_rows
from kernrec.store.add_rows import add_rows
from kernrec.store.connection import (
    check_whole,
    connect,
    connect_memory,
    exchange_folder,
    is_open,
    one_line,
    transaction,
)
from kernrec.store.contents import DatabaseContents, contents_of
from kernrec.store.derived import MOMENT, derived, with_derived
from kernrec.store.evidence import MeasuredAnswer
from kernrec.store.identity import content_hash
from kernrec.store.known_files import is_known, remember, state_of
from kernrec.store.layout import check_migratable
from kernrec.store.measurement_log import MeasurementLog, evidence, read_log
from kernrec.store.migrations import TABLES, migrate, migrations, schema_version
from kernrec.store.profiles import ProfileRow, ProfileTable, query_profiles
from kernrec.store.row_hash import used_columns, wrong_keys
from kernrec.store.rows import Row
from kernrec.util.scratch import remove_abandoned, scratch_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from kernrec.store.measurement import Measurement

_CHUNK = 2000
"""Measurements that are inserted at a time, so that a large recording is not in memory twice."""


class Database:
    """An open database. Use it in a `with` statement, or close it; one thread at a time.

    Every method raises `UsageError`, in one line that names the file, when the database cannot do it.
    """

    def __init__(self, connection: "DuckDBPyConnection", path: Path | str, *, writes: bool = False) -> None:
        self._connection = connection
        self.path = path
        self._writes = writes

    @classmethod
    def open(cls, path: Path, *, read_only: bool = True, create: bool = False, check_rows: bool = True) -> "Database":
        """Open a database and bring its schema up to date, even if it will only be read.

        A file that this program neither wrote nor had checked before is checked first, by a process of its own.

        Args:
            path: of the file.
            read_only: whether it will only be read.
            create: whether to create it if it does not exist (needs `read_only=False`).
            check_rows: whether a file with a row that was changed or cannot be is refused.

        Raises:
            UsageError: for a file that is not a kernrec database, damaged, in use or of a newer schema; it is not
                changed.
        """
        path = Path(path)
        state = state_of(path)
        if state and path.is_file() and not is_known(path, state) and not is_open(path):
            _check_apart(path, check_rows)
            if check_rows:
                remember(path, state)
        return cls.open_checked(path, read_only=read_only, create=create)

    @classmethod
    def open_checked(cls, path: Path, *, read_only: bool = True, create: bool = False) -> "Database":
        """As `open`, for a file that was checked, and in the process that checks."""
        existed = path.exists()
        if create and not read_only and not existed:
            new_file.make(path)
        connection = connect(path, read_only=read_only, create=create)
        database = cls(connection, path)
        try:
            with one_line(path):
                check_whole(connection, path)
                version = schema_version(connection, path, writing=not read_only)
                if version == 0 and not create:
                    raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")
                if version < len(migrations()):
                    if read_only:
                        connection.close()
                        _bring_up_to_date(path, version)
                        return cls(connect(path, read_only=True, create=False), path)
                    check_migratable(connection, path)
                    migrate(connection, version)
        except BaseException:
            database.close()
            if not existed:
                path.unlink(missing_ok=True)
            raise
        database._writes = not read_only
        return database

    @classmethod
    def memory(cls) -> "Database":
        """An empty database in memory."""
        connection = connect_memory()
        migrate(connection, 0)
        return cls(connection, "the database in memory")

    def close(self) -> None:
        """Write pending changes and close the file."""
        self._connection.close()
        if self._writes:
            remember(Path(self.path), state_of(Path(self.path)))

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, table: str, rows: Iterable[Row]) -> list[str]:
        """Add rows to a table, all or nothing; rows that are there already are not added again.

        Args:
            table: `gpu`, `kernel`, `config`, `problem`, `profile` or `measurement`.
            rows: values by column (`db/schema`), without the key; columns left out are NULL. A mapping or list for a
                text column is stored as canonical JSON.

        Returns:
            The keys of the rows, in order.
        """
        self._check(table)
        with one_line(self.path):
            return store_rows.insert(self._connection, table, rows)

    def add_measurements(self, measurements: "Iterable[Measurement]") -> list[str]:
        """Add measurements with their configs and problems, all or nothing; returns their keys, in order."""
        keys: list[str] = []
        remaining = iter(measurements)
        with one_line(self.path), transaction(self._connection):
            while chunk := list(islice(remaining, _CHUNK)):
                keys += self._insert_measurements(chunk)
        return keys

    def _insert_measurements(self, measurements: "Sequence[Measurement]") -> list[str]:
        rows = [
            {name: value for name, value in measurement.columns().items() if value is not None}
            for measurement in measurements
        ]
        configs = [{"kernel": row.get("kernel"), "tunables": row.pop("config")} for row in rows]
        problems = [vars(row.pop("problem")) for row in rows]
        config_ids = store_rows.insert(self._connection, "config", configs)
        problem_ids = store_rows.insert(self._connection, "problem", problems)
        for row, config_id, problem_id in zip(rows, config_ids, problem_ids, strict=True):
            row |= {"config_id": config_id, "problem_id": problem_id}
        return store_rows.insert(self._connection, "measurement", rows)

    def measurements(self, **equal: object) -> "list[Measurement]":
        """The measurements whose columns equal those given, without those that were taken back."""
        from kernrec.store.measurement import Measurement

        configs = {row["config_id"]: json.loads(str(row["tunables"])) for row in self.rows("config")}
        problems = {}
        for row in self.rows("problem"):
            row["dims"] = json.loads(str(row["dims"]))
            problems[row.pop("problem_id")] = row
        measurements = []
        for row in self.rows("unretracted_rows", **equal):
            del row["measurement_id"]
            row |= {"config": configs[row.pop("config_id")], "problem": problems[row.pop("problem_id")]}
            measurements.append(Measurement.from_columns(row))
        return measurements

    def add_profiles(self, rows: Iterable[ProfileRow]) -> list[str]:
        """Add static profiles; returns their keys, in order."""
        return self.add("profile", (row.columns() for row in rows))

    def rows(self, table: str, **equal: object) -> list[dict[str, object]]:
        """The rows of a table or view (`db/schema/views.sql`) whose columns equal `equal`."""
        self._check(table, *derived())
        with one_line(self.path):
            known = self.columns(table)
            for name in equal:
                if name not in known:
                    raise unknown(f"column of {table}", name, known)
            where = " AND ".join(f"{name} = ?" for name in equal) or "true"
            source = table if table in derived() else f"db.{table}"
            query = f"FROM {source} WHERE {where} ORDER BY ALL"
            if table in derived():
                query = with_derived(table, query)
            return store_rows.as_dicts(self._connection.execute(query, list(equal.values())))

    def kernels(self, name: str | None = None) -> list[tuple[str, str, str]]:
        """(name, spec, source) of the kernels in the database, or of those with this name; the last added is first."""
        query = "SELECT name, spec, source FROM db.kernel WHERE $1 IS NULL OR name = $1 ORDER BY rowid DESC"
        with one_line(self.path):
            return self._connection.execute(query, [name]).fetchall()

    def log(self, gpu: str, problems: Sequence[str], *, title: str = "", signed: bool = False) -> MeasurementLog:
        """The answers and failures of a GPU and the problems of these keys, by problem; see `read_log`."""
        with one_line(self.path):
            return read_log(self._connection, gpu, problems, title, signed)

    def measured(self, gpu: str, kernels: Iterable[str], problem_key: str) -> list[MeasuredAnswer]:
        """The measured answers of these kernels on a GPU and problem, fastest first."""
        return list(evidence([self.log(gpu, [problem_key])], kernels, problem_key).measured)

    def measured_problems(self, gpu: str) -> frozenset[str]:
        """The keys of all problems with a measurement on `gpu` that ran well."""
        query = """
            SELECT DISTINCT problem.key FROM whole_card_rows JOIN db.problem AS problem USING (problem_id)
            WHERE gpu = ? AND outcome = 'ok'
        """
        with one_line(self.path):
            result = self._connection.execute(with_derived("whole_card_rows", query), [gpu])
            return frozenset(key for (key,) in result.fetchall())

    def session_rows(
        self, gpu: str, kernel: str, session: str
    ) -> list[tuple[str, dict[str, int], float | None, float | None]]:
        """(session, config, latency in s, energy in J) of each measurement whose session begins with `session`; None:
        failed, or not measured."""
        query = """
            SELECT session, tunables, latency_s, energy_j
            FROM db.measurement AS row JOIN db.config AS config USING (config_id)
            WHERE row.gpu = ? AND row.kernel = ? AND starts_with(row.session, ?) ORDER BY ALL
        """
        with one_line(self.path):
            rows = self._connection.execute(query, [gpu, kernel, session]).fetchall()
        return [(name, json.loads(tunables), *costs) for name, tunables, *costs in rows]

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """The static profiles of a kernel's source on one architecture, by launch; empty if there are none."""
        with one_line(self.path):
            return query_profiles(self._connection, "db.profile", kernel, kernel_hash, sm)

    def add_from(
        self,
        write: Callable[[Path], object],
        *,
        apart_from: Sequence[str] = (),
        then: Callable[[Path], Sequence[str]] | None = None,
    ) -> int:
        """Add rows that are not here yet from Parquet files, all or nothing; returns how many were new.

        Args:
            write: writes `<table>.parquet` files, whose rows were checked, to the folder it is given.
            apart_from: columns of `measurement`; a row that differs from one here in these alone is not added.
            then: statements that belong to the same transaction, given the folder.
        """
        remove_abandoned()
        with exchange_folder(self._connection) as folder:
            write(folder)
            with one_line(self.path):
                return add_rows(self._connection, folder, self.path, apart_from, then(folder) if then else ())

    def change(self, statements: Iterable[str]) -> None:
        """Execute statements that name tables in full, all or nothing."""
        with one_line(self.path), transaction(self._connection):
            for statement in statements:
                self._connection.execute(statement)

    def keep(self, name: str, query: str, files: Mapping[str, Sequence[Path]]) -> None:
        """Keep the rows of a query as a table of this connection; see `kernrec.store.exchange.keep`."""
        with one_line(self.path):
            exchange.keep(self._connection, name, query, files)

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query in SQL that names tables in full (`db.measurement`)."""
        with one_line(self.path):
            return self._connection.execute(query).fetchall()

    def batches(self, query: str, most: int) -> Iterator[list[tuple[Any, ...]]]:
        """The same, at most so many at a time."""
        with one_line(self.path):
            cursor = self._connection.cursor().execute(query)
            while rows := cursor.fetchmany(most):
                yield rows

    def export(self, query: str, folder: Path, most: int) -> list[tuple[Path, int]]:
        """Write the rows of a query to Parquet files of at most `most` rows; returns the files and their rows."""
        with one_line(self.path):
            return exchange.export(self._connection, query, folder, most)

    @property
    def schema(self) -> int:
        """The number of the last step of the schema that was applied."""
        with one_line(self.path):
            return schema_version(self._connection, self.path)

    def tally(self) -> list[dict[str, object]]:
        """How many measurements there are for each GPU, op, kernel and outcome, in that order.

        `replayed` and `mig` count those of them that were replayed, and those of MIG slices.
        """
        query = """
            SELECT gpu, op, kernel, outcome, count(*) AS measurements,
                   count(*) FILTER (replayed) AS replayed, count(*) FILTER (mig) AS mig,
                   count(DISTINCT config_id) AS configs,
                   count(DISTINCT problem_id) AS problems
            FROM db.measurement JOIN db.problem USING (problem_id)
            GROUP BY gpu, op, kernel, outcome ORDER BY ALL
        """
        with one_line(self.path):
            return store_rows.as_dicts(self._connection.execute(query))

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        query = "SELECT " + ", ".join(f"(SELECT count(*) FROM db.{table})" for table in TABLES)
        with one_line(self.path):
            counts = self._connection.execute(query).fetchone()
        return dict(zip(TABLES, counts or (), strict=True))

    def contents(self) -> DatabaseContents:
        """A summary of the database."""
        with one_line(self.path):
            return contents_of(self._connection)

    def key_range(self) -> tuple[str, str] | None:
        """The least and the greatest key of a measurement, which takes a look at every row; None without any."""
        query = "SELECT min(measurement_id), max(measurement_id) FROM db.measurement"
        with one_line(self.path):
            row = self._connection.execute(query).fetchone()
        return None if row is None or row[0] is None else (row[0], row[1])

    def content_hash(self) -> str:
        """A hash of the content of all rows, independent of the order in which they were added."""
        keys = {}
        with one_line(self.path):
            for table in TABLES:
                stored = self._connection.execute(f"SELECT {table}_id FROM db.{table}").fetchall()
                true = dict(self._wrong_keys(table))
                keys[table] = sorted(true.get(key, key) for (key,) in stored)
        return content_hash(keys, digits=32)

    def altered(self) -> list[str]:
        """The keys of rows whose content has another hash, because something changed them."""
        with one_line(self.path):
            return [stored for table in TABLES for stored, _ in self._wrong_keys(table)]

    def conflicts(self) -> list[str]:
        """The keys of measurements that contradict another one: the same moment of a session with other values.

        None of them answers (`db/schema/views.sql`).
        """
        query = f"""
            SELECT unnest(list(measurement_id ORDER BY measurement_id)) FROM unretracted_rows
            WHERE block IS NOT NULL AND position IS NOT NULL GROUP BY {MOMENT} HAVING count(*) > 1
        """
        return [key for (key,) in self.query(with_derived("unretracted_rows", query))]

    def _wrong_keys(self, table: str) -> Iterator[tuple[str, str]]:
        kinds = used_columns(self._connection, f"db.{table}", self.columns(table))
        return wrong_keys(self._connection, table, f"db.{table}", kinds)

    def columns(self, table: str) -> dict[str, str]:
        """The columns of a table or view in order, with their types."""
        if table in derived():
            described = self._connection.execute("DESCRIBE " + with_derived(table, f"FROM {table}")).fetchall()
            return {name: kind for name, kind, *_ in described}
        return store_rows.columns(self._connection, table)

    @staticmethod
    def _check(table: str, *views: str) -> None:
        if table not in (*TABLES, *views):
            raise unknown("table", table, (*TABLES, *views))


def _check_apart(path: Path, rows: bool) -> None:
    """Have a process of its own read a file first; raises `UsageError` if it should not be opened."""
    from kernrec.store.reader import read_apart  # what a query of a known file need not wait for

    with scratch_folder() as folder:
        request = {"path": str(path.absolute()), "rows": rows}
        read_apart("check", request, str(path), path.stat().st_size, folder)


def _bring_up_to_date(path: Path, version: int) -> None:
    """Migrate a file that was to be read only: updating kernrec should not require updating databases by hand."""
    try:
        Database.open_checked(path, read_only=False).close()
    except UsageError as error:
        raise UsageError(f"{error} (it has schema {version} and this kernrec needs {len(migrations())})") from None
