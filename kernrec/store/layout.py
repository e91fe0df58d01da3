"""What a database file may consist of: base tables of `main` with exactly the columns and types of the schema.

Columns that are computed, or whose default is an expression, are somebody's program: a file with one is refused, also
for reading. Writing into a file evaluates its checks and indexes too, so these must be the schema's then. Everything
else in a file (views, macros, other tables) is left alone: it is never looked up (connection.py).
"""

import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.errors import UsageError
from kernrec.util.cache import CacheEntry, cached
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CHECKS = ", CHECK("
_CAST = re.compile(r"CAST\((\d+)\.0 AS DOUBLE\)|\b1e(\d+)\b")


def tables(connection: "DuckDBPyConnection") -> dict[str, str]:
    """The base tables of `main` by name, as the statements that would make them."""
    # Unlike `information_schema`, this function does not touch views: binding one runs a part of it.
    query = "SELECT table_name, sql FROM duckdb_tables() WHERE database_name = 'db' AND schema_name = 'main'"
    return dict(connection.execute(query).fetchall())


def check_layout(statements: Mapping[str, str], expected: Mapping[str, str], path: Path | str, *, checks: bool) -> None:
    """Raise `UsageError` if the tables of a file are not those of the schema.

    Args:
        statements: `tables` of the file.
        expected: those of the schema.
        path: of the file.
        checks: whether the checks must be the same too.
    """
    for name, statement in expected.items():
        if _columns(statements.get(name, "")) != _columns(statement):
            raise UsageError(f"{path}: the table {name} does not have the columns that kernrec gives it")
        if checks and _plain(statements[name]) != _plain(statement):
            raise UsageError(
                f"{path}: the table {name} does not have the constraints that kernrec gives it; "
                "merge the file into another database"
            )


def check_writable(connection: "DuckDBPyConnection", path: Path | str) -> None:
    """Raise `UsageError` if the file has indexes or triggers, which would run when rows are added."""
    import duckdb

    for kind, function in (("indexes", "duckdb_indexes()"), ("triggers", "duckdb_triggers()")):
        try:
            result = connection.execute(f"SELECT count(*) FROM {function} WHERE database_name = 'db'").fetchone()
        except duckdb.CatalogException:  # an older DuckDB, which has no triggers
            continue
        if result and result[0]:
            raise UsageError(f"{path} has {kind} that are not kernrec's; merge the file into another database")


def check_migratable(connection: "DuckDBPyConnection", path: Path | str) -> None:
    """Raise `UsageError` if the file has macros: the steps of the schema look functions up in the file."""
    query = "SELECT count(*) FROM duckdb_functions() WHERE database_name = 'db' AND NOT internal"
    result = connection.execute(query).fetchone()
    if result and result[0]:
        raise UsageError(f"{path} has an older schema and macros that are not kernrec's; it is not brought up to date")


@dataclass(frozen=True)
class Layout:
    """What the tables of a schema are, by name."""

    statements: Mapping[str, str]
    """As `tables`."""
    columns: Mapping[str, Mapping[str, str]]
    """Their columns in order, with their types; the first is the key."""
    checks: Mapping[str, list[str]]
    """The conditions that their rows meet, in SQL."""
    required: Mapping[str, list[str]]
    """Their columns that are never NULL."""


def expected_layout(step: int, made_of: bytes) -> Layout:
    """The tables after a step of the schema, as DuckDB states them; kept, because making them takes 100 ms.

    Args:
        step: the number of the step.
        made_of: the text of all steps up to it.
    """
    import duckdb

    def make() -> CacheEntry:
        from kernrec.store.connection import connect_memory

        with closing(connect_memory()) as connection:
            connection.execute("USE db")
            connection.execute(made_of.decode())
            statements = tables(connection)
            described = {name: connection.execute(f"DESCRIBE db.{name}").fetchall() for name in statements}
            constraints = connection.execute(
                "SELECT table_name, constraint_type, expression, constraint_column_names FROM duckdb_constraints() "
                "WHERE database_name = 'db'"
            ).fetchall()
        columns = {name: {column: kind for column, kind, *_ in rows} for name, rows in described.items()}
        checks = {
            name: [text for table, kind, text, _ in constraints if (table, kind) == (name, "CHECK")]
            for name in statements
        }
        required = {
            name: [of[0] for table, kind, _, of in constraints if (table, kind) == (name, "NOT NULL")]
            for name in statements
        }
        return {"statements": statements, "columns": columns, "checks": checks, "required": required}, {}

    facts, _ = cached(f"schema.{step}.layout", f"{duckdb.__version__}\n".encode() + made_of, make)
    return Layout(**facts)


def _columns(statement: str) -> str:
    return statement.split(_CHECKS)[0].removesuffix(");")


def _plain(statement: str) -> str:
    """The statement with numbers spelled in one way: older versions of DuckDB wrote `1e6` as a cast."""
    return _CAST.sub(lambda match: match[1] or "1" + "0" * int(match[2]), statement)
