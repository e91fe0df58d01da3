"""Test that PTX is extracted from fat binaries with every compression that nvcc uses."""

import ctypes
import ctypes.util
import struct

import pytest

from kernrec.capture.loaded_module import Image, best_ptx, images_of
from kernrec.errors import KernrecError

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n" + "// nothing\n" * 40


def fat_binary(*entries: tuple[int, int, int, bytes, int]) -> bytes:
    """Return a fat binary with the given entries, each (kind, sm, flags, content, unpacked size)."""
    body = b""
    for kind, sm, flags, content, unpacked in entries:
        padded = content.ljust(-(-len(content) // 8) * 8, b"\0")
        packed = len(content) if flags else 0
        head = struct.pack("<HHIQIIHHIIIQQQ", kind, 1, 72, len(padded), packed, 0, 0, 8, sm, 0, 0, flags, 0, unpacked)
        body += head.ljust(72, b"\0") + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def lz4(text: bytes) -> bytes:
    """Compress `text` as its first line, one match of the last 11 bytes per repeated line, and final literals."""
    head, tail = text[:-401], text[-401:]
    token = lambda literals, match: bytes([min(literals, 15) << 4 | min(match, 15)])  # noqa: E731
    length = lambda n: b"" if n < 15 else b"\xff" * ((n - 15) // 255) + bytes([(n - 15) % 255])  # noqa: E731
    repeated = len(tail) - 5 - 4
    first = token(len(head), repeated) + length(len(head)) + head + struct.pack("<H", 11) + length(repeated)
    return first + token(5, 0) + tail[-5:]


def test_lz4_is_unpacked():
    packed = lz4(PTX.encode())
    assert len(packed) < len(PTX) / 2
    assert images_of(fat_binary((1, 80, 0x2000, packed, len(PTX)))) == [Image(80, PTX)]


def test_zstd_is_unpacked():
    if (name := ctypes.util.find_library("zstd")) is None:
        pytest.skip("needs libzstd")
    buffer, library = ctypes.create_string_buffer(4096), ctypes.CDLL(name)
    library.ZSTD_compress.restype = ctypes.c_size_t
    size = library.ZSTD_compress(buffer, ctypes.c_size_t(4096), PTX.encode(), ctypes.c_size_t(len(PTX)), 3)
    assert images_of(fat_binary((1, 80, 0x8000, buffer.raw[:size], len(PTX)))) == [Image(80, PTX)]


@pytest.mark.parametrize(("data", "message"), [
    pytest.param(fat_binary((1, 80, 0x2000, b"\xf0", 500)), "damaged", id="truncated lz4"),
    pytest.param(fat_binary((1, 80, 0x2000, b"", 1 << 40)), "too large", id="an oversized lz4 image"),
    pytest.param(fat_binary((1, 80, 0x8000, b"", 1 << 40)), "too large", id="an oversized zstd image"),
    pytest.param(
        fat_binary()[:16] + struct.pack("<HHIQ", 2, 1, 0, 0).ljust(64, b"\0"), "no header", id="no header"
    ),
])  # fmt: skip
def test_damaged_fat_binary_is_refused(data, message):
    with pytest.raises(KernrecError, match=message):
        images_of(data)


def test_newest_ptx_that_the_gpu_runs_is_chosen():
    texts = {sm: f".target sm_{sm}\n" for sm in (75, 80, 90)}
    images = images_of(
        fat_binary((2, 80, 0, b"\x7fELF", 0), *((1, sm, 0, text.encode(), 0) for sm, text in texts.items()))
    )
    assert [image.sm for image in images] == [80, 75, 80, 90]
    assert best_ptx(images, 86) == texts[80]
    assert best_ptx(images, 70) == texts[75]
    assert best_ptx(images[:1], 86) is None
