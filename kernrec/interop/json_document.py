"""JSON that nobody vouches for: bounded in size, finite in its numbers, perhaps compressed, perhaps cut short."""

import json
import math
import re
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO

from kernrec.errors import UsageError

MOST_BYTES = 512 * 2**20
"""The largest file that is read, uncompressed; a full recording of 18,000 configs is 17 MB."""

_CHUNK = 2**16  # bytes, so that what they unpack to stays small: gzip packs a thousand into one
_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[ \t\r\n]*")
# What a cut leaves of a literal, a number or an escape, from where the decoder stops to understand it.
_STUMP = re.compile(
    r"t(r(ue?)?)?|f(a(l(se?)?)?)?|n(u(ll?)?)?|N(aN?)?|-?(I(n(f[a-z]*)?)?)?|[.eE][+-]?|\\?u?[0-9a-fA-F]{0,4}"
)


class CutShort(Exception):  # noqa: N818 - not a failure: the reader takes what came before it
    """The text ends where something had to follow."""


def read_text(path: Path) -> tuple[str, bool]:
    """(the text of a file, whether it is whole); `.gz` or not is seen from its first bytes.

    Raises `UsageError` for what cannot be read, is larger than `MOST_BYTES` or is not text.
    """
    try:
        with path.open("rb") as file:
            data, whole = _read(file, path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        return data.decode("utf-8-sig"), whole
    except UnicodeDecodeError as error:
        if error.end < len(data) or error.reason != "unexpected end of data":
            raise UsageError(f"{path} is not JSON: it is not text") from None
        return data[: error.start].decode("utf-8-sig"), False


def _read(file: BinaryIO, path: Path) -> tuple[bytes, bool]:
    """(content, whether it is whole) of a file that may be compressed; of a damaged one what comes before that."""
    parts: list[bytes] = []
    size = 0
    packed = None
    while chunk := file.read(_CHUNK):
        if not parts and packed is None and chunk.startswith(_GZIP):
            packed = zlib.decompressobj(wbits=31)
        while chunk:
            part, chunk = chunk, b""
            if packed is not None:
                try:
                    part = packed.decompress(part)
                except zlib.error:
                    return b"".join(parts), False
                if packed.eof and packed.unused_data:
                    chunk, packed = packed.unused_data, zlib.decompressobj(wbits=31)
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise UsageError(f"{path} holds more than {MOST_BYTES // 2**20} MiB, uncompressed; it is not read")
    return b"".join(parts), packed is None or packed.eof


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def decode(text: str, at: int = 0) -> tuple[Any, int]:
    """(the JSON value that begins at a position, the position after it).

    Raises `CutShort` where the text ends within it, `ValueError` in one line for what is not JSON.
    """
    try:
        return _decoder.raw_decode(text, at)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") or _STUMP.fullmatch(text, error.pos):
            raise CutShort from None
        raise ValueError(f"{error.msg[0].lower()}{error.msg[1:]} at line {error.lineno}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def members(text: str, at: int = 0) -> Generator[tuple[str, int], int, int]:
    """(name, position of its value) of the members of the JSON object at a position, one after the other.

    The values are not looked at: send back the position after each. Returns the position after the object. Raises as
    `decode` does.
    """
    at = expect(text, at, "{")
    if text[at] == "}":
        return at + 1
    while True:
        name, at = decode(text, at)
        if not isinstance(name, str):
            raise ValueError(f"expected a name, found {name!r:.40}")
        at = yield name, expect(text, _after_space(text, at), ":")
        at = _after_space(text, at)
        if text[at : at + 1] == "}":
            return at + 1
        at = expect(text, at, ",")


def expect(text: str, at: int, char: str) -> int:
    """The position after `char`, which has to be the next one, and any space around it."""
    at = _after_space(text, at)
    if at >= len(text) or (text[at] != char and _STUMP.fullmatch(text, at)):
        raise CutShort
    if text[at] != char:
        raise ValueError(f"expected '{char}', found {text[at : at + 20]!r}")
    at = _after_space(text, at + 1)
    if at >= len(text):
        raise CutShort
    return at


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def finite(value: object, what: str) -> float:
    """`value` as a finite float; raises `ValueError` naming what it was to be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} is {value!r:.40}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} is not finite")
    return number
