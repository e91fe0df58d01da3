"""Open untrusted files: only regular files of limited size, without blocking.

Reading a named pipe or a device may block or never end. The kind is checked on the open file, so nobody can replace the
file between the check and the read.
"""

import os
import stat
from io import BufferedReader
from pathlib import Path

from kernrec.errors import UsageError, cannot_be

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def open_input(path: Path, title: object = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: Path of the file. Links are followed.
        title: Name of the file in messages; by default, the path.

    Raises:
        UsageError: The path is neither a file nor a folder.
        OSError: The file cannot be opened, or is a folder.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        check_kind(os.fstat(descriptor).st_mode, path if title is None else title)
        return os.fdopen(descriptor, "rb")  # This raises IsADirectoryError for a folder.
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, most_bytes: int, title: object = None) -> bytes:
    """Return the content of a regular file. Raises the errors of `open_input`, and `UsageError` above `most_bytes`."""
    with open_input(path, title) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UsageError(f"{path if title is None else title} is larger than {most_bytes} bytes, the maximum")
    return content


def check_kind(mode: int, title: object) -> None:
    """Raise `UsageError` for the `st_mode` of a pipe, a device or a socket."""
    if kind := _KINDS.get(stat.S_IFMT(mode)):
        raise UsageError(f"{title} is {kind}; expected a regular file")


def check_input(path: Path, title: object = None) -> None:
    """Raise `UsageError` for a pipe, a device or a link to itself, before another library opens the path.

    A missing file or a folder is accepted.

    Args:
        title: Name of the file in messages; by default, the path.
    """
    title = path if title is None else title
    try:
        check_kind(path.stat().st_mode, title)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(cannot_be("read", title, error)) from None
