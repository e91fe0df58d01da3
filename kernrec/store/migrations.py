"""The schema: numbered SQL files that ship with kernrec; each is applied once and recorded in the database."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.store import layout
from kernrec.store.connection import transaction
from kernrec.store.derived import views_sql
from kernrec.store.rows import rewrite_keys
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("gpu", "kernel", "config", "problem", "profile", "measurement", "retraction")
"""The tables whose rows have content-hash keys: all but `migration`."""

_REWRITTEN = {4: "block_open OR replayed"}
"""By the number of a step that changes rows of `measurement`: which rows, whose keys are then computed anew."""

_VIEWS_APART = 5
"""The number of the first step after which the views are those of `views.sql`."""


@dataclass(frozen=True)
class Migration:
    """One step of the schema, the file `NNN_name.sql`."""

    number: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """The steps that ship with kernrec, in order, numbered from 1 without a gap."""
    files = sorted(paths.shipped("db/schema").glob("[0-9][0-9][0-9]_*.sql"))
    return tuple(Migration(int(file.name[:3]), file.stem[4:], file.read_text(encoding="utf-8")) for file in files)


def migrate(connection: "DuckDBPyConnection", done: int) -> None:
    """Apply the steps after number `done`, each in a transaction, and make the views anew."""
    connection.execute("USE db")
    try:
        # What all steps come to is known and made in a third of their time; views of early steps are not part of it.
        if whole := not done and migrations()[-1].number >= _VIEWS_APART:
            with transaction(connection):
                for statement in layout_of().statements.values():
                    connection.execute(statement)
                for step in migrations():
                    _record(connection, step)
        for step in () if whole else migrations()[done:]:
            with transaction(connection):
                connection.execute(step.sql)
                if step.number in _REWRITTEN:
                    rewrite_keys(connection, "measurement", _REWRITTEN[step.number])
                _record(connection, step)
    finally:
        connection.execute("USE memory")


def _record(connection: "DuckDBPyConnection", step: Migration) -> None:
    """Write that a step was applied; after the last one the views are made."""
    applied_at = datetime.now(UTC).replace(tzinfo=None)
    connection.execute("INSERT INTO migration VALUES (?, ?, ?)", [step.number, step.name, applied_at])
    if step is migrations()[-1] and step.number >= _VIEWS_APART:
        connection.execute(views_sql())


def schema_version(connection: "DuckDBPyConnection", path: Path | str, *, writing: bool = False) -> int:
    """The number of the last step applied; 0 for a database without any table.

    Args:
        connection: with the file attached.
        path: of the file.
        writing: whether the file will be written to.

    Raises:
        UsageError: for a database of another program, for one that a newer kernrec has migrated, and for one whose
            tables are not those of the schema.
    """
    tables = layout.tables(connection)
    if not tables:
        return 0
    foreign = UsageError(f"{path} is a DuckDB database, but not one of kernrec's")
    first = layout_of(1).statements
    if not tables.keys() >= first.keys():
        raise foreign
    layout.check_layout(tables, {"migration": first["migration"]}, path, checks=writing)
    applied = connection.execute("SELECT id, name FROM db.migration ORDER BY id").fetchall()
    known = [(step.number, step.name) for step in migrations()]
    if len(applied) > len(known) and applied[: len(known)] == known:
        raise UsageError(
            f"{path} has schema {len(applied)}, made by a newer kernrec; this one knows schemas up to {len(known)}"
        )
    if not applied or applied != known[: len(applied)]:
        raise UsageError(f"{path} has a schema that this kernrec does not know")
    layout.check_layout(tables, layout_of(len(applied)).statements, path, checks=writing)
    if writing:
        layout.check_writable(connection, path)
    return len(applied)


def layout_of(step: int | None = None) -> layout.Layout:
    """The tables after a step of the schema; None: after the last."""
    number = len(migrations()) if step is None else step
    return layout.expected_layout(number, "\n".join(each.sql for each in migrations()[:number]).encode())
