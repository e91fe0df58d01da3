"""Recorded rows and powers that are neither shipped nor learned from, as `exclusions.toml` lists them.

`tools/build_recorded.py` and the readers beside this module both use the list. Rows that a recording's times contradict
are not in it: `kernrec.model.vendor.limits` finds these.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Exclusion:
    """Rows of a file that are excluded, or only their power."""

    file: str
    """Stem of a Parquet file in `library`."""
    rows: str
    """Condition in SQL."""
    reason: str
    power_only: bool = False


EXCLUSIONS = tuple(
    Exclusion(file, **{name: value for name, value in each.items() if name != "files"})
    for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["exclusion"]
    for file in each["files"]
)


def excluded(file: str, power_only: bool = False) -> str:
    """Return the condition in SQL of the rows of a file that are excluded, or of those whose power is."""
    conditions = [each.rows for each in EXCLUSIONS if (each.file, each.power_only) == (file, power_only)]
    return " OR ".join(f"({condition})" for condition in conditions) or "false"


def power_of(file: str, column: str = "power_w") -> str:
    """Return an expression in SQL: the power of a row, NULL if it is excluded."""
    return f"CASE WHEN {excluded(file, power_only=True)} THEN NULL ELSE {column} END"
