"""Merging: the rows of a stranger's database that are not in one's own yet are checked and added."""

import os
from collections.abc import Callable
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.database import Database
from kernrec.store.intake.checked_rows import checked_rows
from kernrec.store.retractions import leave_unbelieved


def merge(database: Database, other: Path, note: Callable[[str], object] = str) -> int:
    """Add all rows of another database file that are not in `database` yet, all or nothing; returns how many were new.

    The other file is treated as hostile and is not changed.

    Args:
        database: to add to.
        other: a database file.
        note: is given a line about each kind of retraction that was left because nobody trusted signed it.

    Raises:
        UsageError: if the file cannot be read, or a row of it is not what its key says, or not possible.
    """
    if os.path.realpath(other) == os.path.realpath(database.path):
        raise UsageError(f"{other} cannot be merged with itself")

    def rows(folder: Path) -> None:
        checked_rows(Path(other), folder)
        for line in leave_unbelieved(database, folder):
            note(line)

    return database.add_from(rows)
