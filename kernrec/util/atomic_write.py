"""Write files atomically, even if the program is killed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(
    path: Path, data: bytes | Callable[[BinaryIO], object], *, shared: bool = False, mode: int | None = None
) -> None:
    """Write `data` to `path` atomically. Raises `OSError`, and leaves no temporary file behind.

    Args:
        data: Content, or a function that writes the content to an open file.
        shared: Whether others read the file. If so, its mode follows the umask, and its content is on disk before the
            file appears.
        mode: Permission bits of the file; None: those that `shared` implies.
    """
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if shared and mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data)
            if shared:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
