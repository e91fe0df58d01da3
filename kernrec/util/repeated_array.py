"""Arrays that repeat a few values, in the memory of those values: a tensor of gigabytes of which little is looked at.

On Linux the pages of the values are mapped one after the other, private to each place: what is written there stays
there, and costs memory then. Elsewhere the array is a copy.
"""

import ctypes
import mmap
import os
import sys
import weakref

import numpy as np

MAPPED = sys.platform == "linux"
"""Whether an array takes no more memory than the values that it repeats."""

_PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 0x02, 0x10, 0x20, 0x4000
_READ_WRITE = 0x3
_MOST_PIECES = 4096  # Linux allows a process 65,530


def repeated(values: np.ndarray, count: int) -> np.ndarray:
    """A flat array of `count` elements, as `np.resize(values, count)`, which may be written to.

    Args:
        values: flat; where their bytes are no whole pages, or very few of the array's, it is a copy.
        count: at least as many as there are values.

    Raises:
        MemoryError: there is no address space left.
    """
    size = count * values.itemsize
    if not MAPPED or values.nbytes % mmap.PAGESIZE or size > _MOST_PIECES * values.nbytes:
        return np.resize(values, count)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def mapped(place: int | None, length: int, flags: int, file: int) -> int:
        address = library.mmap(place, length, _READ_WRITE, _PRIVATE | flags, file, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(os.strerror(ctypes.get_errno()))
        return int(address)

    file = os.memfd_create("values")
    try:
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(memoryview(values).cast("B"))
        start = mapped(None, size, _ANONYMOUS | _NO_RESERVE, -1)
        memory = (ctypes.c_char * size).from_address(start)
        weakref.finalize(memory, library.munmap, start, size)
        for offset in range(0, size, values.nbytes):
            mapped(start + offset, min(values.nbytes, size - offset), _FIXED | _NO_RESERVE, file)
    finally:
        os.close(file)
    return np.frombuffer(memoryview(memory), values.dtype)
