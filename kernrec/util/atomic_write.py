"""Write files atomically, even if the program is killed."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Write `data` to `path` atomically. Raises `OSError`, and leaves no temporary file behind.

    Args:
        shared: Whether others read the file. If so, its mode follows the umask, and its content is on disk before the
            file appears.
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
