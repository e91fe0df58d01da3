"""Opening files that somebody else may have made: regular files only, without waiting, and of a bounded size.

A named pipe or a device may block for ever, or never end. The kind of a file is asked of the open file, so that nothing
can take its place in between.
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
        path: of the file; links are followed.
        title: its name in messages; default: the path.

    Raises:
        UsageError: the path leads to something else than a file or a folder.
        OSError: the file cannot be opened, or is a folder.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        check_kind(os.fstat(descriptor).st_mode, path if title is None else title)
        return os.fdopen(descriptor, "rb")  # which raises IsADirectoryError for a folder
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, most_bytes: int, title: object = None) -> bytes:
    """Return the content of a regular file of at most `most_bytes`; errors as of `open_input`, and a larger file."""
    with open_input(path, title) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UsageError(f"{path if title is None else title} is larger than {most_bytes} bytes; it is not read")
    return content


def check_kind(mode: int, title: object) -> None:
    """Raise `UsageError` for the `st_mode` of a pipe, a device or a socket."""
    if kind := _KINDS.get(stat.S_IFMT(mode)):
        raise UsageError(f"{title} is {kind}; a regular file is expected")


def check_input(path: Path, title: object = None) -> None:
    """Raise `UsageError` for a pipe, a device or a link to itself; another library will open the path.

    A path where there is nothing, or a folder, passes. `title` is its name in messages; default: the path.
    """
    title = path if title is None else title
    try:
        check_kind(path.stat().st_mode, title)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(cannot_be("read", title, error)) from None
