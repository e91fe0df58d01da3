"""Define the schema of a database file: its migrations, views and tables (`db/schema`).

A file may come from another person, so kernrec runs no code from it. Views come from `views.sql`, not from the file.
kernrec refuses tables with computed columns or default expressions. Before it writes to a file, it also refuses unknown
checks and indexes.
"""

import os
import re
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store.connection import connect, connect_memory, make_folder, one_line, transaction
from kernrec.store.rows import rewrite_keys
from kernrec.util.cache import CacheEntry, cached
from kernrec.util.files import check_input, scratch_folder, write_whole
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("gpu", "kernel", "config", "problem", "profile", "measurement", "retraction")
"""Tables whose keys are hashes of the rows' content. Other tables are derived, or record the origin of rows."""

_REWRITTEN = {4: "block_open OR replayed"}
"""SQL condition for the measurements whose keys a migration changes, keyed by the number of the migration."""

_VIEWS_APART = 5
"""Number of the migration that moved the views to `views.sql`."""


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    files = sorted(paths.shipped("db/schema").glob("[0-9][0-9][0-9]_*.sql"))
    return tuple(Migration(int(file.name[:3]), file.stem[4:], file.read_text(encoding="utf-8")) for file in files)


def migrate(connection: "DuckDBPyConnection", done: int, *, views: bool = True) -> None:
    """Apply the migrations that a database lacks, each in one transaction, and create the views.

    Args:
        done: Number of the last applied migration.
        views: Whether to create the views, which doubles the time. kernrec's own queries do not need the views.
    """
    connection.execute("USE db")
    try:
        # Create the final tables of a new database at once from a cached layout. Running all migrations would take
        # three times as long.
        if whole := not done and migrations()[-1].number >= _VIEWS_APART:
            with transaction(connection):
                for statement in layout_of().statements.values():
                    connection.execute(statement)
                for step in migrations():
                    _record(connection, step, views)
        for step in () if whole else migrations()[done:]:
            with transaction(connection):
                connection.execute(step.sql)
                if step.number in _REWRITTEN:
                    rewrite_keys(connection, _REWRITTEN[step.number])
                _record(connection, step)
    finally:
        connection.execute("USE memory")


def _record(connection: "DuckDBPyConnection", step: Migration, views: bool = True) -> None:
    applied_at = datetime.now(UTC).replace(tzinfo=None)
    connection.execute("INSERT INTO migration VALUES (?, ?, ?)", [step.number, step.name, applied_at])
    if views and step is migrations()[-1] and step.number >= _VIEWS_APART:
        connection.execute(views_sql())


def schema_version(connection: "DuckDBPyConnection", path: Path | str, *, writing: bool = False) -> int:
    """Return the number of the last applied migration of the attached file.

    Raises:
        UsageError: The database belongs to another program or to a newer kernrec, or its tables differ from the schema.
            If `writing` is True, also raised for unknown checks and indexes.
    """
    statements = tables(connection)
    first = layout_of(1).statements
    if not statements.keys() >= first.keys():
        raise UsageError(f"{path} is a DuckDB database, but not one of kernrec's")
    _check_layout(statements, {"migration": first["migration"]}, path, checks=writing)
    applied = connection.execute("SELECT id, name FROM db.migration ORDER BY id").fetchall()
    shipped = [(step.number, step.name) for step in migrations()]
    if len(applied) > len(shipped) and applied[: len(shipped)] == shipped:
        raise UsageError(
            f"{path} has schema {len(applied)}, made by a newer kernrec; this one knows schemas up to {len(shipped)}"
        )
    if not applied or applied != shipped[: len(applied)]:
        raise UsageError(f"{path} has a schema that this kernrec does not know")
    _check_layout(statements, layout_of(len(applied)).statements, path, checks=writing)
    if writing:
        _check_writable(connection, path)
    return len(applied)


def make_file(path: Path) -> bool:
    """Create an empty database file atomically, and return True. Return False if another process creates the file."""
    check_input(path)
    path = path.absolute()
    real = Path(os.path.realpath(path))  # The path may be a link to a missing file.
    make_folder(real.parent)
    new = real.with_name(f".{os.urandom(8).hex()}.duckdb")
    with one_line(path):
        try:
            content = _empty(tuple(step.sql for step in migrations()))
        except UsageError as error:
            raise UsageError(f"{path} cannot be made: {error}") from None
        try:
            write_whole(new, content, shared=True)
            placed = _place(new, real)
        except OSError as error:
            from kernrec.store.native_duckdb import duckdb

            raise duckdb.IOException(str(error)) from None
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)
    if not path.exists():
        raise UsageError(f"{path} was removed while it was created; try again")
    return placed


def _place(new: Path, path: Path) -> bool:
    try:
        os.link(new, path)
    except FileExistsError:
        return False
    except OSError:  # The file system may not support links.
        if path.exists():
            return False
        new.rename(path)
    return True


@cache
def _empty(steps: tuple[str, ...]) -> bytes:
    import numpy as np

    def make() -> CacheEntry:
        with scratch_folder() as folder:
            path = folder / "empty.duckdb"
            with closing(connect(path, read_only=False, create=True)) as connection:
                migrate(connection, 0)
                # Write the data now, because closing the file would not report a full disk.
                connection.execute("CHECKPOINT db")
            return {}, {"file": np.fromfile(path, np.uint8)}

    # Identify DuckDB's version by its file, without importing it: the import would double the time of later forks.
    files = (spec.origin for name in ("_duckdb", "duckdb") if (spec := find_spec(name)) is not None and spec.origin)
    installed = os.stat(next(files))
    made_of = "\n".join([f"{installed.st_size} {installed.st_mtime_ns}", views_sql(), *steps])
    return cached("schema.empty", made_of.encode(), make)[1]["file"].tobytes()


# Relations of `views.sql`, for use in queries

MOMENT = "gpu, problem_id, kernel, kernel_hash, config_id, session, block, position"
"""Columns that identify one measurement of a session. Two rows of one contributor conflict if all columns in `MOMENT`
are equal."""

_VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+) AS$(.*?);$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"\b(FROM|JOIN) (measurement|retraction|merged|gpu_scale)\b")
_MACRO = re.compile(r"^CREATE MACRO (\w+)\((\w+), (\w+)\) AS$(.*?);$\n", re.MULTILINE | re.DOTALL)


@cache
def views_sql() -> str:
    """Return the SQL statements that create the views, with macros expanded."""
    text = (paths.shipped("db/schema") / "views.sql").read_text(encoding="utf-8")
    views = _MACRO.sub("", text)
    for name, first, second, body in _MACRO.findall(text):
        meant = " ".join(body.split())
        for amount, bound in set(re.findall(rf"\b{name}\((\w+), (\w+)\)", views)):
            words = re.sub(rf"\b{second}\b", bound, re.sub(rf"\b{first}\b", amount, meant))
            views = views.replace(f"{name}({amount}, {bound})", words)
    return views


@cache
def derived() -> dict[str, str]:
    """Return the SQL queries of the views, keyed by view name. Each query may use earlier views."""
    return {name: _TABLE.sub(r"\1 db.\2", body).strip() for name, body in _VIEW.findall(views_sql())}


def with_derived(name: str, query: str, condition: str = "", scales: str = "db.gpu_scale") -> str:
    """Put definitions of the view `name` and of all earlier views in front of an SQL query.

    Args:
        condition: SQL condition on the table `measurement`, applied while DuckDB scans the table.
        scales: SQL table or subquery to use instead of `db.gpu_scale`.
    """
    parts: list[str] = []
    chosen = f" WHERE {condition}" if condition else ""
    log = f"(SELECT * FROM db.measurement{chosen}) AS measurement"
    sources = f"FROM (SELECT * FROM db.merged{chosen}) AS merged"
    for part, body in derived().items():
        body = body.replace("FROM db.merged", sources).replace("FROM db.gpu_scale", f"FROM {scales}")
        if condition:
            body = body.replace("FROM db.measurement", f"FROM {log}")
        # NOT MATERIALIZED lets DuckDB read only the columns that the query uses.
        parts.append(f"{part} AS NOT MATERIALIZED (\n{body}\n)")
        if part == name:
            break
    return f"WITH {', '.join(parts)}\n{query}"


# Layout of the tables.

_CHECKS = ", CHECK("
_CAST = re.compile(r"CAST\((\d+)\.0 AS DOUBLE\)|\b1e(\d+)\b")


@dataclass(frozen=True)
class Layout:
    """Definitions of the tables of a schema, keyed by table name."""

    statements: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]
    """SQL types of the columns, in order, keyed by column name. The first column is the key."""
    checks: Mapping[str, list[str]]
    """SQL conditions that the rows must meet."""
    required: Mapping[str, list[str]]
    """Columns that are never NULL."""


def layout_of(step: int | None = None) -> Layout:
    """Return the layout of the tables after migration number `step`, by default the last."""
    from kernrec.store.native_duckdb import duckdb

    number = len(migrations()) if step is None else step
    sql = "\n".join(each.sql for each in migrations()[:number])

    def make() -> CacheEntry:
        with closing(connect_memory()) as connection:
            connection.execute("USE db")
            connection.execute(sql)
            statements = tables(connection)
            described = {name: connection.execute(f"DESCRIBE db.{name}").fetchall() for name in statements}
            constraints = connection.execute(
                "SELECT table_name, constraint_type, expression, constraint_column_names FROM duckdb_constraints() "
                "WHERE database_name = 'db'"
            ).fetchall()
        checks: dict[str, list[str]] = {name: [] for name in statements}
        required: dict[str, list[str]] = {name: [] for name in statements}
        for table, kind, expression, names in constraints:
            if kind == "CHECK":
                checks[table].append(expression)
            elif kind == "NOT NULL":
                required[table].append(names[0])
        columns = {name: {column: kind for column, kind, *_ in rows} for name, rows in described.items()}
        return {"statements": statements, "columns": columns, "checks": checks, "required": required}, {}

    facts, _ = cached(f"schema.{number}.layout", f"{duckdb.__version__}\n{sql}".encode(), make)
    return Layout(**facts)


def tables(connection: "DuckDBPyConnection") -> dict[str, str]:
    """Return the SQL statements that would create the tables of the SQL schema `main`, keyed by table name."""
    # Do not query `information_schema`, because DuckDB would run parts of the views.
    query = "SELECT table_name, sql FROM duckdb_tables() WHERE database_name = 'db' AND schema_name = 'main'"
    return dict(connection.execute(query).fetchall())


def _check_layout(
    statements: Mapping[str, str], expected: Mapping[str, str], path: Path | str, *, checks: bool
) -> None:
    for name, statement in expected.items():
        if _columns(statements.get(name, "")) != _columns(statement):
            raise UsageError(f"{path}: the table {name} does not have the columns that kernrec gives it")
        if checks and _plain(statements[name]) != _plain(statement):
            raise UsageError(
                f"{path}: the table {name} does not have the constraints that kernrec gives it; "
                "merge the file into another database"
            )


def _columns(statement: str) -> str:
    return statement.split(_CHECKS)[0].removesuffix(");")


def _plain(statement: str) -> str:
    return _CAST.sub(lambda match: match[1] or "1" + "0" * int(match[2]), statement)


def _check_writable(connection: "DuckDBPyConnection", path: Path | str) -> None:
    from kernrec.store.native_duckdb import duckdb

    for kind in ("indexes", "triggers"):
        query = f"SELECT count(*) FROM duckdb_{kind}() WHERE database_name = 'db'"
        with suppress(duckdb.CatalogException):  # Older releases of DuckDB have no triggers to list.
            if connection.execute(query).fetchall()[0][0]:
                raise UsageError(f"{path} has {kind} that are not kernrec's; merge the file into another database")


def check_migratable(connection: "DuckDBPyConnection", path: Path | str) -> None:
    """Raise `UsageError` if a file defines macros. A migration might call a macro instead of a DuckDB function."""
    query = "SELECT count(*) FROM duckdb_functions() WHERE database_name = 'db' AND NOT internal"
    if connection.execute(query).fetchall()[0][0]:
        raise UsageError(f"{path} has an older schema and macros that are not kernrec's; it is not brought up to date")
