"""Store a mark per database file: whether kernrec checked it, whether the user's kernrec wrote it, which rows to skip.

A mark is a small file in the cache. It identifies a database's content by device, inode, size and times of the last
change. Only the superuser can set `st_ctime`. Reading a mark takes two calls of `stat` and one small file.

A file is the user's own if this user's kernrec wrote it, or if it is the user's database or the database of pulled
rows. Rows of other files count as merged rows; what the files state about names, scales and contributors is ignored.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from hashlib import sha256
from pathlib import Path

from kernrec import paths
from kernrec.util.files import write_whole
from kernrec.util.light_dataclass import dataclass

_CHECKS = 2
"""Version of the checks: files that passed only older checks are checked again."""
_AGAIN_S = 86_400.0
"""Seconds until a file with skipped rows is checked again, because a wrong clock may have caused the skips."""

Faults = Mapping[str, Mapping[str, Sequence[str]]]
"""Keys of impossible rows, by table and by fault."""


@dataclass(frozen=True)
class Mark:
    """Facts about a database file from earlier checks and writes."""

    state: str
    """State of the content (`file_state`) at the last check, or after the last write; empty if there was neither."""
    own: bool
    """Whether this user's kernrec wrote it."""
    writing: str = ""
    """Device and inode of the file that the user's kernrec has open for writing, or had open when killed."""
    faults: Faults = field(default_factory=dict)
    """Rows to skip."""
    checked_at: float = 0.0
    """Time of the check, in seconds since 1970."""

    @property
    def dropped(self) -> dict[str, list[str]]:
        """Keys of the rows to skip, by table."""
        return {table: sorted({key for keys in by.values() for key in keys}) for table, by in self.faults.items()}

    def holds(self, state: str) -> bool:
        """Return whether a file in this state needs no check."""
        recent = 0 <= time.time() - self.checked_at < _AGAIN_S
        return bool(state) and self.state == state and (recent or not self.faults)


def file_state(path: Path) -> str:
    """Return text that identifies the content of a file and of DuckDB's log beside it; empty if the file is missing."""
    texts = []
    for name in (path, f"{path}.wal"):
        try:
            seen = os.stat(name)
        except OSError:
            texts.append("")
        else:
            texts.append(f"{seen.st_dev} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}")
    return f"{_CHECKS}\n{texts[0]}\n{texts[1]}" if texts[0] else ""


def inode_of(state: str) -> str:
    """Return the device and inode from a `file_state`."""
    return " ".join(state.split("\n")[1].split()[:2]) if state else ""


def has_open(state: str) -> bool:
    """Return whether this process has the file with this state open; true if the system does not list open files."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return True
    for name in names:
        with suppress(OSError):
            seen = os.stat(f"/proc/self/fd/{name}")
            if f"{seen.st_dev} {seen.st_ino}" == inode_of(state):
                return True
    return False


def read_mark(path: Path) -> Mark:
    """Return the mark of the file at a path, or an empty mark."""
    try:
        return Mark(**json.loads(mark_path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Mark("", False)


def write_mark(path: Path, mark: Mark) -> None:
    """Save a mark. Ignore a cache that cannot be written, and create no home folder."""
    if not paths.cache().parent.parent.is_dir():
        return
    with suppress(OSError):
        place = mark_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(vars(mark)).encode())


def is_own(path: Path, mark: Mark | None = None) -> bool:
    """Return whether the file at a path is the user's own, or does not exist yet."""
    state, mark = file_state(path), mark or read_mark(path)
    if not state or (mark.own and state == mark.state) or (mark.writing and mark.writing == inode_of(state)):
        return True
    real = os.path.realpath(path)
    return real in (os.path.realpath(paths.user_database()), os.path.realpath(paths.pulled()))


def mark_path(path: Path) -> Path:
    """Return the path of a database file's mark."""
    return paths.cache() / "checked" / sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()
