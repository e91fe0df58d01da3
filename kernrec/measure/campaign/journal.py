"""Write measurements to a journal, so that a crash loses none of them.

The journal is a SQLite database beside the user's database (`<database>.journal.sqlite`), in WAL mode with an fsync per
commit. A campaign locks the file `<database>.journal.lock`, so that only one campaign at a time writes to a
database.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Self

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.files import check_kind, lock_path, try_lock

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT,
    block INTEGER,
    measured INTEGER NOT NULL,  -- 1: a measurement; 0: the end of a block
    content TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS record_of_block ON record (session, block);
"""
_SAME_BLOCK = "other.session = record.session AND other.block = record.block"
_SUFFIX = ".journal.sqlite"
_WAIT_S = 1.0
"""Seconds to wait for the lock. `waiting_measurements` in another process may hold the lock for a moment."""
_FAULTS = (sqlite3.Error, UnicodeError, OverflowError)
"""Exceptions that a damaged file may cause."""


class JournalError(KernrecError):
    """The journal cannot be written. Earlier records are safe."""


class JournalInUseError(UsageError):
    """Another campaign has locked the journal."""


class Records(Protocol):
    """Destination of a campaign's records: a journal, or the main process of a cluster."""

    def append(self, *records: Mapping[str, Any]) -> None:
        """Store records. Raise `JournalError` if that is impossible."""


class Journal:
    """Journal of one campaign. Several threads may use it."""

    def __init__(self, database: Path) -> None:
        """Open or create the journal of a database. Keep the records of a killed campaign.

        Raises:
            JournalInUseError: Another campaign has locked the journal.
            UsageError: The journal cannot be written.
        """
        self.database = database
        self.path = journal_path(database).absolute()
        self._lock = threading.Lock()
        lock = _lock_file(self.path)
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            for file in filter(Path.exists, (self.path, lock)):
                check_kind(file.stat().st_mode, file)
            if (descriptor := lock_path(lock, _WAIT_S)) is None:
                raise JournalInUseError(
                    f"{database.name} is being written by {lock.read_text(errors='replace')}:"
                    " wait for it to end, or measure into another --db and merge that later with `kernrec db merge`"
                )
            self._locked = descriptor
            with ExitStack() as opened:  # After an error, close the files.
                opened.callback(os.close, descriptor)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"PID {os.getpid()} since {datetime.now():%Y-%m-%d %H:%M}".encode())
                self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
                opened.callback(self._connection.close)
                _check_schema(self._connection)
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.executescript(_SCHEMA)
                opened.pop_all()
        except (OSError, *_FAULTS) as error:
            raise UsageError(self._failed(error)) from None

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write all records to disk. If writing fails, write none of them and raise `JournalError`."""
        rows = [(*_columns(record), json.dumps(record, allow_nan=False)) for record in records]
        with self._transaction() as connection:
            connection.executemany("INSERT INTO record (session, block, measured, content) VALUES (?, ?, ?, ?)", rows)

    def records(self) -> list[dict[str, Any]]:
        return [_record(content) for (content,) in self._query("SELECT content FROM record ORDER BY id")]

    def batch(self, most: int, ended_only: bool = False) -> tuple[list[int], list[dict[str, Any]]]:
        """Return (IDs for `delete`, records) of at most `most` measurements, oldest first.

        The records also include one record for each block of measurements that has ended. If `ended_only` is True, skip
        measurements in blocks that are still running.
        """
        ended = f" AND EXISTS (SELECT 1 FROM record other WHERE NOT other.measured AND {_SAME_BLOCK})"
        rows = self._query(
            f"SELECT id, session, block, content FROM record WHERE measured{ended * ended_only} ORDER BY id LIMIT ?",
            most,
        )
        ends = [
            content
            for block in dict.fromkeys((session, block) for _, session, block, _ in rows)
            for (content,) in self._query(
                "SELECT content FROM record WHERE NOT measured AND session = ? AND block = ?", *block
            )
        ]
        return [row[0] for row in rows], [_record(content) for content in (*(row[3] for row in rows), *ends)]

    def delete(self, ids: Sequence[int]) -> None:
        """Delete measurements, and the records of blocks without remaining measurements."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM record WHERE id = ?", [(each,) for each in ids])
            connection.execute(
                "DELETE FROM record WHERE NOT measured"
                f" AND NOT EXISTS (SELECT 1 FROM record other WHERE other.measured AND {_SAME_BLOCK})"
            )

    def close(self) -> None:
        """Close the journal. Delete its files if it is empty."""
        with self._lock:
            empty = False
            with suppress(*_FAULTS):
                empty = not self._connection.execute("SELECT 1 FROM record LIMIT 1").fetchall()
            self._connection.close()
            for path in (self.path, _lock_file(self.path)) if empty else ():
                with suppress(OSError):  # Windows cannot delete an open file
                    path.unlink(missing_ok=True)
            os.close(self._locked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    def _failed(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return cannot_be("written", f"the journal {self.path}", error)
        return f"the journal {self.path} cannot be used: {error}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _FAULTS as error:
            raise JournalError(f"{self._failed(error)}; earlier measurements are safe in it") from None


@dataclass(frozen=True)
class Waiting:
    """Measurements in a journal that are not in the database yet."""

    measurements: int
    holder: str | None
    """Process that is writing to the database, such as `PID 123 since ...`, or None."""


def waiting_measurements(database: Path) -> Waiting:
    """Return the number of measurements that wait in a database's journal. Raise `OSError` if the journal cannot be
    read."""
    path = journal_path(database)
    if not path.exists():
        return Waiting(0, None)
    check_kind(path.stat().st_mode, path)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            _check_schema(connection)
            ((count,),) = connection.execute("SELECT count(*) FROM record WHERE measured").fetchall()
    except _FAULTS as error:
        raise OSError(0, str(error)) from None
    return Waiting(count, _holder(_lock_file(path)))


def _holder(lock: Path) -> str | None:
    if not lock.exists():
        return None
    descriptor = os.open(lock, os.O_RDWR)
    try:
        return None if try_lock(descriptor) else lock.read_text(errors="replace")
    finally:
        os.close(descriptor)


def journal_path(database: Path) -> Path:
    return database.with_name(f"{database.name}{_SUFFIX}")


def _lock_file(path: Path) -> Path:
    return path.with_suffix(".lock")


def _check_schema(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` unless the file has only plain tables. Views and triggers could run code."""
    connection.execute("PRAGMA trusted_schema = OFF")
    runs = "type IN ('view', 'trigger') OR sql LIKE '% VIRTUAL %' OR sql LIKE '% AS %'"
    for (name,) in connection.execute(f"SELECT name FROM sqlite_schema WHERE {runs}"):
        raise sqlite3.DatabaseError(f"{name!r:.60} is not a plain table")


def _columns(record: Mapping[str, Any]) -> tuple[str | None, int | None, bool]:
    """Return (session, block, whether the record is a measurement). Session and block are None if the record is
    damaged."""
    row = record.get("row")
    place = row if isinstance(row, dict) else record
    block = place.get("block", place.get("closed", place.get("drifted")))
    session = place.get("session")
    whole = type(block) is int and abs(block) < 2**63
    return session if isinstance(session, str) else None, block if whole else None, "row" in record


def _record(content: object) -> dict[str, Any]:
    """Parse a stored record. Return an invalid measurement if the record is damaged."""
    with suppress(ValueError, RecursionError, TypeError):
        if isinstance(record := json.loads(content), dict):  # type: ignore[arg-type]
            return record
    return {"row": str(content)}
