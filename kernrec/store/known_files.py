"""Database files that this program may open itself: those that it wrote or had checked, and that nobody changed since.

A query opens its database in its own process, which is a risk with a stranger's file: a malformed one can crash DuckDB,
and its rows may be false. So a file is first read by a child with limits (`kernrec.store.reader`), which checks every
row. Once is enough: a mark in the cache says which file it was, by device, inode, size and the times of its last
change, of which nobody but the superuser can set `st_ctime`. A file that kernrec itself wrote and closed gets the mark
at once. Looking for the mark costs two calls of `stat` and one small file.
"""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kernrec import paths
from kernrec.util.atomic_write import write_whole

_CHECKS = 1
"""Version of the checks: files that passed only earlier ones are checked again."""


def state_of(path: Path) -> str:
    """What identifies the present content of a file, with that of DuckDB's log beside it; empty if there is none."""
    texts = []
    for name in (path, f"{path}.wal"):
        try:
            seen = os.stat(name)
        except OSError:
            texts.append("")
        else:
            texts.append(f"{seen.st_dev} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}")
    return f"{_CHECKS}\n{texts[0]}\n{texts[1]}" if texts[0] else ""


def is_known(path: Path, state: str) -> bool:
    """Whether the file at `path` was in this state when it was last remembered."""
    try:
        return _mark(path).read_text(encoding="ascii") == state
    except (OSError, ValueError):
        return False


def remember(path: Path, state: str) -> None:
    """Remember a file in this state; a cache that cannot be written is no error, and a home is not made."""
    if not state or not paths.cache().parent.parent.is_dir():
        return
    with suppress(OSError):
        mark = _mark(path)
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_whole(mark, state.encode("ascii"))


def _mark(path: Path) -> Path:
    return paths.cache() / "checked" / sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()
