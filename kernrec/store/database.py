"""A database file: the log of measurements and what it refers to, opened, filled, asked and merged."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kernrec.errors import UsageError, unknown
from kernrec.op import Problem
from kernrec.store import rows as store_rows
from kernrec.store.connection import check_whole, connect, connect_memory, one_line, quoted
from kernrec.store.evidence import MeasuredAnswer
from kernrec.store.identity import content_hash
from kernrec.store.measurement_log import MeasurementLog, evidence, read_log
from kernrec.store.migrations import TABLES, migrate, migrations, schema_version
from kernrec.store.profiles import ProfileRow, ProfileTable, query_profiles
from kernrec.store.rows import Row

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CHUNK = 2000
"""Measurements that are inserted at a time; a recording of a large space need not be in memory twice."""


@dataclass(frozen=True)
class DatabaseContents:
    """What one database has something of: rows of its log, and (kernel, hash, architecture) with profiles.

    least, greatest: keys of its measurements; None without one.
    """

    measurements: int
    least: str | None
    greatest: str | None
    profiled: frozenset[tuple[str, str, int]]


class Database:
    """An open database. Use it in a `with` statement, or close it; one thread at a time.

    Every method raises `UsageError`, in one line that names the file, when the database cannot do it.
    """

    def __init__(self, connection: "DuckDBPyConnection", path: Path | str) -> None:
        self._connection = connection
        self.path = path

    @classmethod
    def open(cls, path: Path, *, read_only: bool = True, create: bool = False) -> "Database":
        """Open the database at `path`, its schema brought up to date, also where it will only be read.

        create: make it when there is none (needs `read_only=False`). A file that is no database of ours, or that is
        damaged, in use or of a newer schema, is left as it was.
        """
        path = Path(path)
        existed = path.exists()
        connection = connect(path, read_only=read_only, create=create)
        database = cls(connection, path)
        try:
            with one_line(path):
                check_whole(connection, path)
                version = schema_version(connection, path)
                if version == 0 and not create:
                    raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")
                if version < len(migrations()):
                    if read_only:
                        connection.close()
                        _bring_up_to_date(path, version)
                        return cls(connect(path, read_only=True, create=False), path)
                    migrate(connection, version)
        except BaseException:
            database.close()
            if not existed:
                path.unlink(missing_ok=True)
            raise
        return database

    @staticmethod
    def check(path: Path) -> None:
        """Raise `UsageError` for what is no database that this kernrec can read; an older schema is left as it is."""
        with connect(Path(path), read_only=True, create=False) as connection, one_line(path):
            check_whole(connection, Path(path))
            if schema_version(connection, path) == 0:
                raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")

    @classmethod
    def memory(cls) -> "Database":
        """An empty database that lives as long as this object."""
        connection = connect_memory()
        migrate(connection, 0)
        return cls(connection, "the database in memory")

    def close(self) -> None:
        """Write out what is pending and let go of the file."""
        self._connection.close()

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, table: str, rows: Iterable[Row]) -> list[str]:
        """Add rows to `gpu`, `kernel`, `config`, `problem`, `profile` or `measurement`; gives their keys, in order.

        A row names the columns of `db/schema` but the key; what it leaves out is NULL. A mapping or list for a text
        column is stored as canonical JSON. A row that is there already is not added again. All or nothing.
        """
        self._check(table)
        with one_line(self.path):
            return store_rows.insert(self._connection, table, rows)

    def add_measurements(self, rows: Iterable[Row]) -> list[str]:
        """Add measurements; gives their keys, in order. All or nothing.

        A row is as for `add`, but has `config`, a mapping of the tunables, and `problem`, a `Problem` or what its
        `as_dict` gave, for `config_id` and `problem_id`: those rows are added with it.
        """
        keys: list[str] = []
        given = iter(rows)
        with one_line(self.path):
            self._connection.execute("BEGIN")
            try:
                while some := list(islice(given, _CHUNK)):
                    keys += self._insert_measurements(some)
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
        return keys

    def _insert_measurements(self, rows: Iterable[Row]) -> list[str]:
        given = [dict(row) for row in rows]
        configs, problems = [], []
        for row in given:
            config, problem = row.pop("config", None), row.pop("problem", None)
            if isinstance(problem, Problem):
                problem = problem.as_dict()
            if not isinstance(config, Mapping) or not isinstance(problem, Mapping):
                raise UsageError("a measurement needs `config`, the tunables' values, and `problem`, a Problem")
            configs.append({"kernel": row.get("kernel"), "tunables": config})
            problems.append(problem)
        config_ids = store_rows.insert(self._connection, "config", configs)
        problem_ids = store_rows.insert(self._connection, "problem", problems)
        for row, config_id, problem_id in zip(given, config_ids, problem_ids, strict=True):
            row |= {"config_id": config_id, "problem_id": problem_id}
        return store_rows.insert(self._connection, "measurement", given)

    def add_profiles(self, rows: Iterable[ProfileRow]) -> list[str]:
        """Add static profiles; gives their keys, in order."""
        return self.add("profile", (row.columns() for row in rows))

    def rows(self, table: str, **equal: object) -> list[dict[str, object]]:
        """The rows of a table or view (`spoken`, `answer`, `best`, `front`) whose columns equal those given."""
        self._check(table, "spoken", "answer", "best", "front")
        with one_line(self.path):
            known = store_rows.columns(self._connection, table)
            for name in equal:
                if name not in known:
                    raise unknown(f"column of {table}", name, known)
            where = " AND ".join(f"{name} = ?" for name in equal) or "true"
            query = f"FROM {table} WHERE {where} ORDER BY ALL"
            return store_rows.as_dicts(self._connection.execute(query, list(equal.values())))

    def kernels(self, name: str | None = None) -> list[tuple[str, str, str]]:
        """(name, spec, source) of the kernels in the database, those added last first; `name`: of this name only."""
        query = "SELECT name, spec, source FROM kernel WHERE $1 IS NULL OR name = $1 ORDER BY rowid DESC"
        with one_line(self.path):
            return self._connection.execute(query, [name]).fetchall()

    def log(self, gpu: str, op: str, problem_key: str | None = None) -> MeasurementLog:
        """The answers and failures of a GPU and op by problem, or of one problem alone."""
        with one_line(self.path):
            return read_log(self._connection, gpu, op, problem_key)

    def measured(self, gpu: str, kernels: Iterable[str], problem_key: str) -> list[MeasuredAnswer]:
        """What was measured of these kernels on a GPU and problem, fastest first, by the rule of `MeasuredAnswer`."""
        return list(evidence([self.log(gpu, "", problem_key)], kernels, problem_key).measured)

    def measured_problems(self, gpu: str) -> frozenset[str]:
        """The keys of all problems with a good measurement on `gpu`."""
        query = """
            SELECT DISTINCT problem.key FROM spoken JOIN problem USING (problem_id)
            WHERE gpu = ? AND outcome = 'ok'
        """
        with one_line(self.path):
            return frozenset(key for (key,) in self._connection.execute(query, [gpu]).fetchall())

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """The static profiles of a kernel's source on one architecture, by launch; empty without any."""
        with one_line(self.path):
            return query_profiles(self._connection, "profile", kernel, kernel_hash, sm)

    def merge(self, other: Path) -> int:
        """Add every row of the database at `other` that is not here; gives how many were new. All or nothing.

        Nothing is written there: of an older schema, the tables lack columns that are NULL in their rows.
        """
        self.check(other)
        before = sum(self.counts().values())
        with one_line(other):
            self._connection.execute(f"ATTACH {quoted(Path(other).absolute())} AS other (READ_ONLY)")
        try:
            with one_line(self.path):
                self._connection.execute("BEGIN")
                try:
                    for table in TABLES:
                        self._connection.execute(
                            f"INSERT INTO {table} BY NAME FROM other.main.{table} ON CONFLICT DO NOTHING"
                        )
                    self._connection.execute("COMMIT")
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
        finally:
            self._connection.execute("DETACH other")
        return sum(self.counts().values()) - before

    @property
    def schema(self) -> int:
        """The number of the last step of the schema that was applied."""
        with one_line(self.path):
            return schema_version(self._connection, self.path)

    def tally(self) -> list[dict[str, object]]:
        """How many measurements there are of each GPU, op, kernel and outcome, in that order.

        replayed, mig: how many of them a replay said again, and how many are of a MIG slice.
        """
        query = """
            SELECT gpu, op, kernel, outcome, count(*) AS measurements,
                   count(*) FILTER (measured_by LIKE 'kernrec % replay') AS replayed, count(*) FILTER (mig) AS mig,
                   count(DISTINCT config_id) AS configs,
                   count(DISTINCT problem_id) AS problems
            FROM measurement JOIN problem USING (problem_id)
            GROUP BY gpu, op, kernel, outcome ORDER BY ALL
        """
        with one_line(self.path):
            return store_rows.as_dicts(self._connection.execute(query))

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        query = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
        with one_line(self.path):
            found = self._connection.execute(query).fetchone()
        return dict(zip(TABLES, found or (), strict=True))

    def contents(self) -> DatabaseContents:
        """What it has something of."""
        logged = "SELECT count(*), min(measurement_id), max(measurement_id) FROM measurement"
        with one_line(self.path):
            rows, least, greatest = self._connection.execute(logged).fetchone() or (0, None, None)
            profiled = self._connection.execute("SELECT DISTINCT kernel, kernel_hash, sm FROM profile").fetchall()
        return DatabaseContents(int(rows), least, greatest, frozenset(profiled))

    def content_hash(self) -> str:
        """A hash of all rows, whatever the order they came in; equal for databases of equal content."""
        with one_line(self.path):
            keys = {
                table: [
                    key for (key,) in self._connection.execute(f"SELECT {table}_id FROM {table} ORDER BY 1").fetchall()
                ]
                for table in TABLES
            }
        return content_hash(keys, digits=32)

    def altered(self) -> list[str]:
        """The keys of rows whose content does not hash to them: changed by other hands than ours."""
        wrong = []
        for table in TABLES:
            for row in self.rows(table):
                key = row.pop(f"{table}_id")
                if store_rows.row_key(table, row) != key:
                    wrong.append(str(key))
        return wrong

    @staticmethod
    def _check(table: str, *views: str) -> None:
        if table not in (*TABLES, *views):
            raise unknown("table", table, (*TABLES, *views))


def _bring_up_to_date(path: Path, version: int) -> None:
    """Migrate a file that was to be read only: whoever updates kernrec should not have to update databases by hand."""
    try:
        Database.open(path, read_only=False).close()
    except UsageError as error:
        raise UsageError(f"{error} (it has schema {version} and this kernrec needs {len(migrations())})") from None
