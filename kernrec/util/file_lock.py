"""Locks on open files that the operating system releases when the process ends, on every platform.

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    if not try_lock(descriptor):
        ...  # another process holds it
    os.close(descriptor)  # releases the lock

POSIX has `flock`; Windows has locks on ranges of bytes, of which one byte far beyond the end of any file is taken, so
that the content stays readable for others.
"""

import os

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCKED_BYTE = 1 << 40


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False if another process holds the lock. Closing the file releases it.

    shared: whether others may hold it shared at the same time. Windows takes an exclusive lock all the same.
    """
    if fcntl is None:
        return _try_lock_byte(descriptor)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock_byte(descriptor: int, byte: int) -> bool:
    """Lock one byte of a file that is open for writing, as `try_lock`; the file may be shorter.

    POSIX releases the lock also when the process closes another descriptor of the same file.
    """
    if fcntl is None:
        return _try_lock_byte(descriptor, byte)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock_byte(descriptor: int, byte: int) -> None:
    """Release the lock of `try_lock_byte`."""
    if fcntl is None:
        import msvcrt

        os.lseek(descriptor, byte, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def _try_lock_byte(descriptor: int, byte: int = _LOCKED_BYTE) -> bool:
    import msvcrt

    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, byte, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)
    return True
