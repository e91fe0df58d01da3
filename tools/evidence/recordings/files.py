"""Read files that others recorded on real GPUs. `exclusions.toml` lists rows and powers that are neither shipped nor
used for training. `kernrec.model.baselines.operating_point` excludes impossible times."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.store.connection import parquet_rows, quoted
from kernrec.store.rows import as_dicts

NAMES: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
"""kernrec's names of data types, GPUs and backends, keyed by the recorders' names."""


class AbsentError(KernrecError):
    """A recording, or the source of a recorded kernel, is missing."""


def present(path: Path) -> Path:
    """Return the path of a recording. Raises `AbsentError` if it is missing."""
    if not path.exists():
        raise AbsentError(f"no {path}; --data names the folder of recordings")
    return path


def recorded_dicts(path: Path, condition: str = "true", columns: str = "*") -> list[dict[str, Any]]:
    """Return the rows of a Parquet or CSV file as dictionaries. The SQL `condition` may end with ORDER BY."""
    with parquet_rows(present(path)) as (connection, source):
        source = source.replace("read_parquet", "read_csv", 1) if path.suffix == ".csv" else source
        return as_dicts(connection.execute(f"SELECT {columns} FROM {source} WHERE {condition}"))


def parquet_columns(path: Path, condition: str = "true", columns: str = "*") -> dict[str, np.ndarray]:
    """Return the columns of a Parquet file. A missing value is NaN in a column of floats, and 0 in other columns."""
    with parquet_rows(present(path)) as (connection, source):
        table = connection.execute(f"SELECT {columns} FROM {source} WHERE {condition}").fetchnumpy()
    return {name: np.ma.filled(c, np.nan if c.dtype.kind == "f" else 0) for name, c in table.items()}


def named(column: str, names: str | Mapping[str, object]) -> str:
    """Return an SQL expression that translates the texts of a column by `names`, a mapping or a table of `NAMES`."""
    words = NAMES[names] if isinstance(names, str) else names
    cases = " ".join(f"WHEN {quoted(old)} THEN {quoted(new)}" for old, new in words.items())
    return f"CASE {column} {cases} END"


@dataclass(frozen=True)
class Exclusion:
    """Recorded rows to exclude, completely or only their power."""

    file: str
    """Name of a Parquet file in the folder `library`, without extension."""
    rows: str
    """SQL condition that is true for the rows to exclude."""
    reason: str
    power_only: bool = False


EXCLUSIONS = tuple(
    Exclusion(file, **{name: value for name, value in each.items() if name != "files"})
    for each in tomllib.loads(Path(__file__).with_name("exclusions.toml").read_text(encoding="utf-8"))["exclusion"]
    for file in each["files"]
)


def excluded(file: str, power_only: bool = False) -> str:
    """Return an SQL condition for excluded rows, or, with `power_only`, for rows whose power is excluded."""
    conditions = [each.rows for each in EXCLUSIONS if (each.file, each.power_only) == (file, power_only)]
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def power_of(file: str, column: str = "power_w") -> str:
    """Return an SQL expression for the power of a row. It is NULL if the power is excluded."""
    return f"CASE WHEN {excluded(file, power_only=True)} THEN NULL ELSE {column} END"
