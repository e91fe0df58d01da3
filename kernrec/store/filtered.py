"""Hide some rows of a database file, and another person's claims about who measured them.

The file is attached as `file`, and `db` is a database in memory with a view for each of its tables. So the same queries
work for whole and for filtered files.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernrec.store.schema import TABLES, layout_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_OTHERS = {
    "merged": (
        "SELECT measurement_id, gpu, problem_id, '' AS signer, NULL::VARCHAR AS bundle FROM file.main.measurement"
    ),
    "merged_row": (
        "SELECT kernel_id AS row_id, '' AS signer FROM file.main.kernel"
        " UNION ALL SELECT profile_id, '' FROM file.main.profile"
    ),
    **{table: f"SELECT * FROM file.main.{table} LIMIT 0" for table in ("card_scale", "bundle", "withdrawn")},
}
"""Queries that replace tables of another person's file: one contributor owns all rows, and nothing is signed."""

ADOPT = (
    *(f"DELETE FROM db.{table}" for table in _OTHERS),
    *(
        f"INSERT INTO db.{table} {query.replace('file.main', 'db')}"
        for table, query in _OTHERS.items()
        if not query.endswith("LIMIT 0")
    ),
)
"""Statements that store the results of `_OTHERS` in another person's file, so that kernrec can write to the file."""


def show_filtered(connection: "DuckDBPyConnection", dropped: Mapping[str, Sequence[str]], own: bool) -> None:
    """Create the views of a connection whose file is attached as `file`, replacing earlier ones.

    Args:
        connection: Connection to a file with the tables of the present schema.
        dropped: Keys of rows to skip, by table.
        own: Whether the file is the user's own. For other files, only tables of the schema get a view.
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
