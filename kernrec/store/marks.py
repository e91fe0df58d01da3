"""Marks of database files: whether a file was checked, whether the user's kernrec wrote it, which rows are left out.

A mark is a small file in the cache. It identifies the content of a database by device, inode, size and the times of its
last change, of which nobody but the superuser can set `st_ctime`. Looking for a mark costs two calls of `stat` and one
small file.

A file is the user's own if this user's kernrec wrote it, or if it is the user's database or that of pulled rows. Rows
of any other file answer as if they had been merged: names, scales and contributors that it states are not believed.
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
from kernrec.util.atomic_write import write_whole
from kernrec.util.light_dataclass import dataclass

_CHECKS = 2
"""Version of the checks: files that passed only earlier ones are checked again."""
_AGAIN_S = 86_400.0
"""Seconds after which a file with rows that are left out is checked again: its reason may have been a wrong clock."""

Faults = Mapping[str, Mapping[str, Sequence[str]]]
"""Keys of rows by table and by fault."""


@dataclass(frozen=True)
class Mark:
    """What is remembered about a file."""

    state: str
    """Its content (`file_state`) when it was checked, or written and closed; empty: neither."""
    own: bool
    """Whether this user's kernrec wrote it."""
    writing: str = ""
    """Device and inode of the file that this user's kernrec has open for writing, or had when it was killed."""
    faults: Faults = field(default_factory=dict)
    """The rows that are left out."""
    checked_at: float = 0.0
    """When it was checked, in seconds since 1970."""

    @property
    def dropped(self) -> dict[str, list[str]]:
        """The keys of the rows that are left out, by table."""
        return {table: sorted({key for keys in by.values() for key in keys}) for table, by in self.faults.items()}

    def holds(self, state: str) -> bool:
        """Whether a file in this state needs no check."""
        recent = 0 <= time.time() - self.checked_at < _AGAIN_S
        return bool(state) and self.state == state and (recent or not self.faults)


def file_state(path: Path) -> str:
    """The identity of a file's present content, with that of DuckDB's log beside it; empty if there is no file."""
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
    """Device and inode in a state."""
    return " ".join(state.split("\n")[1].split()[:2]) if state else ""


def has_open(state: str) -> bool:
    """Whether this process has the file of a state open; where the system does not list open files, true."""
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
    """The mark of the file at a path; an empty one if there is none."""
    try:
        return Mark(**json.loads(mark_path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Mark("", False)


def write_mark(path: Path, mark: Mark) -> None:
    """Remember a mark; a cache that cannot be written is no error, and a home is not made."""
    if not paths.cache().parent.parent.is_dir():
        return
    with suppress(OSError):
        place = mark_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(vars(mark)).encode())


def is_own(path: Path, mark: Mark | None = None) -> bool:
    """Whether the file at a path is the user's own, or none is there yet."""
    state, mark = file_state(path), mark or read_mark(path)
    if not state or (mark.own and state == mark.state) or (mark.writing and mark.writing == inode_of(state)):
        return True
    real = os.path.realpath(path)
    return real in (os.path.realpath(paths.user_database()), os.path.realpath(paths.pulled()))


def mark_path(path: Path) -> Path:
    """Return the path of the mark of a file."""
    return paths.cache() / "checked" / sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()
