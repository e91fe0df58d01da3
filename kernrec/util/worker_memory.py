"""Tune the memory of a process that repeats one kind of work: collect garbage rarely, and keep freed memory.

This saves time, because modules live as long as the process, and each task needs the memory that the last one freed.
"""

import ctypes
import gc
import sys
from contextlib import suppress
from functools import cache as once

_COLLECT_AFTER = 10_000  # Objects between collections, instead of Python's 700; larger values gain nothing.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT_BYTES = 2**30


@once
def collect_rarely() -> None:
    """Reduce garbage collection in this process.

    Modules and decoders live as long as the process, so the collector skips them. Reference counts free most objects of
    a task, and the threshold bounds the few cycles. The function does not ask `gc` for its frozen objects, because `gc`
    would count them one by one.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 10, 10)


@once
def keep_freed() -> None:
    """Let the C library keep freed memory; otherwise NVRTC returns and requests the same pages for every config.

    Without the GNU C library, this does nothing.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
