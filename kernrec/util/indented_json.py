"""Write indented JSON faster than `json.dumps(value, indent=2)`, which uses no compiled code for indented output."""

import json
from collections.abc import Callable, Iterator
from typing import Any

_text: Callable[[str], str] = json.encoder.encode_basestring_ascii


def json_pieces(value: Any, line: str = "\n", levels: int = 3) -> Iterator[str]:
    """Yield the text of `json.dumps(value, indent=2)` in pieces, to never hold a large text in memory.

    Args:
        value: Plain value.
        line: Line end and indent before each line of the value.
        levels: Number of outer levels to yield member by member.

    Raises:
        TypeError: Part of the value is not a JSON value.
    """
    kind, inner = value.__class__, line + "  "
    if not levels or not value or kind not in (dict, list, tuple):
        yield _written(value, line)
        return
    before = inner
    yield "{" if kind is dict else "["
    for member in value.items() if kind is dict else value:
        yield before
        before = f",{inner}"
        if kind is dict:
            key, member = member
            yield f"{_text(key if key.__class__ is str else _key(key))}: "
        yield from json_pieces(member, inner, levels - 1)
    yield f"{line}}}" if kind is dict else f"{line}]"


def _written(value: Any, line: str) -> str:
    """Return the text of a value, with `line` before each of its lines."""
    kind = value.__class__
    if kind is str:
        return _text(value)
    if kind is float or kind is int or kind is bool or value is None:
        return _number(value)
    if isinstance(value, dict):
        if not value:
            return "{}"
        inner = line + "  "
        entries = [
            f"{_text(key if key.__class__ is str else _key(key))}: {_written(item, inner)}"
            for key, item in value.items()
        ]
        return f"{{{inner}{f',{inner}'.join(entries)}{line}}}"
    if isinstance(value, list | tuple):
        if not value:
            return "[]"
        inner = line + "  "
        return f"[{inner}{f',{inner}'.join([_written(item, inner) for item in value])}{line}]"
    return json.dumps(value)


def _number(value: float | None) -> str:
    """Return the text of a number, boolean or null; numbers that are not finite go through the standard writer."""
    if value.__class__ is float and value == value and abs(value) != float("inf"):
        return float.__repr__(value)
    return int.__repr__(value) if value.__class__ is int else json.dumps(value)


def _key(key: Any) -> str:
    (text,) = json.loads(json.dumps({key: None}))
    return str(text)
