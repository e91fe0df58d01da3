"""The journal: a measurement is on disk before it is acknowledged, so that a crash loses nothing that was acknowledged.

A SQLite database beside the user's database (`<database>.journal.sqlite`), in WAL mode with an fsync for each commit.
Several runs share it. Each run has its own records, and claims the problem that it measures. A run lives as long as its
process holds a lock on one byte of `<database>.journal.lock`; records of a run that ended are taken over by the others.
Both files are deleted once their records are in the database and no run is left.
"""

import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.file_lock import try_lock, try_lock_byte, unlock_byte
from kernrec.util.input_file import check_kind, open_input

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS claim (name TEXT PRIMARY KEY, run INTEGER NOT NULL, holder TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS record (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    session TEXT,
    block INTEGER,
    measured INTEGER NOT NULL,  -- 1: a measurement; 0: the end of a block
    content TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS record_of_block ON record (session, block);
"""
_ENDED = """
EXISTS (SELECT 1 FROM record ended WHERE NOT ended.measured
        AND ended.session = record.session AND ended.block = record.block)
"""
_BUSY_S = 60.0
"""Seconds to wait for another process's transaction, which takes milliseconds."""
_RETRY_S = 0.01
_FAULTS = (sqlite3.Error, UnicodeError, OverflowError)
"""Exceptions for a damaged file; Python may fail to decode its names or to hold its numbers."""
_GATE = 0
"""The byte that is locked while a run registers or leaves. The other bytes are the numbers of runs."""
_open_here: set[Path] = set()
"""Paths of the journals that this process has open."""


class JournalError(KernrecError):
    """The journal cannot be written; the records it had acknowledged are still in it."""


class Journal:
    """A journal that is open for one run; several threads may use it."""

    def __init__(self, path: Path, left_by_0_1: str = r"(\.\d+)?") -> None:
        """Open or create the journal, and take over the records of runs that ended.

        Args:
            path: as of `journal_path`.
            left_by_0_1: regular expression for the part of a name that tells journals of kernrec 0.1 apart, which are
                text files beside the journal and are read once.

        Raises:
            UsageError: the journal cannot be written, or is open in this process.
        """
        self.path = path.absolute()
        if self.path in _open_here:
            raise UsageError(f"this process has {path} open: run one campaign on a database at a time")
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                check_kind(path.stat().st_mode, path)
            self._locked = _through_gate(_lock_file(path))
            try:
                self._connection = _connected(path)
                self.run = self._register()
            finally:
                unlock_byte(self._locked, _GATE)
            _open_here.add(self.path)
            self._take_over()
            self._read_old(left_by_0_1)
        except (OSError, *_FAULTS) as error:
            self._abandon()
            raise UsageError(_failed(path, error)) from None
        except KernrecError:
            self._abandon()
            raise

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write records; when this returns, they survive any crash.

        Raises `JournalError`, and writes none of them, if they cannot be written.
        """
        rows = [(self.run, *_columns(record), json.dumps(record, allow_nan=False)) for record in records]
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO record (run, session, block, measured, content) VALUES (?, ?, ?, ?, ?)", rows
            )

    def records(self) -> list[dict[str, Any]]:
        """Return the records of this run in order, with those that it took over."""
        return [_record(content) for (content,) in self._query("SELECT content FROM record WHERE run = ?", self.run)]

    def batch(self, most: int, ended_of: int | None = None) -> tuple[list[int], list[dict[str, Any]]]:
        """Return (numbers of measurements in order, their records with those of the ends of their blocks).

        Args:
            most: measurements at most.
            ended_of: a run, of which only measurements of ended blocks are returned; None: all of this run, and of
                runs that ended.
        """
        if ended_of is None:
            self._take_over()
        condition = "measured AND run = ?" + (f" AND {_ENDED}" if ended_of is not None else "")
        run = self.run if ended_of is None else ended_of
        rows = self._query(
            f"SELECT id, session, block, content FROM record WHERE {condition} ORDER BY id LIMIT ?", run, most
        )
        ends = [
            content
            for block in dict.fromkeys((session, block) for _, session, block, _ in rows)
            for (content,) in self._query(
                "SELECT content FROM record WHERE NOT measured AND session = ? AND block = ?", *block
            )
        ]
        return [row[0] for row in rows], [_record(content) for content in (*(row[3] for row in rows), *ends)]

    def delete(self, numbers: Sequence[int]) -> None:
        """Delete measurements by their numbers, and the ends of blocks that have no measurements left."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM record WHERE id = ?", [(number,) for number in numbers])
            connection.execute(
                "DELETE FROM record WHERE NOT measured AND NOT EXISTS (SELECT 1 FROM record other WHERE other.measured"
                " AND other.session = record.session AND other.block = record.block)"
            )

    def clear(self) -> None:
        """Delete the records of this run."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM record WHERE run = ?", (self.run,))

    def claim(self, name: str, holder: str = "") -> bool:
        """Claim a problem or a task by name, in place of the holder's claim before; False if another run has it."""
        self._take_over()
        with self._transaction() as connection:
            connection.execute("DELETE FROM claim WHERE run = ? AND holder = ?", (self.run, holder))
            added = connection.execute("INSERT OR IGNORE INTO claim VALUES (?, ?, ?)", (name, self.run, holder))
            return added.rowcount == 1

    def close(self) -> None:
        """End the run; the files are deleted if nothing is in them and no other run has them open."""
        with self._lock:
            self._wait_at_gate()
            connection = self._connection
            empty = False
            with suppress(*_FAULTS), connection:
                connection.execute("DELETE FROM claim WHERE run = ?", (self.run,))
                connection.execute(
                    "DELETE FROM run WHERE id = ? AND NOT EXISTS (SELECT 1 FROM record WHERE run = ?)",
                    (self.run, self.run),
                )
                empty = not any(connection.execute("SELECT 1 FROM run UNION ALL SELECT 1 FROM record").fetchall())
            self._abandon(delete=empty)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _register(self) -> int:
        with self._transaction() as connection:
            run = connection.execute("INSERT INTO run (pid) VALUES (?)", (os.getpid(),)).lastrowid
        assert run is not None
        if not try_lock_byte(self._locked, run):
            raise OSError(f"run {run} is locked")
        return run

    def _wait_at_gate(self) -> None:
        while not try_lock_byte(self._locked, _GATE):
            time.sleep(_RETRY_S)

    def _abandon(self, delete: bool = False) -> None:
        """Close everything; delete the files if wanted."""
        _open_here.discard(self.path)
        if (connection := getattr(self, "_connection", None)) is not None:
            connection.close()
        if (descriptor := getattr(self, "_locked", None)) is None:
            return
        for path in (self.path, _lock_file(self.path)) if delete else ():
            with suppress(OSError):  # Windows deletes no open file
                path.unlink(missing_ok=True)
        os.close(descriptor)

    def _take_over(self) -> None:
        """Take over the records of runs that ended, and end their claims."""
        others = self._query("SELECT id FROM run WHERE id != ?", self.run)
        with self._lock:
            ended = [number for (number,) in others if _is_free(self._locked, number)]
        if not ended:
            return
        with self._transaction() as connection:
            for number in ended:
                connection.execute("UPDATE record SET run = ? WHERE run = ?", (self.run, number))
                connection.execute("DELETE FROM claim WHERE run = ?", (number,))
                connection.execute("DELETE FROM run WHERE id = ?", (number,))

    def _read_old(self, left_by_0_1: str) -> None:
        for path in _old_journals(self.path, left_by_0_1):
            with open_input(path) as file:
                if try_lock(file.fileno()):  # otherwise kernrec 0.1 is filling it
                    self.append(*_old_records(file.read()))
                    path.unlink()

    def _query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _FAULTS as error:
            raise JournalError(f"{_failed(self.path, error)}; what was measured before is safe in it") from None


@dataclass(frozen=True)
class Waiting:
    """The measurements in a journal that are not in its database yet."""

    measurements: int
    holder: int | None
    """A process that has the journal open; None: nobody has, and the next collector stores them."""


def waiting_measurements(database: Path) -> Waiting:
    """Return the measurements in the journal of a database, which is not changed.

    Raises:
        OSError: the journal cannot be read.
    """
    path, holder = journal_path(database), None
    count = sum("row" in record for old in _old_journals(path) for record in _old_records(_content(old)))
    if path.exists():
        check_kind(path.stat().st_mode, path)
        address = f"{path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as connection:
                _check_schema(connection)
                holder = _holder(path, connection)
                count += connection.execute("SELECT count(*) FROM record WHERE measured").fetchone()[0]
        except _FAULTS as error:
            raise OSError(0, str(error)) from None
    return Waiting(count, holder)


def _holder(path: Path, connection: sqlite3.Connection) -> int | None:
    """Return the number of a process that has a journal open."""
    if path.absolute() in _open_here:
        return os.getpid()  # to close a second descriptor would release the locks of this process
    if not _lock_file(path).exists():
        return None
    locked = os.open(_lock_file(path), os.O_RDWR)
    try:
        runs = connection.execute("SELECT id, pid FROM run").fetchall()
        return next((pid for number, pid in runs if not _is_free(locked, number)), None)
    finally:
        os.close(locked)


def journal_path(database: Path) -> Path:
    """Return the path of the journal of a database."""
    return database.with_name(f"{database.name}.journal.sqlite")


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.sqlite')}.lock")


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _check_schema(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
    except _FAULTS:
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` if reading a table could run something that the file says, without an end."""
    connection.execute("PRAGMA trusted_schema = OFF")
    runs = "type IN ('view', 'trigger') OR sql LIKE '% VIRTUAL %' OR sql LIKE '% AS %'"
    for (name,) in connection.execute(f"SELECT name FROM sqlite_schema WHERE {runs}"):
        raise sqlite3.DatabaseError(f"{name!r:.60} is not a plain table")


def _through_gate(path: Path) -> int:
    """Open the file of locks, and lock the gate."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            check_kind(os.fstat(descriptor).st_mode, path)
        except UsageError:
            os.close(descriptor)
            raise
        while not try_lock_byte(descriptor, _GATE):
            time.sleep(_RETRY_S)
        with suppress(FileNotFoundError):  # another process may have deleted the file before it was locked
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def _is_free(descriptor: int, byte: int) -> bool:
    if free := try_lock_byte(descriptor, byte):
        unlock_byte(descriptor, byte)
    return free


def _columns(record: Mapping[str, Any]) -> tuple[str | None, int | None, bool]:
    """(session, block, whether it is a measurement) of a record, which may be damaged."""
    row = record.get("row")
    place = row if isinstance(row, dict) else record
    block = place.get("block", place.get("closed", place.get("drifted")))
    session = place.get("session")
    whole = type(block) is int and abs(block) < 2**63
    return session if isinstance(session, str) else None, block if whole else None, "row" in record


def _old_journals(path: Path, left_by_0_1: str = r"(\.\d+)?") -> list[Path]:
    if not path.parent.is_dir():
        return []
    name = re.compile(re.escape(path.name.removesuffix(".journal.sqlite")) + left_by_0_1 + r"\.journal")
    return sorted(other for other in path.parent.iterdir() if name.fullmatch(other.name))


def _content(path: Path) -> bytes:
    with open_input(path) as file:
        return file.read()


def _old_records(content: bytes) -> list[dict[str, Any]]:
    """The records in the lines of a journal; a last line without an end was never acknowledged."""
    records = []
    for line in content.split(b"\n")[:-1]:
        with suppress(ValueError, RecursionError):  # no collector wrote such a line
            record = json.loads(line)
            if isinstance(record, dict) and "pid" not in record:
                records.append(record if _is_finite(record) else {"row": line.decode(errors="replace")})
    return records


def _is_finite(record: dict[str, Any]) -> bool:
    try:
        json.dumps(record, allow_nan=False)
    except ValueError:
        return False
    return True


def _record(content: object) -> dict[str, Any]:
    """A record as it was appended; of a damaged one, a measurement that nobody can read."""
    with suppress(ValueError, RecursionError, TypeError):
        if isinstance(record := json.loads(content), dict):  # type: ignore[arg-type]
            return record
    return {"row": str(content)}


def _failed(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return cannot_be("written", f"the journal {path}", error)
    return f"the journal {path} cannot be used: {error}"
