"""Merging: the rows of a stranger's database that are not in one's own yet are checked and added."""

import os
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.database import Database
from kernrec.store.intake.checked_rows import checked_rows


def merge(database: Database, other: Path) -> int:
    """Add all rows of another database file that are not in `database` yet, all or nothing; returns how many were new.

    The other file is treated as hostile and is not changed.

    Raises:
        UsageError: if the file cannot be read, or a row of it is not what its key says, or not possible.
    """
    if os.path.realpath(other) == os.path.realpath(database.path):
        raise UsageError(f"{other} cannot be merged with itself")
    return database.add_from(lambda folder: checked_rows(Path(other), folder))
