"""Check untrusted rows in a child process with limits, then add them to a database.

While a process writes to a DuckDB file, no other process can read it. So kernrec adds many rows to a copy, and queries
use the old file until the copy replaces it. Meanwhile, no other process can write, because kernrec locks the copy and
keeps the original open.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import KernrecError, UsageError, file_errors
from kernrec.store.connection import WAIT_S
from kernrec.store.database import Database, replace_file
from kernrec.store.marks import Mark, is_own, read_mark
from kernrec.store.reader import read_untrusted
from kernrec.util.files import lock_path, remove_abandoned, scratch_folder
from kernrec.util.human import counted


@contextmanager
def rewritten(path: Path) -> Iterator[Database]:
    """Open a copy of a database for writing. At the end, the copy replaces the database, unless there was an error."""
    path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.new")
    with file_errors(beside, "written"):
        locked = lock_path(beside, WAIT_S)
    if locked is None:
        raise UsageError(f"another process adds rows to {path}; try again later")
    try:
        os.ftruncate(locked, 0)
        Path(f"{beside}.wal").unlink(missing_ok=True)
        if Path(f"{path}.wal").exists():  # Opening the database applies the log of a killed process.
            Database.open(path, read_only=False).close()
        # Close this descriptor last: as soon as any descriptor of the file is closed, DuckDB loses its lock.
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
"""Size of new rows, in bytes, above which kernrec adds the rows to a copy of the database."""


def merge_file(path: Path, other: Path, note: Callable[[str], object] = str) -> int:
    """Add the rows of an untrusted database file to the database at `path`, and return the number of new rows.

    Withdrawals of measurements are not copied, and `note` receives a message about them. If a row is not valid, raise
    `UsageError` and add nothing.
    """
    with checked_rows(other, path, note) as checked, adding_to(path, checked) as database:
        return database.add_from(checked, signer="")


@contextmanager
def checked_rows(other: Path, path: Path | str, note: Callable[[str], object]) -> Iterator[Path]:
    """Check the rows of a database file, and yield a folder with the checked rows for `Database.add_from`."""
    if os.path.realpath(other) == os.path.realpath(path):
        raise UsageError(f"{other} cannot be merged with itself")
    remove_abandoned()
    with scratch_folder() as folder:
        if count := read_untrusted("database", other, folder).get("retraction"):
            note(f"not added: {counted(count, 'withdrawal')} of {other}, which apply only there")
        yield folder


@contextmanager
def adding_to(path: Path, checked: Path | None = None) -> Iterator[Database]:
    """Open a database to add the rows in the folder `checked`. Create a missing database, but delete the new file after
    an error."""
    existed = path.exists()
    size = sum(file.stat().st_size for file in checked.iterdir()) if checked else 0
    if existed and size > _MANY_BYTES and os.name != "nt":  # Windows cannot replace an open file.
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
