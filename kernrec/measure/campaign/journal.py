"""The journal: what was measured is on disk the moment it is acknowledged, whatever happens next.

One JSON line for each record, appended and synchronised, beside the database (`<database>.journal`). Who holds it is
locked out for others, so that one collector at a time fills a database; the lock goes with the process that took it. A
line that a crash cut short was never acknowledged and is cut off. Once its content is in the database the journal is
emptied, and removed when its collector is done.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from kernrec.errors import KernrecError, UsageError

_PID = "pid"
"""Of the record that says which process holds the journal."""


class JournalError(KernrecError):
    """The journal cannot be written; what it had acknowledged is still in it."""


class Journal:
    """An open, locked journal. Appending may be done from several threads."""

    def __init__(self, path: Path) -> None:
        """Open or make the journal at `path`. Raises `UsageError` when another process holds it."""
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(path)
        except OSError as error:
            raise UsageError(f"cannot write the journal {path}: {_reason(error)}") from None
        self._end = self._cut_torn_line()
        self._empty = not self._records()
        self._write(_holder())

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; when this returns it survives everything but the disk.

        Raises `JournalError`, with nothing of the record left in the file, when it cannot be written.
        """
        self._write(record)
        self._empty = False

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._file, line[written:])
                os.fsync(self._file)
            except OSError as error:
                with suppress(OSError):  # else the torn line is cut off when the journal is next opened
                    self._truncate(self._end)
                raise JournalError(
                    f"cannot write the journal {self.path}: {_reason(error)}; what was measured before is safe in it"
                ) from None
            self._end += len(line)

    def drain(self, consume: Callable[[list[dict[str, Any]]], None]) -> int:
        """Hand all records over, in order, and forget them once `consume` returns; gives how many there were.

        What is appended meanwhile waits. Lines that other hands damaged are left out.
        """
        with self._lock:
            records = self._records()
            if records:
                consume(records)
                self._truncate(0)
                self._end, self._empty = 0, True
        if records:
            self._write(_holder())
        return len(records)

    def close(self) -> None:
        """Let go of the journal; an empty one is removed."""
        with self._lock:
            if self._empty:
                self.path.unlink(missing_ok=True)
            os.close(self._file)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _records(self) -> list[dict[str, Any]]:
        return [record for record in _records(self._read()) if _PID not in record]

    def _read(self) -> bytes:
        size = os.fstat(self._file).st_size
        return os.pread(self._file, size, 0)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def _cut_torn_line(self) -> int:
        content = self._read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._truncate(whole)
        return whole


def journal_path(database: Path) -> Path:
    """Where the journal of a database is."""
    return database.with_name(f"{database.name}.journal")


def left_behind(path: Path) -> tuple[int, int | None]:
    """(records in the journal at `path`, process that holds it or None), without touching it."""
    if not path.exists():
        return 0, None
    content = path.read_bytes()
    records = _records(content[: content.rfind(b"\n") + 1])
    pids = [record[_PID] for record in records if _PID in record]
    fcntl = _file_locks()
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            holder = None
        except BlockingIOError:
            holder = pids[-1] if pids else 0
    return len(records) - len(pids), holder


def _holder() -> dict[str, Any]:
    return {_PID: os.getpid()}


def _file_locks() -> ModuleType:
    """The standard library's file locks, which Windows lacks."""
    try:
        import fcntl
    except ImportError:
        raise KernrecError("measurements are collected on Linux: this system has no fcntl file locks") from None
    return fcntl


def _open_locked(path: Path) -> int:
    fcntl = _file_locks()
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            size = os.fstat(file).st_size
            pids = [record[_PID] for record in _records(os.pread(file, size, 0)) if _PID in record]
            os.close(file)
            who = f" (PID {pids[-1]})" if pids else ""
            database = path.name.removesuffix(".journal")
            raise UsageError(
                f"another collector{who} is filling {path.with_name(database)}; wait for it or give another --db"
            ) from None
        # Between opening and locking, its last holder may have removed the file: then this is not what others see.
        try:
            same = os.path.samestat(os.fstat(file), os.stat(path))
        except FileNotFoundError:
            same = False
        if same:
            return file
        os.close(file)


def _records(content: bytes) -> list[dict[str, Any]]:
    found = []
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
