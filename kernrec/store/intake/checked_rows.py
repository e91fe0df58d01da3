"""Rows of a stranger's file: a child with limits reads the file, checks every row and writes plain Parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store.reader import read_apart
from kernrec.util.scratch import scratch_folder


def checked_rows(path: Path, folder: Path) -> dict[str, int]:
    """Read a stranger's database into `<table>.parquet` files in a folder.

    Args:
        path: of the file.
        folder: private to this program; only the child writes to it.

    Returns:
        How many rows each table has; every row was checked.

    Raises:
        UsageError: if the file cannot be read, or its rows cannot be taken.
    """
    path = path.absolute()
    try:
        size = path.stat().st_size
    except OSError:
        raise UsageError(f"there is no database at {path}") from None
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a database")
    return read_apart("database", {"path": str(path)}, str(path), size, folder)


def checked_segments(files: Mapping[str, Sequence[Path]], folder: Path, title: str) -> dict[str, int]:
    """Read a stranger's Parquet files, as `checked_rows` reads a database.

    Args:
        files: by table; in a folder that nobody else writes to.
        folder: private to this program, for `<table>.parquet`.
        title: what messages call the files.
    """
    size = sum(file.stat().st_size for names in files.values() for file in names)
    segments = {table: [str(file.absolute()) for file in names] for table, names in files.items()}
    return read_apart("segments", {"segments": segments}, title, size, folder)


def check_own_segments(files: Mapping[str, Sequence[Path]], title: str) -> None:
    """Refuse Parquet files that others would refuse; this program has written them just now, so their keys are right.

    Args:
        files: by table.
        title: what messages call the files.
    """
    size = sum(file.stat().st_size for names in files.values() for file in names)
    segments = {table: [str(file.absolute()) for file in names] for table, names in files.items()}
    with scratch_folder() as folder:
        read_apart("own segments", {"segments": segments}, title, size, folder)


def checked_table(path: Path, folder: Path, most_rows: int) -> Path:
    """Read a stranger's Parquet file of any columns; returns the file with what could be read, in a folder.

    Args:
        path: of the file.
        folder: private to this program.
        most_rows: a file with more rows is refused.
    """
    path = path.absolute()
    read_apart("table", {"path": str(path), "most_rows": most_rows}, str(path), path.stat().st_size, folder)
    return folder / "table.parquet"
