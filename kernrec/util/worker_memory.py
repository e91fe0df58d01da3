"""Memory of a process that does one kind of work again and again: rarely searched for garbage, and never given back.

Both cost time for nothing in such a process: its modules live as long as it does, and its next task needs what the last
one freed.
"""

import ctypes
import gc
import sys
from contextlib import suppress
from functools import cache as once

_COLLECT_AFTER = 10_000  # objects made and not freed; Python's own is 700: ever rarer gains no more (measured)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEPT_BYTES = 2**30


@once
def collect_rarely() -> None:
    """Keeps the cyclic garbage collector out of the way of this process's tasks: a tenth of their time and more.

    Modules and decoders live as long as the process, and are never searched. Objects of a task are freed by reference
    counts, as a rule; the threshold bounds the few cycles. Asking `gc` whether it froze walks all that is frozen.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 10, 10)


@once
def keep_freed() -> None:
    """Lets the C library keep what is freed: NVRTC gave back and asked again for 6 MB a config, a page at a time.

    Elsewhere than with the GNU C library nothing happens.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
