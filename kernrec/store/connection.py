"""Open DuckDB files.

Any file may come from another person. So a connection ignores the views and macros in the file, cannot change its own
settings, and can read other files only in one private folder.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kernrec.errors import UsageError, cannot_be
from kernrec.util.files import check_input, new_scratch_path, scratch_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from kernrec.store.reader import Limits

# Oldest version of DuckDB that can read kernrec's files
STORAGE_VERSION = "v1.2.0"

_READING_LIMIT, _WRITING_LIMIT = "600MB", "350MB"

_MOST_THREADS = 4

WAIT_S = 10.0
"""Maximum seconds to wait for another process that has the file open."""

# Use one thread unless rows are added, because starting DuckDB's thread pool takes longer than kernrec's small queries.
# Never download extensions, because kernrec works offline.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": _READING_LIMIT,
    "storage_compatibility_version": STORAGE_VERSION,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
# Disable the progress bar, which DuckDB would print to standard output in an interactive Python.
_LOCK = "SET enable_progress_bar = false; SET enable_external_access = false; SET lock_configuration = true"

_open: "WeakValueDictionary[tuple[str, bool], DuckDBPyConnection]" = WeakValueDictionary()
"""Open connections, keyed by (path, read-only). Each file is opened only once. On POSIX, closing a second connection
would release the lock of the first."""


def connect_memory() -> "DuckDBPyConnection":
    """Return a connection to a new, empty database in memory. Its SQL name is `db`."""
    return _locked(f"{_private_folder()}; ATTACH ':memory:' AS db")


@contextmanager
def parquet_rows(path: Path) -> "Iterator[tuple[DuckDBPyConnection, str]]":
    """Yield a connection that can read only one Parquet file, and the SQL name of the file's rows."""
    with ExitStack() as stack:
        if any(char in str(path) for char in "*?["):  # DuckDB would treat the path as a pattern with wildcards.
            import shutil

            path = shutil.copyfile(path, stack.enter_context(scratch_folder()) / "rows.parquet")
        name = quoted(path.absolute())
        connection = stack.enter_context(_locked(f"SET allowed_paths = [{name}]"))
        yield connection, f"read_parquet({name})"


def connect_untrusted(path: Path, folder: Path, limits: "Limits", *, filtered: bool = False) -> "DuckDBPyConnection":
    """Return a read-only connection to an untrusted file. Call this only in a process with resource limits.

    Args:
        folder: The only folder in which the connection can access other files.
        filtered: If true, attach the file as `file` instead of `db`, so that `db` can have views that hide rows.
    """
    with one_line(path):
        return _waiting(
            f"{_within(limits, folder)}; SET allowed_directories = [{quoted(folder)}]; "
            f"{_attached(path.absolute(), 'READ_ONLY, ', filtered)}"
        )


def _attached(path: Path, access: str, filtered: bool) -> str:
    name, memory = ("file", "; ATTACH ':memory:' AS db") if filtered else ("db", "")
    return f"ATTACH {quoted(path)} AS {name} ({access}TYPE duckdb){memory}"


def connect_files(
    files: Sequence[Path], folder: Path, limits: "Limits", database: Path | None = None
) -> "DuckDBPyConnection":
    """Return a connection to an empty database `db`. Call this only in a process with resource limits.

    Args:
        files: Files that the connection can read.
        folder: Folder in which the connection can access all files.
        database: Path of a new file for `db`, in the folder. By default, `db` is in memory.
    """
    names = ", ".join(quoted(file.absolute()) for file in files)
    return _locked(
        f"{_within(limits, folder)}; SET allowed_paths = [{names}]; "
        f"SET allowed_directories = [{quoted(folder)}]; ATTACH {quoted(database or ':memory:')} AS db"
    )


def _within(limits: "Limits", folder: Path) -> str:
    return (
        f"SET memory_limit = '{limits.database_bytes}B'; SET threads = {limits.threads}; "
        f"SET temp_directory = {quoted(folder / 'spilled')}"
    )


def _locked(first: str) -> "DuckDBPyConnection":
    from kernrec.store.native_duckdb import duckdb

    connection = duckdb.connect(":memory:", config=_CONFIG | {"temp_directory": str(new_scratch_path())})
    try:
        connection.execute(f"{first}; {_LOCK}")
    except BaseException:
        connection.close()
        raise
    return connection


def _waiting(first: str) -> "DuckDBPyConnection":
    from kernrec.store.native_duckdb import duckdb

    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            return _locked(first)
        except duckdb.IOException as error:
            if "Could not set lock" not in str(error) or time.monotonic() >= end_s:
                raise
        time.sleep(0.05)


def _private_folder() -> str:
    return f"SET allowed_directories = [{quoted(new_scratch_path())}]"


@contextmanager
def exchange_folder(connection: "DuckDBPyConnection") -> Iterator[Path]:
    """Yield a private folder in which the connection can access files. Delete the folder at the end."""
    query = "SELECT current_setting('allowed_directories')[1], current_setting('temp_directory')"
    exchanged, spilled = map(Path, connection.execute(query).fetchall()[0])
    with scratch_folder(exchanged, beside=spilled) as folder:
        yield folder


def quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def is_open(path: Path) -> bool:
    real = os.path.realpath(path)
    return any(_cursor(real, read_only) is not None for read_only in (True, False))


def _cursor(real: str, read_only: bool) -> "DuckDBPyConnection | None":
    if (connection := _open.get((real, read_only))) is not None:
        from kernrec.store.native_duckdb import duckdb

        with suppress(duckdb.Error):  # The connection may have been closed.
            return connection.cursor()
    return None


def connect(path: Path, *, read_only: bool, create: bool = False, filtered: bool = False) -> "DuckDBPyConnection":
    """Return a connection to a database file. Its SQL name is `db`.

    Args:
        create: Whether to create a missing file.
        filtered: If true, attach the file as `file` instead of `db`, so that `db` can have views that hide rows.

    Raises:
        UsageError: The path is not a readable database. Existing files stay unchanged.
    """
    path = path.absolute()
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a database")
    check_input(path)
    check_input(Path(f"{path}.wal"))
    if not create and not path.exists():
        raise UsageError(f"there is no database at {path}")
    same = os.path.realpath(path), read_only
    if (connection := _cursor(*same)) is not None:
        return connection
    access, settings = "READ_ONLY, ", ""
    if not read_only:
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        access, settings = "", f"SET threads = {threads}; SET memory_limit = '{_WRITING_LIMIT}'; "
    with one_line(path):
        connection = _waiting(f"{settings}{_private_folder()}; {_attached(path, access, filtered)}")
    _open[same] = connection
    return connection


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(cannot_be("created", f"the folder {folder}", error)) from None


@contextmanager
def transaction(connection: "DuckDBPyConnection") -> Iterator[None]:
    from kernrec.store.native_duckdb import duckdb

    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.Error):  # DuckDB rolls back on its own if a commit fails.
            connection.execute("ROLLBACK")
        raise


# Number of bytes before the first block of a file: https://duckdb.org/docs/stable/internals/storage
_HEADER_BYTES = 3 * 4096


def check_whole(connection: "DuckDBPyConnection", path: Path) -> None:
    """Raise `UsageError` if a database file is truncated. DuckDB would raise an error only later."""
    query = "SELECT block_size * used_blocks FROM pragma_database_size() WHERE database_name = 'db'"
    sizes = connection.execute(query).fetchone()
    if sizes is not None and path.stat().st_size < _HEADER_BYTES + sizes[0]:
        raise UsageError(f"{path} is damaged or cut short")


# Patterns of DuckDB's messages, and kernrec's messages for them. The first match counts.
_MEANINGS = (
    (r"not a valid DuckDB database|Cannot launch in-memory database", "is not a DuckDB database"),
    (r"Could not set lock.*\(PID (\d+)\)", r"is in use by another process (PID \1); close it there and try again"),
    (r"Could not set lock", "is in use by another process; close it there and try again"),
    (r"different configuration|Unique file handle|already attached", "is already open in this program in another way"),
    (r"newer (?:DuckDB )?version|version number|newer storage", "needs a newer DuckDB than the installed INSTALLED"),
    (
        r"Could not read enough bytes|[Cc]hecksum|[Dd]eserializ|Serialization Error|INTERNAL|Corrupt",
        "is damaged or cut short",
    ),
    (r"Permission denied", "cannot be opened: permission denied"),
    # In a file opened for reading, views may replace tables. DuckDB then reports a write with "is not a table".
    (r"is not an? table", "is open read-only"),
    (r"[Rr]ead-only file ?system", "cannot be written: read-only file system"),
    (
        r"No space left|File too large|failed to offload|Could not write all bytes|no free space|Disk quota",
        "cannot be written: the disk is full; nothing was stored",
    ),
    (r"Out of Memory", "needs more memory than this program may use, or than a file of its size should"),
)


@contextmanager
def one_line(path: Path | str) -> Iterator[None]:
    """Convert DuckDB's errors to a `UsageError` with one line of text that names `path`."""
    try:
        yield
    except Exception as error:
        from kernrec.store.native_duckdb import duckdb

        if not isinstance(error, duckdb.Error):
            raise
        message = str(error)
        for pattern, meaning in _MEANINGS:
            if match := re.search(pattern, message):
                text = match.expand(meaning).replace("INSTALLED", duckdb.__version__)
                raise UsageError(f"{path} {text}") from None
        first = next((line.strip() for line in message.splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"{path}: {first}") from None
