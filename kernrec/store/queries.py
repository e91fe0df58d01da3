"""Query a database file."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shutil import move
from typing import TYPE_CHECKING, Any

from kernrec.errors import unknown
from kernrec.store import rows as store_rows
from kernrec.store.connection import exchange_folder, one_line, quoted
from kernrec.store.exchange import used_columns, wrong_keys
from kernrec.store.marks import Faults, Mark
from kernrec.store.measurement_log import MeasuredAnswer, MeasurementLog, evidence, read_log
from kernrec.store.profiles import ProfileTable, query_profiles
from kernrec.store.rows import content_hash
from kernrec.store.schema import MOMENT, TABLES, derived, with_derived

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from kernrec.store.measurement import Measurement


class DatabaseQueries:
    """Methods of `Database` that read. Each raises `UsageError` if the database cannot be read."""

    def __init__(self, connection: "DuckDBPyConnection", path: Path | str, mark: Mark | None = None) -> None:
        self._connection = connection
        self.path = path
        self.mark = mark
        """Result of the file's last check or write, or None if kernrec has not checked the file."""

    # Queries in SQL must name tables in full (`db.measurement`).

    def query(self, query: str, values: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL query with the parameters `values`."""
        with one_line(self.path):
            return self._connection.execute(query, values).fetchall()

    def keep(self, name: str, query: str, file: Path) -> None:
        """Store the result of a query in a temporary table, replacing a table of the same name.

        Args:
            query: SQL query. `{rows}` stands for the rows of the Parquet file `file`.
            file: Parquet file, which is deleted.
        """
        with one_line(self.path), exchange_folder(self._connection) as folder:
            move(file, folder / file.name)
            query = query.replace("{rows}", f"read_parquet({quoted(folder / file.name)})")
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def export(self, query: str, folder: Path) -> tuple[Path, int]:
        """Write a query's result to a new Parquet file in a folder. Return (path, number of rows)."""
        target = folder / f"{os.urandom(8).hex()}.parquet"
        with one_line(self.path), exchange_folder(self._connection) as exchange:
            file = exchange / "rows.parquet"
            copy = f"COPY ({query}) TO {quoted(file)} (FORMAT parquet, COMPRESSION zstd)"
            ((rows,),) = self._connection.execute(copy).fetchall()
            move(file, target)
        return target, int(rows)

    def rows(self, table: str, **equal: object) -> list[dict[str, object]]:
        """Return the rows of a table or view. Keyword arguments select rows by the value of a column."""
        if table not in (*TABLES, *derived()):
            raise unknown("table", table, (*TABLES, *derived()))
        with one_line(self.path):
            columns = self.columns(table)
            for name in equal:
                if name not in columns:
                    raise unknown(f"column of {table}", name, columns)
            condition = " AND ".join(f"{name} = ?" for name in equal) or "true"
            source = table if table in derived() else f"db.{table}"
            query = f"FROM {source} WHERE {condition} ORDER BY ALL"
            if table in derived():
                query = with_derived(table, query)
            return store_rows.as_dicts(self._connection.execute(query, list(equal.values())))

    def columns(self, table: str) -> dict[str, str]:
        """Return the SQL types of a table's columns, in order, keyed by column name."""
        if table in derived():
            described = self._connection.execute("DESCRIBE " + with_derived(table, f"FROM {table}")).fetchall()
            return {name: kind for name, kind, *_ in described}
        return store_rows.columns(self._connection, table)

    def measurements(self, **equal: object) -> "list[Measurement]":
        """Return all measurements that are not withdrawn. Keyword arguments select rows by the value of a column."""
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

    def kernels(self) -> list[tuple[str, str, str, str | None]]:
        """Return (name, spec, source, signer) of stored kernels, newest first. The signer is None for the user's own
        kernels, and empty if unknown."""
        return self.query(
            "SELECT name, spec, source, (SELECT min(signer) FROM db.merged_row WHERE row_id = kernel_id) AS signer "
            "FROM db.kernel ORDER BY rowid DESC"
        )

    def session_rows(
        self, gpu: str, kernel: str, session: str
    ) -> list[tuple[str, dict[str, int], float | None, float | None]]:
        """Return (session, config, latency in s, energy in J) for all sessions whose name begins with `session`. A cost
        is None if it was not measured."""
        query = """
            SELECT session, tunables, latency_s, energy_j
            FROM db.measurement AS row JOIN db.config AS config USING (config_id)
            WHERE row.gpu = ? AND row.kernel = ? AND starts_with(row.session, ?) ORDER BY ALL
        """
        rows = self.query(query, [gpu, kernel, session])
        return [(name, json.loads(tunables), *costs) for name, tunables, *costs in rows]

    def log(self, gpu: str, problems: Sequence[str], *, signed: bool = False) -> MeasurementLog:
        """Return the measured costs and the failures on a GPU, for problems given by key. `signed` adds the signers."""
        with one_line(self.path):
            return read_log(self._connection, gpu, problems, signed)

    def measured(self, gpu: str, kernels: Iterable[str], problem_key: str) -> list[MeasuredAnswer]:
        return list(evidence([self.log(gpu, [problem_key])], kernels, problem_key).measured)

    def profiles(self, kernel: str, kernel_hash: str, sm: int, *, own: bool = False) -> dict[int, ProfileTable]:
        """Return the static profiles of a kernel's source, keyed by launch number. `own` excludes other people's
        profiles."""
        with one_line(self.path):
            source = "db.profile"
            if self.query("SELECT EXISTS (FROM db.merged_row SEMI JOIN db.profile ON row_id = profile_id)")[0][0]:
                others = "profile_id IN (SELECT row_id FROM db.merged_row)"
                launch = "kernel, kernel_hash, code_key, sm, launch"
                rank = f"rank() OVER (PARTITION BY {launch} ORDER BY {others}) = 1"
                source = f"(FROM db.profile {f'WHERE NOT ({others})' if own else f'QUALIFY {rank}'}) AS profile"
            return query_profiles(self._connection, source, kernel, kernel_hash, sm)

    @property
    def faults(self) -> Faults:
        """Keys of the rows that queries skip, keyed by table name and then by fault."""
        return self.mark.faults if self.mark else {}

    @property
    def left_out(self) -> int:
        """Number of rows that queries skip because they have impossible values."""
        return sum(map(len, self.mark.dropped.values())) if self.mark else 0

    def counts(self) -> dict[str, int]:
        (counts,) = self.query("SELECT " + ", ".join(f"(SELECT count(*) FROM db.{table})" for table in TABLES))
        return dict(zip(TABLES, counts, strict=True))

    def content_hash(self) -> str:
        """Return a hash of all rows that does not depend on their order."""
        keys = {}
        with one_line(self.path):
            for table in TABLES:
                stored = self._connection.execute(f"SELECT {table}_id FROM db.{table}").fetchall()
                true = dict(self._wrong_keys(table))
                keys[table] = sorted(true.get(key, key) for (key,) in stored)
        return content_hash(keys, digits=32)

    def altered(self) -> list[str]:
        """Return the keys of rows that were changed after they were added."""
        with one_line(self.path):
            return [stored for table in TABLES for stored, _ in self._wrong_keys(table)]

    def _wrong_keys(self, table: str) -> Iterator[tuple[str, str]]:
        kinds = used_columns(self._connection, f"db.{table}", self.columns(table))
        return wrong_keys(self._connection, table, f"db.{table}", kinds)

    def conflicts(self) -> list[str]:
        """Return the keys of measurements that contradict another measurement of the same contributor. Queries skip
        them.

        Two measurements contradict each other if their positions in a session are equal, but their values are not.
        """
        query = f"""
            SELECT unnest(list(measurement_id ORDER BY measurement_id)) FROM sourced_rows
            WHERE block IS NOT NULL AND position IS NOT NULL GROUP BY {MOMENT}, contributor HAVING count(*) > 1
        """
        return [key for (key,) in self.query(with_derived("sourced_rows", query))]
