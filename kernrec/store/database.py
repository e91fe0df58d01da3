"""A database file: the log of measurements and what it refers to, opened, filled, asked and merged."""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING

from kernrec.errors import UsageError, unknown
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

    from kernrec.store.measurement import Measurement

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
    def check(path: Path) -> int:
        """The schema of a database, which is left as it is; raises `UsageError` if this kernrec cannot read it."""
        with connect(Path(path), read_only=True, create=False) as connection, one_line(path):
            check_whole(connection, Path(path))
            version = schema_version(connection, path)
            if version == 0:
                raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")
            return version

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

    def add_measurements(self, measurements: "Iterable[Measurement]") -> list[str]:
        """Add measurements, with their configs and problems; gives their keys, in order. All or nothing."""
        keys: list[str] = []
        remaining = iter(measurements)
        with one_line(self.path):
            self._connection.execute("BEGIN")
            try:
                while chunk := list(islice(remaining, _CHUNK)):
                    keys += self._insert_measurements(chunk)
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
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
        """The measurements whose columns equal those given."""
        from kernrec.store.measurement import Measurement

        configs = {row["config_id"]: json.loads(str(row["tunables"])) for row in self.rows("config")}
        problems = {}
        for row in self.rows("problem"):
            row["dims"] = json.loads(str(row["dims"]))
            problems[row.pop("problem_id")] = row
        found = []
        for row in self.rows("measurement", **equal):
            del row["measurement_id"]
            row |= {"config": configs[row.pop("config_id")], "problem": problems[row.pop("problem_id")]}
            found.append(Measurement.from_columns(row))
        return found

    def add_profiles(self, rows: Iterable[ProfileRow]) -> list[str]:
        """Add static profiles; gives their keys, in order."""
        return self.add("profile", (row.columns() for row in rows))

    def rows(self, table: str, **equal: object) -> list[dict[str, object]]:
        """The rows of a table or view (`whole_card_rows`, `answer`, `best` or `front`) whose columns equal `equal`."""
        self._check(table, "whole_card_rows", "answer", "best", "front")
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
            SELECT DISTINCT problem.key FROM whole_card_rows JOIN problem USING (problem_id)
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

        Nothing is written there: one of an older schema is copied and the copy brought up to date.
        """
        before = sum(self.counts().values())
        with _at_this_schema(Path(other)) as file:
            with one_line(other):
                self._connection.execute(f"ATTACH {quoted(file.absolute())} AS other (READ_ONLY)")
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
                   count(*) FILTER (replayed) AS replayed, count(*) FILTER (mig) AS mig,
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


@contextmanager
def _at_this_schema(path: Path) -> Iterator[Path]:
    """A database of today's schema with the content of the one at `path`: itself, or a copy that lives as long."""
    if Database.check(path) == len(migrations()):
        yield path
        return
    with TemporaryDirectory(prefix="kernrec-") as folder, one_line(path):
        copy = Path(folder) / path.name
        for suffix in ("", ".wal"):  # DuckDB's log of what is not yet in the file, after a crash
            if (file := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(file, copy.with_name(copy.name + suffix))
        Database.open(copy, read_only=False).close()
        yield copy


def _bring_up_to_date(path: Path, version: int) -> None:
    """Migrate a file that was to be read only: whoever updates kernrec should not have to update databases by hand."""
    try:
        Database.open(path, read_only=False).close()
    except UsageError as error:
        raise UsageError(f"{error} (it has schema {version} and this kernrec needs {len(migrations())})") from None
