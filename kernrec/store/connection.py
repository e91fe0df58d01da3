"""Opening DuckDB files, and DuckDB's errors as one line each.

If a path is not a readable database (nothing, a folder, another program's file, a damaged database, one in use),
opening it raises an error of one line and changes nothing. DuckDB is imported where a file is opened: importing it
takes longer than a query that needs no database.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# The oldest DuckDB that can read the files written here.
STORAGE_VERSION = "v1.2.0"

# One thread: our queries are small, and starting DuckDB's thread pool takes longer than they do. Extensions are never
# downloaded: kernrec works offline.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "storage_compatibility_version": STORAGE_VERSION,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def connect_memory() -> "DuckDBPyConnection":
    """A new, empty database in memory."""
    import duckdb

    return duckdb.connect(":memory:", config=_CONFIG)


_shared = cache(connect_memory)


def memory() -> "DuckDBPyConnection":
    """A cursor for reading Parquet files. All share one database, because opening one takes longer than most reads."""
    return _shared().cursor()


def quoted(text: object) -> str:
    """`text` as an SQL string."""
    return "'" + str(text).replace("'", "''") + "'"


def connect(path: Path, *, read_only: bool, create: bool) -> "DuckDBPyConnection":
    """A connection to a database file.

    Args:
        path: of the file.
        read_only: whether it will only be read.
        create: whether to create the file and its folder if they do not exist.

    Raises:
        UsageError: if there is no database; nothing is changed then.
    """
    import duckdb

    path = path.absolute()
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a database")
    if not path.exists():
        if not create or read_only:
            raise UsageError(f"there is no database at {path}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot create the folder {path.parent}: {(error.strerror or str(error)).lower()}"
            ) from None
    existed = path.exists()
    try:
        with one_line(path):
            return duckdb.connect(str(path), read_only=read_only, config=_CONFIG)
    except UsageError:
        if not existed:
            path.unlink(missing_ok=True)  # an incomplete file on a full disk
        raise


_HEADER_BYTES = 3 * 4096  # before a file's blocks: https://duckdb.org/docs/stable/internals/storage


def check_whole(connection: "DuckDBPyConnection", path: Path) -> None:
    """Raise `UsageError` for a file that is too short for its blocks; DuckDB notices that only when it reads them.

    Only the blocks in use count: DuckDB cuts free blocks off the end of a file but still lists them.
    """
    sizes = connection.execute("SELECT block_size * used_blocks FROM pragma_database_size()").fetchone()
    if sizes is not None and path.stat().st_size < _HEADER_BYTES + sizes[0]:
        raise UsageError(f"{path} is damaged or cut short")


# What DuckDB's messages mean, in the words of this program; the first match counts.
_MEANINGS = (
    (r"not a valid DuckDB database|Cannot launch in-memory database", "is not a DuckDB database"),
    (r"Could not set lock.*\(PID (\d+)\)", r"is in use by another process (PID \1); close it there and try again"),
    (r"Could not set lock", "is in use by another process; close it there and try again"),
    (r"different configuration|Unique file handle|already attached", "is already open in this program in another way"),
    (
        r"newer (?:DuckDB )?version|version number|newer storage",
        "needs a newer DuckDB than the installed INSTALLED",
    ),
    (
        r"Could not read enough bytes|[Cc]hecksum|[Dd]eserializ|Serialization Error|INTERNAL|Corrupt",
        "is damaged or cut short",
    ),
    (r"Permission denied", "cannot be opened: permission denied"),
    (r"[Rr]ead-only file ?system", "cannot be written: read-only file system"),
    (r"No space left", "cannot be written: no space left"),
)


@contextmanager
def one_line(path: Path | str) -> Iterator[None]:
    """Turn DuckDB's errors into a `UsageError` of one line that names `path`."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        message = str(error)
        for pattern, meaning in _MEANINGS:
            if match := re.search(pattern, message):
                text = match.expand(meaning).replace("INSTALLED", duckdb.__version__)
                raise UsageError(f"{path} {text}") from None
        first = next((line.strip() for line in message.splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"{path}: {first}") from None
