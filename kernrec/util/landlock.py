"""Permanently deny a thread access to files and the network, with Linux's Landlock.

The thread and everything that it starts can then open only permitted files
(https://docs.kernel.org/userspace-api/landlock.html). Other systems, and Linux before 5.13, have no Landlock.
"""

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

_Result = TypeVar("_Result")

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""Rights that a rule for a file, not a folder, may grant."""
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""Supported rights on files by Landlock version; version 5 adds control of devices."""
_NETWORK = 0b11  # Rights to bind and connect TCP, from version 4.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # System call numbers, which are equal on x86-64 and aarch64.
_PR_SET_NO_NEW_PRIVS = 38


def confine(readable: Iterable[Path], writable: Iterable[Path], listed: Iterable[Path] = ()) -> bool:
    """Deny this thread TCP and all files except the given ones (folders include their content); return whether it
    worked.

    Args:
        readable: Files and folders that stay readable.
        writable: Files and folders that stay readable and writable.
        listed: Folders whose file names, but not contents, stay readable.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = _RIGHTS[min(version, 3)]
    attributes = struct.pack("QQ", rights, _NETWORK) if version >= 4 else struct.pack("Q", rights)
    ruleset = libc.syscall(_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for allowed, places in ((_READ, readable), (rights, writable), (_READ_DIR, listed)):
            for place in places:
                _allow(libc, ruleset, place, allowed & rights)
        return bool(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, place: Path, rights: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if place.is_dir() else rights & _OF_FILES
        libc.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, descriptor), 0)
    finally:
        os.close(descriptor)


def run_confined(work: Callable[[], _Result], readable: Iterable[Path], writable: Iterable[Path] = ()) -> _Result:
    """Run `work` in a thread that can read and write only the given files, and return its result.

    Without Landlock, `work` runs without limits. Exceptions of `work` are raised here.
    """
    if sys.platform != "linux":
        return work()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            confine(readable, writable)
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
