"""A new database file appears whole: a process that is killed while it makes one leaves none, not half of one."""

import os
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.store import migrations as schema
from kernrec.store.connection import connect, make_folder, one_line
from kernrec.util.scratch import scratch_folder


def make(path: Path) -> None:
    """Make an empty database, unless there is a file by then.

    Raises:
        UsageError: if it cannot be made; nothing is left then.
    """
    import duckdb

    path = path.absolute()
    make_folder(path.parent)
    new = path.with_name(f".{os.urandom(8).hex()}.duckdb")
    with one_line(path):
        try:
            content = _empty(tuple(step.sql for step in schema.migrations()))
        except UsageError as error:
            raise UsageError(f"{path} cannot be made: {error}") from None
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _place(new, path)
        except OSError as error:
            raise duckdb.IOException(str(error)) from None
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)


def _place(new: Path, path: Path) -> None:
    """Give a file its name, unless another process was first: its rows would be gone."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            new.rename(path)


@cache
def _empty(steps: tuple[str, ...]) -> bytes:
    """What an empty database of these steps of the schema consists of; made once, because copying it is faster."""
    with scratch_folder() as folder:
        path = folder / "empty.duckdb"
        with closing(connect(path, read_only=False, create=True)) as connection:
            schema.migrate(connection, 0)
            connection.execute("CHECKPOINT db")  # closing does it too, but is silent about a full disk
        return path.read_bytes()
