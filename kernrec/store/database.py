"""A database file: the log of measurements and what it refers to, opened, filled, asked and merged."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType

import duckdb

from kernrec.errors import UsageError, unknown
from kernrec.op import Problem
from kernrec.store import rows as store_rows
from kernrec.store.connection import check_whole, connect, connect_memory, one_line, quoted
from kernrec.store.identity import content_hash
from kernrec.store.migrations import TABLES, migrate, migrations, schema_version
from kernrec.store.profiles import ProfileRow, ProfileTable, query_profiles
from kernrec.store.rows import Row


@dataclass(frozen=True)
class Measured:
    """What the log says of one config on one GPU and problem, at one power limit and clock.

    The rule: rows of the newest protocol only; in each session the most thorough tier, the median of its rows;
    then the median over `sessions`. `energy_j` and `power_w` are None where nobody measured energy;
    `power_limit_w` and `locked_sm_clock_hz` are None for the card's default and an unlocked clock.
    """

    kernel: str
    kernel_hash: str
    config: dict[str, int]
    latency_s: float
    energy_j: float | None
    power_w: float | None
    sessions: int
    protocol_version: int
    measured_at: datetime
    device: str | None
    power_limit_w: float | None
    locked_sm_clock_hz: float | None


class Database:
    """An open database. Use it in a `with` statement, or close it; one thread at a time.

    Every method raises `UsageError`, in one line that names the file, when the database cannot do it.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, path: Path | str) -> None:
        self._connection = connection
        self.path = path

    @classmethod
    def open(cls, path: Path, *, read_only: bool = True, create: bool = False) -> "Database":
        """Open the database at `path`; for writing, bring an older schema up to date.

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
                        needed = f"this kernrec needs {len(migrations())}: open it for writing once"
                        raise UsageError(f"{path} has schema {version}, {needed}")
                    migrate(connection, version)
        except BaseException:
            database.close()
            if not existed:
                path.unlink(missing_ok=True)
            raise
        return database

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

        A row is as for `add`, but has `config`, a mapping of the tunables, and `problem`, a `Problem`, for
        `config_id` and `problem_id`: those rows are added with it.
        """
        given = [dict(row) for row in rows]
        configs, problems = [], []
        for row in given:
            config, problem = row.pop("config", None), row.pop("problem", None)
            if not isinstance(config, Mapping) or not isinstance(problem, Problem):
                raise UsageError("a measurement needs `config`, the tunables' values, and `problem`, a Problem")
            configs.append({"kernel": row.get("kernel"), "tunables": config})
            problems.append(
                {
                    "key": problem.key,
                    "op": problem.op,
                    "dims": dict(problem.dims),
                    "dtype": problem.dtype,
                    "layout": problem.layout,
                }
            )
        with one_line(self.path):
            self._connection.execute("BEGIN")
            try:
                config_ids = store_rows.insert(self._connection, "config", configs)
                problem_ids = store_rows.insert(self._connection, "problem", problems)
                for row, config_id, problem_id in zip(given, config_ids, problem_ids, strict=True):
                    row |= {"config_id": config_id, "problem_id": problem_id}
                keys = store_rows.insert(self._connection, "measurement", given)
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
        return keys

    def add_profiles(self, rows: Iterable[ProfileRow]) -> list[str]:
        """Add static profiles; gives their keys, in order."""
        return self.add("profile", (row.columns() for row in rows))

    def rows(self, table: str, **equal: object) -> list[dict[str, object]]:
        """The rows of a table or of the views `answer`, `best` and `front` whose columns equal those given."""
        self._check(table, "answer", "best", "front")
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

    def measured(self, gpu: str, kernels: Iterable[str], problem_key: str) -> list[Measured]:
        """What was measured of these kernels on a GPU and problem, fastest first, by the rule of `Measured`."""
        query = """
            SELECT answer.kernel, kernel_hash, tunables, latency_s, energy_j, power_w, sessions, protocol_version,
                   measured_at, device, power_limit_w, locked_sm_clock_hz
            FROM answer JOIN config USING (config_id)
            WHERE gpu = $1 AND problem_id = $2 AND list_contains($3::VARCHAR[], answer.kernel)
            ORDER BY latency_s, answer.kernel, kernel_hash, config_id, power_limit_w, locked_sm_clock_hz
        """
        with one_line(self.path):
            # The problem's key first: as a constant it reaches the scan of the log, which a join would read whole.
            problem = self._connection.execute("SELECT problem_id FROM problem WHERE key = ?", [problem_key]).fetchone()
            if problem is None:
                return []
            found = self._connection.execute(query, [gpu, problem[0], list(kernels)]).fetchall()
        return [Measured(kernel, digest, json.loads(tunables), *rest) for kernel, digest, tunables, *rest in found]

    def measured_problems(self, gpu: str) -> frozenset[str]:
        """The keys of all problems with a good measurement on `gpu`: whether to ask `measured` at all."""
        query = """
            SELECT DISTINCT problem.key FROM measurement JOIN problem USING (problem_id)
            WHERE gpu = ? AND outcome = 'ok'
        """
        with one_line(self.path):
            return frozenset(key for (key,) in self._connection.execute(query, [gpu]).fetchall())

    def profiles(self, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        """The static profiles of a kernel's source on one architecture, by launch; empty without any."""
        with one_line(self.path):
            return query_profiles(self._connection, "profile", kernel, kernel_hash, sm)

    def merge(self, other: Path) -> int:
        """Add every row of the database at `other` that is not here; gives how many were new. All or nothing."""
        Database.open(other).close()  # so that a file that is not one of ours says what it is
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

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        query = "SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
        with one_line(self.path):
            found = self._connection.execute(query).fetchone()
        return dict(zip(TABLES, found or (), strict=True))

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
