"""Lock open files. The operating system releases the lock when the process ends, on every platform.

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    if not try_lock(descriptor):
        ...  # another process holds it
    os.close(descriptor)  # releases the lock

POSIX uses `flock`. Windows locks byte ranges, so kernrec locks one byte far beyond the end of any file; others can
still read the content.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCKED_BYTE = 1 << 40
_RETRY_S = 0.05


def try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting. Return False if another process holds it. Closing the file releases it."""
    if fcntl is None:
        return _try_lock_byte(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_path(path: Path, wait_s: float = 0.0) -> int | None:
    """Lock a file, creating it if necessary, and return its descriptor; closing the descriptor releases the lock.

    Args:
        path: Path of the file; the lock's holder may rename or delete the file.
        wait_s: Seconds to wait for another process.

    Returns:
        None if another process holds the lock.
    """
    end_s = time.monotonic() + wait_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        locked = try_lock(descriptor)
        with suppress(FileNotFoundError):  # The old holder may have renamed or deleted the file.
            if locked and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)
        if not locked:
            if time.monotonic() >= end_s:
                return None
            time.sleep(_RETRY_S)


def _try_lock_byte(descriptor: int) -> bool:
    import msvcrt

    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)
    return True
