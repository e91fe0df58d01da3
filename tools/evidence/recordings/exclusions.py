"""Exclude recorded rows and powers from shipping and training, as listed in `exclusions.toml`.

`tools/build_recorded.py` and the readers in this package use the list. Rows with impossible times are not in it,
because `kernrec.model.vendor.limits` finds them.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Exclusion:
    """Recorded rows that are excluded completely, or only their power."""

    file: str
    """Stem of the name of a Parquet file in `library`."""
    rows: str
    """SQL condition that selects the rows."""
    reason: str
    power_only: bool = False


EXCLUSIONS = tuple(
    Exclusion(file, **{name: value for name, value in each.items() if name != "files"})
    for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["exclusion"]
    for file in each["files"]
)


def excluded(file: str, power_only: bool = False) -> str:
    """Return an SQL condition for a file's excluded rows, or for the rows whose power is excluded."""
    conditions = [each.rows for each in EXCLUSIONS if (each.file, each.power_only) == (file, power_only)]
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def power_of(file: str, column: str = "power_w") -> str:
    """Return an SQL expression for the power of a row, NULL if it is excluded."""
    return f"CASE WHEN {excluded(file, power_only=True)} THEN NULL ELSE {column} END"
