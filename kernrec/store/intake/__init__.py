"""Read and check untrusted rows in a separate process with limits, then add them.

untrusted file -> child (read_file.py): open, check the tables, check every row (row_checks.py), write plain Parquet ->
parent (`kernrec.store.reader`): add the rows

The database that gets the rows is opened after they were checked. Many rows are added to a copy of it
(`kernrec.store.rewritten`), so that queries continue meanwhile.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import KernrecError, UsageError
from kernrec.store.database import Database
from kernrec.store.exchange import move_checked
from kernrec.store.reader import checked_database
from kernrec.store.rewritten import rewritten
from kernrec.util.human import counted
from kernrec.util.scratch import remove_abandoned, scratch_folder

_MANY_BYTES = 2**24
"""Bytes of checked rows above which kernrec adds them to a copy of the database; fewer take less than a second."""


def merge(database: Database, other: Path, note: Callable[[str], object] = str) -> int:
    """Add the rows of another database file that `database` lacks, all or nothing.

    Args:
        database: Open database that gets the rows.
        other: An untrusted file, which is not changed. Its withdrawals are ignored.
        note: Function that gets a line about ignored withdrawals.

    Returns:
        Number of new rows.

    Raises:
        UsageError: The file cannot be read, or a row is impossible or does not match its key.
    """
    with _checked(other, database.path, note) as checked:
        return add_checked(database, checked)


def merge_file(path: Path, other: Path, note: Callable[[str], object] = str) -> int:
    """Merge a file into the database at a path, which is created if needed and opened only to add rows."""
    with _checked(other, path, note) as checked, adding_to(path, checked) as database:
        return add_checked(database, checked)


@contextmanager
def _checked(other: Path, path: Path | str, note: Callable[[str], object]) -> Iterator[Path]:
    if os.path.realpath(other) == os.path.realpath(path):
        raise UsageError(f"{other} cannot be merged with itself")
    remove_abandoned()
    with scratch_folder() as folder:
        if count := checked_database(Path(other), folder).get("retraction"):
            note(f"not added: {counted(count, 'withdrawal')} of {other}, which apply only there")
        yield folder


def add_checked(database: Database, checked: Path, signer: str = "", apart_from: Sequence[str] = ()) -> int:
    """Add checked rows of others from a folder, all or nothing; return the number of new rows.

    Files of the rows are moved out of the folder. `signer` and `apart_from` are those of `Database.add_from`.
    """
    return database.add_from(lambda folder: move_checked(checked, folder), apart_from=apart_from, signer=signer)


@contextmanager
def adding_to(path: Path, checked: Path | None = None) -> Iterator[Database]:
    """Open a database to add rows of a file; create it if needed, and delete it again if the file is refused.

    Args:
        path: Path of the database.
        checked: Folder with the rows to add. If there are many, queries use the old file until the end.
    """
    existed = path.exists()
    size = sum(file.stat().st_size for file in checked.iterdir()) if checked else 0
    if existed and size > _MANY_BYTES and os.name != "nt":  # Windows cannot replace an open file
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
