"""Facts and arrays in one file that loads at once: a checksum, a line of JSON, and the bytes of the arrays as they are.

NumPy's own `.npz` unpacks a ZIP member and parses Python literals for every array, which takes longer than a query.
Nothing is unpickled: an array is its name, dtype, shape and place.
"""

import json
import math
import mmap
import re
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernrec.util.input_file import open_input

_MAGIC = b"kernrec arrays 1\n"
_DIGEST = 32
_ALIGN = 16
_KINDS = frozenset("biuf")
_DTYPE = re.compile(r"\|b1|\|[iu]1|<[iuf][248]")
_PIECE = 1 << 16


class Digest(Protocol):
    """A hash, such as `hashlib.sha256()`."""

    def update(self, data: bytes, /) -> None: ...


def pack(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of `facts`, which JSON can hold, and of arrays of numbers or truth values."""
    heads, parts, offset = [], [], 0
    for name, array in arrays.items():
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if stored.dtype.kind not in _KINDS:
            raise TypeError(f"array {name} is of {stored.dtype}")
        heads.append([name, stored.dtype.str, list(array.shape), offset])
        parts.append(stored.tobytes() + bytes(-stored.nbytes % _ALIGN))
        offset += len(parts[-1])
    head = json.dumps([dict(facts), heads]).encode()
    # Blanks after the JSON, so that arrays begin at whole multiples of their elements.
    body = b"".join([head, b" " * (-(len(_MAGIC) + _DIGEST + len(head) + 1) % _ALIGN), b"\n", *parts])
    return _MAGIC + sha256(body).digest() + body


def unpack(data: bytes | mmap.mmap, intact: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(facts, arrays) of what `pack` made, the arrays read-only; `ValueError` for anything else, damaged bytes too.

    Args:
        data: the bytes of a file; or `mapped`: then only the pages of arrays that are looked at are read.
        intact: whether their checksum was compared already, as part of a larger one.
    """
    start = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or (end := data.find(b"\n", start) + 1) == 0:
        raise ValueError("no arrays of kernrec's, or damaged")
    if not intact and sha256(memoryview(data)[start:]).digest() != data[len(_MAGIC) : start]:
        raise ValueError("arrays of kernrec's, but damaged: the checksum is another")
    arrays = {}
    try:
        facts, heads = json.loads(data[start:end])
        for name, dtype, shape, offset in heads:
            if not _DTYPE.fullmatch(dtype) or any(type(size) is not int or size < 0 for size in (offset, *shape)):
                raise ValueError(f"no array: {dtype!r:.20}, {shape!r:.40}")
            arrays[name] = np.frombuffer(data, np.dtype(dtype), math.prod(shape), end + offset).reshape(shape)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no arrays of kernrec's ({error})") from None
    return facts, arrays


def mapped(path: Path, digest: Digest | None = None) -> bytes | mmap.mmap:
    """The content of a file, read where it is looked at, and shared by all processes that do. `OSError`, `ValueError`.

    The file has to be replaced as a whole, never written to. Windows replaces nothing that is mapped: there it is read.

    Args:
        path: of the file.
        digest: takes in the content, by the piece: pages that nobody looks at later are not in the process's memory.
    """
    with open_input(path) as file:
        if digest is not None:
            while piece := file.read(_PIECE):
                digest.update(piece)
        if sys.platform == "win32":
            file.seek(0)
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
