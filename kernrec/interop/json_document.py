"""Read untrusted text and JSON files, which may be compressed by gzip or truncated, with limits on their size."""

import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from kernrec.errors import UsageError, cannot_be
from kernrec.util.files import open_input

MOST_BYTES = 512 * 2**20
"""Maximum size of an uncompressed file in bytes. A recording of 18,000 configs takes 17 MB."""
MOST_VALUES = 8_000_000
"""Maximum number of values in a JSON document. An empty list takes two bytes of text, but 64 bytes of memory."""
MOST_RATIO = 100
"""Maximum ratio of uncompressed to compressed bytes after the first 32 MiB. The ratio of recordings is 10 to 30."""
_RATIO_FREE = 2**25

_CHUNK = 2**16
_GZIP = b"\x1f\x8b"


_STUMP = re.compile(
    r"(t(r(ue?)?)?|f(a(l(se?)?)?)?|n(u(ll?)?)?|N(aN?)?|-?(I(n(f[a-z]*)?)?)?|[.eE][+-]?|\\?u?[0-9a-fA-F]{0,4})\s*"
)
"""Regular expression for an incomplete JSON token at the end of a truncated text."""


class CutShort(ValueError):  # noqa: N818 - not a failure: the reader uses what came before
    """Error for a file that is truncated."""

    def __init__(self) -> None:
        super().__init__("it is cut short")


def read_text(path: Path, largest: int | None = None) -> tuple[str, bool]:
    """Read a text file, which may be compressed by gzip. Return (text, whether the file is complete).

    Args:
        largest: Maximum size of the uncompressed file in bytes. The default is `MOST_BYTES`.

    Raises:
        UsageError: The file cannot be read, is too large, or is not text.
    """
    try:
        with open_input(path) as file:
            data, whole = _read(file, path, largest or MOST_BYTES)
    except OSError as error:
        raise UsageError(cannot_be("read", path, error)) from None
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES:
        raise UsageError(f"{path} has more than {MOST_VALUES // 1_000_000} million values; it is not read")
    try:
        return data.decode("utf-8-sig"), whole
    except UnicodeDecodeError as error:
        if error.end < len(data) or error.reason != "unexpected end of data":
            raise UsageError(f"{path} is not JSON: it is not text") from None
        return data[: error.start].decode("utf-8-sig"), False


def _read(file: BufferedReader, path: Path, largest: int) -> tuple[bytes, bool]:
    """Read and decompress a file up to the first damaged byte. Return (content, whether the file is complete)."""
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    stream = gzip.GzipFile(fileobj=file) if packed else file
    parts: list[bytes] = []
    size = 0
    try:
        while part := stream.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > largest:
                raise UsageError(f"{path} holds more than {largest // 2**20} MiB, uncompressed; it is not read")
            if size > _RATIO_FREE + MOST_RATIO * file.tell():
                raise UsageError(f"{path} unpacks to more than {MOST_RATIO} times its size; it is not read")
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b"".join(parts), False
    return b"".join(parts), True


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _infinity(constant: str) -> float:
    return math.inf if constant == "Infinity" else _refuse(constant)


@dataclass(frozen=True)
class TextFile:
    """Path and text of a file."""

    path: Path
    text: str
    whole: bool
    """Whether the file is complete."""

    @cached_property
    def _value(self) -> Any:
        return whole_document(self.text, infinity=True)

    def document(self) -> Any:
        """Parse the whole file as JSON, including `Infinity`. Raise `ValueError` if the file is not JSON."""
        value = self._value
        if not self.whole:
            raise CutShort
        return value


@contextmanager
def reading(title: object, kind: str) -> Iterator[None]:
    """Convert a `ValueError` in a `with` block to a `UsageError` that names file and expected format."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{title} is not {kind}: {error}") from None


_Read = TypeVar("_Read")


def numbered(entries: Iterable[Any], read: Callable[[Any], _Read], title: str, first: int = 1) -> list[_Read]:
    """Convert each entry with `read`. Prefix errors with title and number of the entry, such as `config 3: ...`."""
    values = []
    for number, entry in enumerate(entries, first):
        try:
            values.append(read(entry))
        except (ValueError, UsageError) as error:
            raise ValueError(f"{title} {number}: {error}") from None
    return values


def whole_document(text: str, largest: int | None = None, infinity: bool = False) -> Any:
    """Parse a text, which must contain exactly one JSON value.

    Args:
        largest: Maximum number of characters, or None if there is no limit.
        infinity: Whether to accept `Infinity`, which Python writes, as a number.

    Raises:
        CutShort: The text ends within the value.
        ValueError: The text is not JSON, or too large. The message is one line.
    """
    if largest is not None and len(text) > largest:
        raise ValueError(f"it is larger than {largest} bytes")
    try:
        return json.loads(text, parse_constant=_infinity if infinity else _refuse)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise ValueError("there is text after its end") from None
        if (
            error.msg.startswith("Unterminated")
            or not text.strip()
            or (error.pos and _STUMP.fullmatch(text, error.pos))
        ):
            raise CutShort from None
        raise ValueError(f"{error.msg[0].lower()}{error.msg[1:]} at line {error.lineno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def finite(value: object, what: str) -> float:
    """Return `value` as a finite float. Raise a `ValueError` that starts with `what` for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} is {value!r:.40}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} is not finite")
    return number
