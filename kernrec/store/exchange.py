"""Rows of a connection to Parquet files and from them, through the one folder that the connection can reach."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import move
from typing import TYPE_CHECKING

from kernrec.store.connection import exchange_folder, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def export(connection: "DuckDBPyConnection", query: str, folder: Path, most: int) -> list[tuple[Path, int]]:
    """Write the rows of a query to Parquet files of at most `most` rows; returns the files and their rows."""
    written = []
    with exchange_folder(connection) as exchange:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE exported AS {query}")
        row = connection.execute("SELECT count(*) FROM exported").fetchone()
        total = int(row[0]) if row else 0
        for start in range(0, total, most):
            file = exchange / "rows.parquet"
            connection.execute(
                f"COPY (FROM exported LIMIT {most} OFFSET {start}) TO {quoted(file)} (FORMAT parquet, COMPRESSION zstd)"
            )
            target = folder / f"{os.urandom(8).hex()}.parquet"
            move(file, target)
            written.append((target, min(most, total - start)))
        connection.execute("DROP TABLE exported")
    return written


def keep(connection: "DuckDBPyConnection", name: str, query: str, files: Mapping[str, Sequence[Path]]) -> None:
    """Keep the rows of a query as a table of a connection, for later queries.

    Args:
        connection: with the database attached as `db`.
        name: of the table; one of that name is replaced.
        query: in SQL; `{x}` stands for the rows of the Parquet files `files["x"]`.
        files: they are moved away.
    """
    with exchange_folder(connection) as folder:
        for file, paths in files.items():
            (folder / file).mkdir()
            for path in paths:
                move(path, folder / file / path.name)
            query = query.replace(f"{{{file}}}", f"read_parquet({quoted(folder / file / '*')})")
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
