"""Private folders for temporary files, which do not outlive a killed program for long.

A program locks a file in its folder. The system releases the lock when the program ends, however it ends, so a later
one can tell what nobody uses any more, and removes it (`remove_abandoned`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernrec.util.file_lock import try_lock

_PREFIX = "kernrec-"
_IN_USE = ".in-use"


def new_scratch_path() -> Path:
    """A path for temporary files that does not exist and that nobody can guess."""
    from tempfile import gettempdir  # what a query need not wait for

    return Path(gettempdir(), f"{_PREFIX}{os.urandom(16).hex()}")


@contextmanager
def scratch_folder(path: Path | None = None, beside: Path | None = None) -> Iterator[Path]:
    """A folder that only this user can read; deleted at the end.

    Args:
        path: of the folder, of `new_scratch_path`; default: a new one.
        beside: another such path, deleted with the folder if this program is killed.
    """
    folder = path or new_scratch_path()
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Written once it is locked: where nothing is in the file, its owner may still be about to lock it.
        with suppress(OSError):  # a full disk: what is written to the folder says so
            try_lock(descriptor)
            os.write(descriptor, (beside.name if beside else "-").encode())
        yield folder
    finally:
        os.close(descriptor)  # Windows deletes no open file
        _remove(folder)


def remove_abandoned() -> None:
    """Delete the scratch folders of this user whose programs were killed."""
    from tempfile import gettempdir

    temporary = Path(gettempdir())
    for folder in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # its owner has just deleted it, or it is not ours to look into
            if not _is_own(folder) or not (folder / _IN_USE).stat().st_size:
                continue
            descriptor = os.open(folder / _IN_USE, os.O_RDWR)
            try:
                if not try_lock(descriptor):
                    continue
                name = os.read(descriptor, 255).decode(errors="replace")
            finally:
                os.close(descriptor)
            beside = temporary / name
            if name.startswith(_PREFIX) and beside.parent == temporary and _is_own(beside):
                _remove(beside)
            _remove(folder)


def _is_own(folder: Path) -> bool:
    """Whether this is a folder of this user, no link: anybody can write to the folder of temporary files."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def _remove(folder: Path) -> None:
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)
