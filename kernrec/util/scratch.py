"""Create private folders for temporary files, which later programs remove if this one is killed.

A program locks a file in its folder, and the system releases the lock when the program ends. So a later program
recognizes abandoned folders and removes them (`remove_abandoned`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernrec.util.file_lock import try_lock

_PREFIX = "kernrec-"
_IN_USE = ".in-use"


def new_scratch_path() -> Path:
    """Return a path for temporary files that does not exist and that nobody can guess."""
    from tempfile import gettempdir  # Import late, to keep queries fast.

    return Path(gettempdir(), f"{_PREFIX}{os.urandom(16).hex()}")


@contextmanager
def scratch_folder(path: Path | None = None, beside: Path | None = None) -> Iterator[Path]:
    """Yield a folder that only this user can read, and delete it at the end.

    Args:
        path: Path of the folder, from `new_scratch_path`; by default, a new one.
        beside: Another such path, to delete together with the folder if this program is killed.
    """
    folder = path or new_scratch_path()
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Write after locking: an empty file tells others that its owner may not have locked it yet.
        with suppress(OSError):  # Later writes to the folder report a full disk.
            try_lock(descriptor)
            os.write(descriptor, (beside.name if beside else "-").encode())
        yield folder
    finally:
        os.close(descriptor)  # Windows cannot delete open files.
        _remove(folder)


def remove_abandoned() -> None:
    """Delete scratch folders of this user whose programs were killed."""
    from tempfile import gettempdir

    temporary = Path(gettempdir())
    for folder in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # The owner just deleted the folder, or we may not read it.
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
    """Return whether a path is a folder of this user, not a link: anybody can write to the temporary folder."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def _remove(folder: Path) -> None:
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)
