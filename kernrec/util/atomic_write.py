"""Files that appear whole or not at all, whatever ends the program that writes them."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Put `data` at `path`, in place of what is there; raises `OSError`, and leaves nothing behind where it cannot.

    shared: for others, too: the file has the mode that the user's umask gives new files, and is on the disk before it
        is there. A cache needs neither.
    """
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if shared else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if shared:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
