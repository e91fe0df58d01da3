"""The files of a format: content by name, and how it reaches the disk, all of it or nothing."""

import os
from collections.abc import Mapping
from pathlib import Path

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.atomic_write import write_whole

Files = Mapping[str, bytes]
"""By name, with `/` between folders; a format of one file has one entry."""


def write_file(path: Path, content: bytes) -> None:
    """Writes one file, in place of one that is there.

    Raises:
        UsageError: it is a folder, or is to be in a folder that is not there.
        KernrecError: it cannot be written.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--output {str(path)!r}: expected a file in an existing folder")
    try:
        write_whole(path, content, shared=True)
    except OSError as error:
        raise KernrecError(cannot_be("written", path, error)) from None


def write_files(folder: Path, files: Files) -> None:
    """Writes a new folder, which appears whole or not at all.

    Raises:
        UsageError: it is there already with something in it, or its own folder is missing.
        KernrecError: it cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--output {str(folder)!r} is there already; expected a new or an empty folder")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"--output {str(folder)!r}: expected a new folder in an existing one, and {parent} is none")
    try:
        temporary = parent / f".{folder.name}.{os.urandom(6).hex()}"
        temporary.mkdir()
        try:
            for name, content in files.items():
                path = temporary / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if folder.exists():
                folder.rmdir()
            os.replace(temporary, folder)
        except BaseException:
            import shutil

            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise KernrecError(cannot_be("written", folder, error)) from None
