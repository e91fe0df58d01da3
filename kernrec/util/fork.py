"""Decide whether to fork child processes, which then inherit all imports at no cost.

A fork copies only one thread. A lock that another thread holds at that moment is never released in the child. So a
process with other threads, of Python or of a library, spawns its children, unless these threads declare that they hold
no lock.
"""

import multiprocessing
import os
import signal
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from kernrec.util.process import end_with_parent

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

_lockless: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_not_inherited: "weakref.WeakSet[object]" = weakref.WeakSet()


def holds_no_lock(thread: threading.Thread) -> None:
    """Declare that a thread holds no lock during a fork (`os.register_at_fork`)."""
    _lockless.add(thread)


def not_inherited(connection: object) -> None:
    """Close a connection in children; otherwise the other end would not notice that this process closed it."""
    _not_inherited.add(connection)


def can_fork() -> bool:
    """Return whether forking is safe now: on Linux, in the main thread, if no other thread may hold a lock."""
    if not hasattr(os, "fork") or sys.platform != "linux":
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    try:
        running = len(os.listdir("/proc/self/task"))
    except OSError:
        return False
    return running == len(others) + 1 and all(thread in _lockless for thread in others)


def start_context() -> "ForkContext | SpawnContext":
    """Return the multiprocessing context with which to start children now."""
    return multiprocessing.get_context("fork") if can_fork() else multiprocessing.get_context("spawn")


def settle() -> None:
    """Prepare a child process: a forked child ends with its parent, and drops inherited handlers and pipes."""
    parent = multiprocessing.parent_process()
    if parent is None or type(multiprocessing.current_process()).__name__ != "ForkProcess":
        return
    end_with_parent()
    if os.getppid() != parent.pid:  # The parent has already ended.
        os._exit(1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for connection in list(_not_inherited):
        with suppress(OSError):
            connection.close()  # type: ignore[attr-defined]
