"""Files that others recorded on real GPUs, as tests and `tools/evidence` read them."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.store.connection import parquet_rows


class AbsentError(KernrecError):
    """A recording, or a kernel that was recorded, is not at hand."""


def present(path: Path) -> Path:
    """The path of a recording; `AbsentError` where there is none."""
    if not path.exists():
        raise AbsentError(f"no {path}; --data names the folder of recordings")
    return path


def parquet_dicts(path: Path, condition: str = "true", columns: str = "*") -> list[dict[str, Any]]:
    """The rows of a Parquet file, by column name; `condition` may end in an order."""
    with parquet_rows(present(path)) as (connection, source):
        cursor = connection.execute(f"SELECT {columns} FROM {source} WHERE {condition}")
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def parquet_columns(path: Path, condition: str = "true", columns: str = "*") -> dict[str, np.ndarray]:
    """The columns of a Parquet file; what is missing is NaN among floats and 0 elsewhere."""
    with parquet_rows(present(path)) as (connection, source):
        table = connection.execute(f"SELECT {columns} FROM {source} WHERE {condition}").fetchnumpy()
    return {name: np.ma.filled(c, np.nan if c.dtype.kind == "f" else 0) for name, c in table.items()}


def csv_dicts(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column name."""
    with present(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
