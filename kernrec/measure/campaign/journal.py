"""The journal: a measurement is on disk before it is acknowledged, so that a crash loses nothing that was acknowledged.

One JSON line per record, appended and synchronized to disk, beside the database (`<database>.journal`). The process
that has it open locks it, so that one collector at a time fills a database; the lock ends with the process. A line that
a crash cut short was never acknowledged and is removed. Once its records are in the database the journal is emptied;
its collector deletes it at the end.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.file_lock import try_lock
from kernrec.util.input_file import check_kind, open_input
from kernrec.util.process import is_alive

_MOST_SHARING = 16
"""Processes that can fill one database at once."""
_PID = "pid"
"""Key of the record that names the process that has the journal open."""
_RELEASE_LIMIT_S = 10.0
"""A process that was killed while it started another leaves the lock to that one until it loads its own program."""
_RETRY_S = 0.05


class JournalInUse(UsageError):  # noqa: N818 - another program is at work: no defect of this one
    """Another process has the journal open."""


class JournalError(KernrecError):
    """The journal cannot be written; the records it had acknowledged are still in it."""


class Journal:
    """An open, locked journal; several threads may append to it."""

    def __init__(self, path: Path) -> None:
        """Open or create the journal at `path`. Raises `JournalInUse` if another process has it open."""
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(path)
        except OSError as error:
            raise UsageError(cannot_be("written", f"the journal {path}", error)) from None
        self._unfinished.unlink(missing_ok=True)
        self._end = self._cut_torn_line()
        self._empty = not any(True for _ in self.records())
        self._write(_holder())

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write records; when this returns, they survive any crash.

        Raises `JournalError`, and leaves nothing of them in the file, if they cannot be written.
        """
        self._write(*records)
        self._empty = False

    def _write(self, *records: Mapping[str, Any]) -> None:
        lines = (json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n" for record in records)
        line = "".join(lines).encode()
        with self._lock:
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._file, line[written:])
                os.fsync(self._file)
            except OSError as error:
                with suppress(OSError):  # else the incomplete line is removed when the journal is next opened
                    self._truncate(self._end)
                raise JournalError(
                    f"{cannot_be('written', f'the journal {self.path}', error)}; what was measured before is safe in it"
                ) from None
            self._end += len(line)

    def drain(self, consume: Callable[[Iterable[dict[str, Any]]], None]) -> None:
        """Pass all records to `consume`, in order, and delete them once it returns.

        Appending waits meanwhile. Damaged lines are skipped. The records are read from the file as they are asked for,
        and may be gone through several times.
        """
        with self._lock:
            if self._empty:
                return
            consume(self.records())
            self._truncate(0)
            self._end, self._empty = 0, True
        self._write(_holder())

    def clear(self) -> None:
        """Delete all records."""
        self.drain(lambda records: None)

    @property
    def size(self) -> int:
        """Bytes of whole records. These bytes stay as they are until `drain` or `replace_first`."""
        return self._end

    def replace_first(self, size: int, needed: bytes) -> None:
        """Leave out those of the records in the first `size` bytes that are no longer needed.

        Records appended since stay. The file is replaced as a whole, so that a crash leaves the one or the other.

        Args:
            size: a former `size`, after which neither this nor `drain` was called.
            needed: the lines of those that are.

        Raises:
            OSError: the new file cannot be written, or, on Windows, put in place of one that is open; nothing changed.
        """
        with self._lock:
            os.lseek(self._file, size, os.SEEK_SET)
            content = needed + b"".join(iter(lambda: os.read(self._file, 1 << 20), b""))[: self._end - size]
            file = os.open(self._unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            try:
                written = 0
                while written < len(content):
                    written += os.write(file, content[written:])
                os.fsync(file)
                try_lock(file)
                os.replace(self._unfinished, self.path)
            except OSError:
                os.close(file)
                self._unfinished.unlink(missing_ok=True)
                raise
            os.close(self._file)
            self._file, self._end = file, len(content)
            self._empty = not any(True for _ in self.records())

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    def close(self) -> None:
        """Close and unlock the journal; an empty one is deleted."""
        with self._lock:
            if self._empty and os.name != "nt":  # before it is unlocked, or another process could have begun to use it
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            if self._empty and os.name == "nt":  # which deletes no open file, nor one that another process has open
                with suppress(OSError):
                    self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def records(self) -> "_FileRecords":
        """All records, read from the file as they are asked for; they may be gone through several times."""
        return _FileRecords(self._file)

    def _read(self) -> bytes:
        return _content(self._file)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def _cut_torn_line(self) -> int:
        content = self._read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._truncate(whole)
        return whole


def lines_of(path: Path, size: int) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """(line, its record; None where it holds none) of the first `size` bytes of a journal, which may be in use."""
    with open_input(path) as file:
        while size > 0 and (line := file.readline()):
            size -= len(line)
            records = _records(line)
            yield line, records[0] if records and _PID not in records[0] else None


def journal_path(database: Path) -> Path:
    """Where the journal of a database is."""
    return database.with_name(f"{database.name}.journal")


def shared_journal(database: Path) -> Journal:
    """A journal of a database for a process that shares it with others: the first one that nobody has open."""
    for path in _places(database)[:-1]:
        with suppress(JournalInUse):
            return Journal(path)
    return Journal(_places(database)[-1])


def abandoned_journals(database: Path) -> Iterator[Journal]:
    """Each journal of a database that a process left behind, while it is open here."""
    for path in _places(database):
        if path.exists():
            with suppress(JournalInUse), Journal(path) as journal:
                yield journal


def _places(database: Path) -> list[Path]:
    """Where the journals of a database are: that of a collector, and those of processes that share the work."""
    shared = [database.with_name(f"{database.name}.{number}.journal") for number in range(2, _MOST_SHARING + 1)]
    return [journal_path(database), *shared]


def left_behind(path: Path) -> tuple[list[dict[str, Any]], int | None]:
    """(records in the journal at `path`, the process that has it open or None); the journal is not changed."""
    if not path.exists():
        return [], None
    with open_input(path) as file:
        content = file.read()
        records = _records(content[: content.rfind(b"\n") + 1])
        pids = [record[_PID] for record in records if _PID in record]
        free = try_lock(file.fileno(), shared=True)
    return [record for record in records if _PID not in record], None if free else pids[-1] if pids else 0


def _holder() -> dict[str, Any]:
    return {_PID: os.getpid()}


def _open_locked(path: Path) -> int:
    until = time.monotonic() + _RELEASE_LIMIT_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        try:
            check_kind(os.fstat(file).st_mode, path)
        except UsageError:
            os.close(file)
            raise
        if not try_lock(file):
            pids = [record[_PID] for record in _records(_content(file)) if _PID in record]
            os.close(file)
            if pids and not is_alive(pids[-1]) and time.monotonic() < until:
                time.sleep(_RETRY_S)
                continue
            who = f" (PID {pids[-1]})" if pids else ""
            database = path.name.removesuffix(".journal")
            raise JournalInUse(
                f"another collector{who} is filling {path.with_name(database)}; wait for it or give another --db"
            )
        # Between opening and locking, another process may have deleted the file: then this is not what others see.
        try:
            same = os.path.samestat(os.fstat(file), os.stat(path))
        except FileNotFoundError:
            same = False
        if same:
            return file
        os.close(file)


def _content(file: int) -> bytes:
    """Everything in an open file; what is written goes to its end whatever the position."""
    os.lseek(file, 0, os.SEEK_SET)
    pieces = []
    while piece := os.read(file, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


class _FileRecords:
    """The records in an open file, read piece by piece: a night of many cards does not fit into memory."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __iter__(self) -> Iterator[dict[str, Any]]:
        place, rest = 0, b""
        while True:
            os.lseek(self._file, place, os.SEEK_SET)
            if not (piece := os.read(self._file, 1 << 20)):
                break
            place += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from (record for record in _records(b"\n".join(lines)) if _PID not in record)
        yield from (record for record in _records(rest) if _PID not in record)


def _records(content: bytes) -> list[dict[str, Any]]:
    records = []
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # nested too deeply: no collector wrote it
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
