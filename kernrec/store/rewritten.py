"""Add many rows to a copy of a database, then replace the database by the copy.

While a process writes to a DuckDB file, no other process can read it. Adding a million rows takes longer than a query
waits. So rows are added to a copy, and queries use the old file until the copy takes its name.

Two locks exclude other writers. The original stays open for reading, so nobody writes to it before its replacement. The
copy is locked, so that two processes do not replace the same file.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernrec.errors import UsageError, file_errors
from kernrec.store.connection import WAIT_S
from kernrec.store.database import Database, replace_file
from kernrec.store.marks import Mark, is_own, read_mark
from kernrec.util.file_lock import lock_path


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
