"""Rows of strangers: read and checked by a process of its own with limits, then added.

a stranger's file -> child (read_file.py): open, check the tables, check every row (row_checks.py), write plain
Parquet -> parent (`kernrec.store.reader`): add the rows
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import KernrecError, UsageError
from kernrec.store.database import Database
from kernrec.store.reader import checked_database
from kernrec.store.retractions import leave_unbelieved


def merge(database: Database, other: Path, note: Callable[[str], object] = str) -> int:
    """Add all rows of another database file that are not in `database` yet, all or nothing; returns how many were new.

    The other file is treated as hostile and is not changed. `note` is given a line about each kind of retraction that
    was left because nobody trusted signed it.

    Raises:
        UsageError: if the file cannot be read, or a row of it is not what its key says, or not possible.
    """
    if os.path.realpath(other) == os.path.realpath(database.path):
        raise UsageError(f"{other} cannot be merged with itself")

    def rows(folder: Path) -> None:
        checked_database(Path(other), folder)
        for line in leave_unbelieved(database, folder):
            note(line)

    return database.add_from(rows, signer="")


@contextmanager
def adding_to(path: Path) -> Iterator[Database]:
    """A database open for rows of a file; it is made if there is none, and deleted again if the file is refused."""
    existed = path.exists()
    try:
        with Database.open(path, read_only=False, create=True) as database:
            yield database
    except KernrecError:
        if not existed:
            path.unlink(missing_ok=True)
        raise
