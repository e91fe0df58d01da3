"""Read untrusted files, write files atomically, lock files, and create private folders.

A named pipe or a device might never end, so only regular files of limited size are read. kernrec checks the type of a
file after opening it, so nobody can replace the file in between. The operating system releases a lock when its process
ends. Windows locks ranges of bytes, so kernrec locks a byte far beyond the end of any file.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from kernrec.errors import UsageError, cannot_be

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def open_input(path: Path, title: object = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        title: name in messages, by default the path.

    Raises:
        UsageError: the path leads to a pipe, a device or a socket.
        OSError: the file cannot be opened, or is a folder.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        check_kind(os.fstat(descriptor).st_mode, path if title is None else title)
        return os.fdopen(descriptor, "rb")  # `fdopen` raises IsADirectoryError for a folder.
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, most_bytes: int, title: object = None) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    Args:
        title: name in messages, by default the path.

    Raises:
        UsageError: the path leads to a pipe, a device or a socket, or the file is too large.
        OSError: the file cannot be opened, or is a folder.
    """
    with open_input(path, title) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UsageError(f"{path if title is None else title} is larger than {most_bytes} bytes, the maximum")
    return content


def check_kind(mode: int, title: object) -> None:
    """Raise `UsageError` if `mode` is the `st_mode` of a pipe, a device or a socket."""
    if kind := _KINDS.get(stat.S_IFMT(mode)):
        raise UsageError(f"{title} is {kind}; expected a regular file")


def check_input(path: Path, title: object = None) -> None:
    """Raise `UsageError` if a path leads to a pipe, a device, a socket or a link to itself. Accept a folder or a
    missing file.

    Call this before another library opens the path.

    Args:
        title: name in messages, by default the path.
    """
    title = path if title is None else title
    try:
        check_kind(path.stat().st_mode, title)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(cannot_be("read", title, error)) from None


def write_whole(
    path: Path, data: bytes | Callable[[BinaryIO], object], *, shared: bool = False, mode: int | None = None
) -> None:
    """Write a file atomically. No temporary file is left after an error.

    Args:
        data: content, or a function that writes the content to an open file.
        shared: whether other users read the file. If so, the content is written to disk before the file appears.
        mode: permission bits. By default, the umask sets them for a shared file, and other files are private.

    Raises:
        OSError: the file cannot be written.
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


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_LOCKED_BYTE = 1 << 40
_RETRY_S = 0.05


def try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting. Return False if another process holds the lock. Closing the file releases the
    lock."""
    if fcntl is None:
        return _try_lock_byte(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_path(path: Path, wait_s: float = 0.0) -> int | None:
    """Lock a file. Create the file if necessary.

    Args:
        wait_s: maximum seconds to wait for another process.

    Returns:
        Descriptor of the file, or None if another process holds the lock. Close the descriptor to release the lock.
    """
    end_s = time.monotonic() + wait_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        locked = try_lock(descriptor)
        with suppress(FileNotFoundError):  # The last owner of the lock may have renamed or deleted the file.
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


_PREFIX = "kernrec-"
_IN_USE = ".in-use"


def new_scratch_path() -> Path:
    """Return a new, unpredictable path for temporary files."""
    from tempfile import gettempdir  # Import late, because the import is slow and queries do not need it.

    return Path(gettempdir(), f"{_PREFIX}{os.urandom(16).hex()}")


@contextmanager
def scratch_folder(path: Path | None = None, beside: Path | None = None) -> Iterator[Path]:
    """Yield a folder that only this user can access, and delete it at the end.

    If this program is killed, the next program that calls `remove_abandoned` deletes the folder.

    Args:
        path: path of the folder, by default from `new_scratch_path`.
        beside: path of a second folder to delete, which other code may create.
    """
    folder = path or new_scratch_path()
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Lock the file before writing to it. `remove_abandoned` deletes folders if their file has text but no lock.
        with suppress(OSError):  # If the disk is full, a later write reports it.
            try_lock(descriptor)
            os.write(descriptor, (beside.name if beside else "-").encode())
        yield folder
    finally:
        os.close(descriptor)  # Windows cannot delete open files.
        _remove(folder)


def remove_abandoned() -> None:
    """Delete the scratch folders of killed programs."""
    from tempfile import gettempdir

    temporary = Path(gettempdir())
    for folder in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # The owner may have just deleted the folder, or this user may not read it.
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
    """Return whether a path is a folder of this user. Other users can create links in the system's temporary folder."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def _remove(folder: Path) -> None:
    from shutil import rmtree

    rmtree(folder, ignore_errors=True)


def files_hash(root: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 hash (hexadecimal) of files and of their paths relative to `root`."""
    digest = sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()
