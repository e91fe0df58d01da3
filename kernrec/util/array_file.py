"""Store JSON values and NumPy arrays in one file that loads fast.

NumPy's `.npz` parses Python literals for every array, which takes longer than a query. Nothing is pickled.
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
    def update(self, data: bytes, /) -> None: ...


def pack(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode JSON values and arrays, both keyed by name, as bytes for `unpack`."""
    heads, parts, offset = [], [], 0
    for name, array in arrays.items():
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if stored.dtype.kind not in _KINDS:
            raise TypeError(f"array {name} is of {stored.dtype}")
        heads.append([name, stored.dtype.str, list(array.shape), offset])
        parts.append(stored.tobytes() + bytes(-stored.nbytes % _ALIGN))
        offset += len(parts[-1])
    head = json.dumps([dict(facts), heads]).encode()
    # Pad the JSON with blanks to align the arrays.
    body = b"".join([head, b" " * (-(len(_MAGIC) + _DIGEST + len(head) + 1) % _ALIGN), b"\n", *parts])
    return _MAGIC + sha256(body).digest() + body


def unpack(data: bytes | mmap.mmap, intact: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON values and the read-only arrays that `pack` encoded.

    Args:
        data: content of a file, or the result of `mapped`. If mapped, the system reads only the pages that are used.
        intact: whether to skip the checksum, because the caller has already checked the data.

    Raises:
        ValueError: the bytes do not come from `pack`, or are damaged.
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
    """Map a file into memory. Other programs may replace the file, but must not change it in place.

    Windows reads the file instead, because it cannot replace a mapped file.

    Args:
        digest: hash to update with the content.

    Raises:
        OSError: the file cannot be opened or mapped.
        ValueError: the file is empty.
    """
    with open_input(path) as file:
        if digest is not None:  # Hashing the mapping instead would keep the whole file in memory.
            while piece := file.read(_PIECE):
                digest.update(piece)
        if sys.platform == "win32":
            file.seek(0)
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
