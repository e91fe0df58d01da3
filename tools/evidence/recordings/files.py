"""Read files that others recorded on real GPUs, for tests and `tools/evidence`."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.store.connection import parquet_rows


class AbsentError(KernrecError):
    """A recording, or the source of a recorded kernel, is missing."""


def present(path: Path) -> Path:
    """Return the path of a recording. Raises `AbsentError` if it is missing."""
    if not path.exists():
        raise AbsentError(f"no {path}; --data names the folder of recordings")
    return path


def parquet_dicts(path: Path, condition: str = "true", columns: str = "*") -> list[dict[str, Any]]:
    """Return the rows of a Parquet file as dictionaries; `condition` may end with ORDER BY."""
    with parquet_rows(present(path)) as (connection, source):
        cursor = connection.execute(f"SELECT {columns} FROM {source} WHERE {condition}")
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def parquet_columns(path: Path, condition: str = "true", columns: str = "*") -> dict[str, np.ndarray]:
    """Return the columns of a Parquet file; missing values are NaN in float columns and 0 in others."""
    with parquet_rows(present(path)) as (connection, source):
        table = connection.execute(f"SELECT {columns} FROM {source} WHERE {condition}").fetchnumpy()
    return {name: np.ma.filled(c, np.nan if c.dtype.kind == "f" else 0) for name, c in table.items()}


def csv_dicts(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file as dictionaries."""
    with present(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
