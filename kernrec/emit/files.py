"""Write the files of a format atomically."""

import os
from collections.abc import Mapping
from pathlib import Path

from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.atomic_write import write_whole

Files = Mapping[str, bytes]
"""File contents by name, with `/` between folders. A single-file format has one entry."""


def write_file(path: Path, content: bytes) -> None:
    """Write one file, and replace an existing one.

    Raises:
        UsageError: The path is a folder, or its folder does not exist.
        KernrecError: The file cannot be written.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--output {str(path)!r}: expected a file in an existing folder")
    try:
        write_whole(path, content, shared=True)
    except OSError as error:
        raise KernrecError(cannot_be("written", path, error)) from None


def write_files(folder: Path, files: Files) -> None:
    """Write a new folder atomically.

    Raises:
        UsageError: The folder exists and is not empty, or its parent folder is missing.
        KernrecError: The folder cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--output {str(folder)!r} is there already; expected a new or an empty folder")
    parent = folder.absolute().parent
    if not parent.is_dir():
        raise UsageError(
            f"--output {str(folder)!r}: expected a new folder in an existing one; {parent} is not a folder"
        )
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
