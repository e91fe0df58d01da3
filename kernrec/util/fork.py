"""Whether child processes may be forked: then they have all that this process has imported, at no cost.

A fork copies one thread alone. A lock that another thread holds at that moment is never released in the child, so a
process with other threads, of Python or of a library, starts its children anew (`spawn`), unless these threads say that
they hold none.
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
    """Says of a thread that a fork beside it is safe: it holds no lock then (`os.register_at_fork`)."""
    _lockless.add(thread)


def not_inherited(connection: object) -> None:
    """Has an open connection closed in children: while they have it, its other end would not see this one close."""
    _not_inherited.add(connection)


def can_fork() -> bool:
    """Whether a child may be forked now: on Linux, by the main thread, where no other thread may hold a lock."""
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
    """How children are started now."""
    return multiprocessing.get_context("fork") if can_fork() else multiprocessing.get_context("spawn")


def settle() -> None:
    """To be called first in a child: one that was forked ends with its parent, and drops its handlers and pipes."""
    parent = multiprocessing.parent_process()
    if parent is None or type(multiprocessing.current_process()).__name__ != "ForkProcess":
        return
    end_with_parent()
    if os.getppid() != parent.pid:  # it had ended before
        os._exit(1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for connection in list(_not_inherited):
        with suppress(OSError):
            connection.close()  # type: ignore[attr-defined]
