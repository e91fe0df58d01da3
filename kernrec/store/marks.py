"""Remember which database files kernrec has checked or written, and which rows queries must skip.

A mark is a small file in the cache folder. It identifies a database file's content by device, inode, size and change
times. Only the superuser can set `st_ctime`, so no other user can hide a change.

A file belongs to the user if this user's kernrec wrote it. The two default databases always belong to the user: the
user's database, and the database of rows that were pulled from other people.
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
"""Version of the checks. kernrec checks a file again if an older version checked it."""
_AGAIN_S = 86_400.0
"""Seconds until kernrec checks a file with faulty rows again. A wrong clock may have caused the faults."""

Faults = Mapping[str, Mapping[str, Sequence[str]]]
"""Keys of rows with impossible values, keyed by table name and then by fault."""


@dataclass(frozen=True)
class Mark:
    """Record of the last check or write of a database file, so that only a changed file is checked again."""

    state: str
    """Result of `file_state` at the last check or write, or empty if there was none."""
    own: bool
    """Whether this user's kernrec wrote the file."""
    writing: str = ""
    """Device and inode of a file that kernrec has begun to write."""
    faults: Faults = field(default_factory=dict)
    checked_at: float = 0.0
    """Time of the last check, in seconds since 1970."""

    @property
    def dropped(self) -> dict[str, list[str]]:
        """Keys of the rows that queries must skip, keyed by table name."""
        return {table: sorted({key for keys in by.values() for key in keys}) for table, by in self.faults.items()}

    def holds(self, state: str) -> bool:
        """Return whether the file needs no new check. `state` is its present `file_state`."""
        recent = 0 <= time.time() - self.checked_at < _AGAIN_S
        return bool(state) and self.state == state and (recent or not self.faults)


def file_state(path: Path) -> str:
    """Return a text that changes with the content of a file. Empty if there is no file."""
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
    return " ".join(state.split("\n")[1].split()[:2]) if state else ""


def has_open(state: str) -> bool:
    """Return whether this process has the file with this `file_state` open. Return True if the system cannot tell."""
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
    try:
        return Mark(**json.loads(mark_path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Mark("", False)


def write_mark(path: Path, mark: Mark) -> None:
    if not paths.cache().parent.parent.is_dir():  # Never create a home folder.
        return
    with suppress(OSError):
        place = mark_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(vars(mark)).encode())


def is_own(path: Path, mark: Mark | None = None) -> bool:
    """Return whether a file belongs to the user or does not exist yet."""
    state, mark = file_state(path), mark or read_mark(path)
    if not state or (mark.own and state == mark.state) or (mark.writing and mark.writing == inode_of(state)):
        return True
    real = os.path.realpath(path)
    return real in (os.path.realpath(paths.user_database()), os.path.realpath(paths.pulled()))


def mark_path(path: Path) -> Path:
    return paths.cache() / "checked" / sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()
