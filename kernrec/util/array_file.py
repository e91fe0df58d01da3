"""Store JSON values and NumPy arrays in one file that loads fast: a checksum, a line of JSON, and the raw bytes.

NumPy's `.npz` would parse Python literals for every array, which takes longer than a query. Nothing is pickled.
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

from kernrec.util.files import open_input

_MAGIC = b"kernrec arrays 1\n"
_DIGEST = 32
_ALIGN = 16
_KINDS = frozenset("biuf")
_DTYPE = re.compile(r"\|b1|\|[iu]1|<[iuf][248]")
_PIECE = 1 << 16


class Digest(Protocol):
    """A hash object, such as `hashlib.sha256()`."""

    def update(self, data: bytes, /) -> None: ...


def pack(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode named JSON values and named arrays of numbers or booleans as bytes that `unpack` can read."""
    heads, parts, offset = [], [], 0
    for name, array in arrays.items():
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if stored.dtype.kind not in _KINDS:
            raise TypeError(f"array {name} is of {stored.dtype}")
        heads.append([name, stored.dtype.str, list(array.shape), offset])
        parts.append(stored.tobytes() + bytes(-stored.nbytes % _ALIGN))
        offset += len(parts[-1])
    head = json.dumps([dict(facts), heads]).encode()
    # Pad the JSON with blanks, so that the arrays are aligned to their elements.
    body = b"".join([head, b" " * (-(len(_MAGIC) + _DIGEST + len(head) + 1) % _ALIGN), b"\n", *parts])
    return _MAGIC + sha256(body).digest() + body


def unpack(data: bytes | mmap.mmap, intact: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON values and the arrays that `pack` encoded. The arrays are read-only.

    Args:
        data: Content of a file, or the result of `mapped`. From a mapped file, only the pages that are used are read.
        intact: Whether to skip the checksum, because a larger checksum already covered these bytes.

    Raises:
        ValueError: The bytes do not come from `pack`, or are damaged.
    """
    start = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or (end := data.find(b"\n", start) + 1) == 0:
        raise ValueError("not an array file of kernrec, or damaged")
    if not intact and sha256(memoryview(data)[start:]).digest() != data[len(_MAGIC) : start]:
        raise ValueError("an array file of kernrec, but damaged: the checksum differs")
    arrays = {}
    try:
        facts, heads = json.loads(data[start:end])
        for name, dtype, shape, offset in heads:
            if not _DTYPE.fullmatch(dtype) or any(type(size) is not int or size < 0 for size in (offset, *shape)):
                raise ValueError(f"not an array: dtype {dtype!r:.20}, shape {shape!r:.40}")
            arrays[name] = np.frombuffer(data, np.dtype(dtype), math.prod(shape), end + offset).reshape(shape)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an array file of kernrec ({error})") from None
    return facts, arrays


def mapped(path: Path, digest: Digest | None = None) -> bytes | mmap.mmap:
    """Map a file into memory that processes share. The file must only be replaced as a whole, never written in place.
    On Windows, the file is read instead, because a mapped file could not be replaced.

    Args:
        digest: Hash to update with the content of the file, in pieces, so that unused pages do not stay in memory.

    Raises:
        OSError: The file cannot be opened or mapped.
        ValueError: The file is empty.
    """
    with open_input(path) as file:
        if digest is not None:
            while piece := file.read(_PIECE):
                digest.update(piece)
        if sys.platform == "win32":
            file.seek(0)
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
