"""Create arrays that repeat a few values without using more memory, such as a tensor of gigabytes that is rarely read.

On Linux, the pages of the values are mapped repeatedly; only a page that is written gets its own memory. On other
systems, the array is a copy.
"""

import ctypes
import mmap
import os
import sys
import weakref

import numpy as np

MAPPED = sys.platform == "linux"
"""Whether a repeated array takes no more memory than its values."""

_PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 0x02, 0x10, 0x20, 0x4000
_READ_WRITE = 0x3
_MOST_PIECES = 4096  # Linux allows 65,530 mappings per process.


def repeated(values: np.ndarray, count: int) -> np.ndarray:
    """Return a writable flat array of `count` elements, equal to `np.resize(values, count)`.

    Args:
        values: Flat array. The result is a copy if this array does not fill whole pages, or is much smaller than the
            result.
        count: Number of elements, at least that of `values`.

    Raises:
        MemoryError: There is no address space left.
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
            stream.write(values.view(np.uint8).data)
        start = mapped(None, size, _ANONYMOUS | _NO_RESERVE, -1)
        memory = (ctypes.c_char * size).from_address(start)
        weakref.finalize(memory, library.munmap, start, size)
        for offset in range(0, size, values.nbytes):
            mapped(start + offset, min(values.nbytes, size - offset), _FIXED | _NO_RESERVE, file)
    finally:
        os.close(file)
    return np.frombuffer(memoryview(memory), values.dtype)
