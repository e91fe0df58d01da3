"""What is in a database, in short: enough to know which questions it can answer."""

from typing import TYPE_CHECKING

from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

RETRACTED = "SELECT count(*) FROM db.measurement SEMI JOIN db.retraction USING (measurement_id)"
"""How many measurements were taken back."""


@dataclass(frozen=True)
class DatabaseContents:
    """Summary of a database."""

    measurements: int
    """Rows of its log, without those that were taken back."""
    profiled: frozenset[tuple[str, str, int]]
    """(kernel, hash, architecture) with profiles."""
    problems: tuple[tuple[str, str], ...]
    """(op, key) of its problems."""


def contents_of(connection: "DuckDBPyConnection") -> DatabaseContents:
    """The summary of the database that is attached as `db`."""
    row = connection.execute(f"SELECT count(*) - ({RETRACTED}) FROM db.measurement").fetchone()
    profiled = connection.execute("SELECT DISTINCT kernel, kernel_hash, sm FROM db.profile").fetchall()
    problems = connection.execute("SELECT op, key FROM db.problem").fetchall()
    return DatabaseContents(int(row[0]) if row else 0, frozenset(profiled), tuple(problems))
