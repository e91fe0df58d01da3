"""Read and check untrusted rows in a separate process with limits, then add them.

untrusted file -> child (read_file.py): open, check the tables, check every row (row_checks.py), write plain Parquet ->
parent (`kernrec.store.reader`): add the rows

The database that gets the rows is opened after they were checked. While a process writes to a DuckDB file, no other
process can read it, and adding a million rows takes longer than a query waits. So many rows are added to a copy, and
queries use the old file until the copy takes its name. Two locks exclude other writers: the original stays open for
reading, so nobody writes to it before its replacement, and the copy is locked, so that two processes do not replace the
same file.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import KernrecError, UsageError, file_errors
from kernrec.store.connection import WAIT_S
from kernrec.store.database import Database, replace_file
from kernrec.store.exchange import move_checked
from kernrec.store.marks import Mark, is_own, read_mark
from kernrec.store.reader import checked_database
from kernrec.util.files import lock_path, remove_abandoned, scratch_folder
from kernrec.util.human import counted


@contextmanager
def rewritten(path: Path) -> Iterator[Database]:
    """Open a copy of a database for writing; it replaces the file at the end, unless there is an error.

    Raises:
        UsageError: Another process writes to the file, or it cannot be copied.
    """
    path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.new")
    with file_errors(beside, "written"):
        locked = lock_path(beside, WAIT_S)
    if locked is None:
        raise UsageError(f"another process adds rows to {path}; try again later")
    try:
        os.ftruncate(locked, 0)
        Path(f"{beside}.wal").unlink(missing_ok=True)
        if Path(f"{path}.wal").exists():  # A killed process's log must not stay beside the new file.
            Database.open(path, read_only=False).close()
        # Closing any descriptor of a file releases DuckDB's lock, so this descriptor is closed last.
        with path.open("rb") as source, Database.open(path):
            with file_errors(beside, "written"), beside.open("r+b") as target:
                shutil.copyfileobj(source, target, 2**20)
                os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
            mark = read_mark(path)
            with Database.open_checked(
                beside, read_only=False, mark=Mark("", is_own(path), "", mark.faults)
            ) as database:
                yield database
            replace_file(beside, path, database.faults)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(locked)


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
