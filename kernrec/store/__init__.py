"""Store measurements and static profiles in DuckDB files and Parquet files."""

from typing import TYPE_CHECKING, Any

from kernrec.store.measurement_log import Evidence, FailedConfig, MeasuredAnswer
from kernrec.store.profiles import ProfileRow, ProfileTable, read_profiles, shipped_profiles
from kernrec.store.rows import canonical_json, content_hash
from kernrec.store.stack import Stack

if TYPE_CHECKING:
    from kernrec.store.database import Database

__all__ = [
    "Database",
    "Evidence",
    "FailedConfig",
    "MeasuredAnswer",
    "ProfileRow",
    "ProfileTable",
    "Stack",
    "canonical_json",
    "content_hash",
    "read_profiles",
    "shipped_profiles",
]


def __getattr__(name: str) -> Any:
    """Import `Database` lazily, because queries without databases do not need the class."""
    if name != "Database":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kernrec.store.database import Database

    return Database
