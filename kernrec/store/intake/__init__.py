"""Rows of strangers: read and checked by a process of its own with limits, then added.

a stranger's file -> child (read_file.py): open, check the tables, check every row (row_checks.py), write plain
Parquet -> parent (`kernrec.store.reader`): add the rows

The database that gets the rows is opened once they were checked. Many rows are added to a copy of it
(`kernrec.store.rewritten`). So queries go on meanwhile.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import KernrecError, UsageError
from kernrec.store.database import Database
from kernrec.store.exchange import move_checked
from kernrec.store.reader import checked_database
from kernrec.store.retractions import leave_unbelieved
from kernrec.store.rewritten import rewritten
from kernrec.util.scratch import remove_abandoned, scratch_folder

_MANY_BYTES = 2**24
"""Size of checked rows from which on they are added to a copy: to add less takes no second."""


def merge(database: Database, other: Path, note: Callable[[str], object] = str) -> int:
    """Add all rows of another database file that are not in `database` yet, all or nothing; returns how many were new.

    The other file is treated as hostile and is not changed. `note` is given a line about each kind of retraction that
    was left because nobody trusted signed it.

    Raises:
        UsageError: if the file cannot be read, or a row of it is not what its key says, or not possible.
    """
    with _checked(other, database.path) as checked:
        return add_checked(database, checked, note)


def merge_file(path: Path, other: Path, note: Callable[[str], object] = str) -> int:
    """Do what `merge` does to the database at a path, which is made if there is none, and is not open meanwhile."""
    with _checked(other, path) as checked, adding_to(path, checked) as database:
        return add_checked(database, checked, note)


@contextmanager
def _checked(other: Path, path: Path | str) -> Iterator[Path]:
    if os.path.realpath(other) == os.path.realpath(path):
        raise UsageError(f"{other} cannot be merged with itself")
    remove_abandoned()
    with scratch_folder() as folder:
        checked_database(Path(other), folder)
        yield folder


def add_checked(
    database: Database,
    checked: Path,
    note: Callable[[str], object] = str,
    signer: str = "",
    apart_from: Sequence[str] = (),
) -> int:
    """Add rows of others that were checked, all or nothing; returns how many were new.

    Args:
        database: to add them to.
        checked: a folder with the rows, which are moved away.
        note: is given a line about each kind of retraction that was left because nobody trusted signed it.
        signer: as `Database.add_from` has it; so is `apart_from`.
        apart_from: see `signer`.
    """

    def rows(folder: Path) -> None:
        move_checked(checked, folder)
        for line in leave_unbelieved(database, folder):
            note(line)

    return database.add_from(rows, apart_from=apart_from, signer=signer)


@contextmanager
def adding_to(path: Path, checked: Path | None = None) -> Iterator[Database]:
    """A database open for rows of a file; it is made if there is none, and deleted again if the file is refused.

    Args:
        path: of the database.
        checked: a folder with the rows that will be added; for many, queries ask the file as it was until the end.
    """
    existed = path.exists()
    size = sum(file.stat().st_size for file in checked.iterdir()) if checked else 0
    if existed and size > _MANY_BYTES and os.name != "nt":  # Windows replaces no open file
        with rewritten(path) as database:
            yield database
        return
    try:
        with Database.open(path, read_only=False, create=True) as database:
            yield database
    except KernrecError:
        if not existed:
            path.unlink(missing_ok=True)
        raise
