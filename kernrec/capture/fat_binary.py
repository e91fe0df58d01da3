"""Extract PTX from the code that a program registers or loads: fat binaries of nvcc, and plain PTX.

NVIDIA does not document the layout of fat binaries. It was derived from the output of `cuobjdump`.
"""

import ctypes
import ctypes.util
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernrec.errors import KernrecError

FAT_BINARY = b"\x50\xed\x55\xba"
_PTX, _CUBIN = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000
_ENTRY = struct.Struct("<HHIQI IHHI IIQ QQ")
_LARGEST = 1 << 30
UNCOMPRESSED = "compile with nvcc --no-compress"


class Image(NamedTuple):
    """One image of a fat binary: PTX or machine code."""

    sm: int
    ptx: str | None
    """PTX text; None for machine code."""


def images_of(data: bytes) -> list[Image]:
    """Return the images of a fat binary, a cubin or PTX.

    Raises:
        KernrecError: This machine cannot decompress the images.
    """
    if data.startswith(b"\x7fELF"):
        return [Image(int.from_bytes(data[0x30:0x32], "little") & 0xFF, None)]
    if not data.startswith(FAT_BINARY):
        text = data.rstrip(b"\0").decode("utf-8", "replace")
        return [Image(_target(text), text)]
    return list(_entries(data))


def _entries(data: bytes) -> Iterator[Image]:
    place = struct.unpack_from("<H", data, 6)[0]
    while place + _ENTRY.size <= len(data):
        kind, _, header, size, packed, _, _, _, sm, _, _, flags, _, unpacked = _ENTRY.unpack_from(data, place)
        if header < _ENTRY.size:
            raise KernrecError("the program's code is damaged: an entry of its fat binary has no header")
        content = data[place + header : place + header + size]
        if kind == _PTX:
            if flags & (_LZ4 | _ZSTD):
                content = _unpacked(content[:packed] if packed else content, unpacked, bool(flags & _ZSTD))
            text = content.rstrip(b"\0").decode("utf-8", "replace")
            yield Image(_target(text) or sm, text)
        elif kind == _CUBIN:
            yield Image(sm, None)
        place += header + size


def _target(ptx: str) -> int:
    match = re.search(r"^\s*\.target\s+sm_(\d+)", ptx, re.MULTILINE)
    return int(match[1]) if match else 0


def best_ptx(images: Sequence[Image], sm: int) -> str | None:
    """Return the newest PTX that a driver can compile for `sm`; if there is none, the oldest PTX."""
    texts = sorted((image.sm, image.ptx) for image in images if image.ptx is not None)
    return next((ptx for target, ptx in reversed(texts) if target <= sm), texts[0][1] if texts else None)


def _unpacked(data: bytes, size: int, zstd: bool) -> bytes:
    """Decompress an image to `size` bytes. Raises `KernrecError` if the image is too large or damaged."""
    if size > _LARGEST:
        raise KernrecError(f"an image of {size} bytes in the program is too large")
    try:
        return (_zstd if zstd else _lz4)(data, size)
    except IndexError:
        raise KernrecError(f"a compressed image of the program is damaged; {UNCOMPRESSED}") from None


def _lz4(data: bytes, size: int) -> bytes:
    """Decompress a block in LZ4 block format. Raises `IndexError` if the block is truncated."""
    out, place, end = bytearray(), 0, len(data)
    while place < end:
        token = data[place]
        place += 1
        count, place = _length(data, place, token >> 4)
        out += data[place : place + count]
        place += count
        if place >= end or len(out) >= size:
            break
        distance = data[place] | data[place + 1] << 8
        count, place = _length(data, place + 2, token & 15)
        count += 4
        start = len(out) - distance
        if distance == 0 or start < 0:
            raise KernrecError(f"a compressed image of the program is damaged; {UNCOMPRESSED}")
        piece = bytes(out[start : start + count])
        out += (piece * (count // len(piece) + 1))[:count]
    return bytes(out[:size])


def _length(data: bytes, place: int, count: int) -> tuple[int, int]:
    """Return (length that starts with `count` and continues in bytes, index after it)."""
    if count == 15:
        while data[place] == 255:
            count += 255
            place += 1
        count += data[place]
        place += 1
    return count, place


def _zstd(data: bytes, size: int) -> bytes:
    """Decompress with the system's zstd library."""
    library = ctypes.util.find_library("zstd")
    if library is None:
        raise KernrecError(f"the program's code is compressed by zstd, and libzstd is not installed; {UNCOMPRESSED}")
    zstd = ctypes.CDLL(library)
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    zstd.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    zstd.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(size)
    frame = zstd.ZSTD_findFrameCompressedSize(data, len(data))
    done = zstd.ZSTD_decompress(buffer, size, data, frame if frame <= len(data) else len(data))
    if done != size:
        raise KernrecError(f"a compressed image of the program is damaged; {UNCOMPRESSED}")
    return buffer.raw
