"""Reads TOML tables with one-line errors: every table records the keys that were read and refuses all others."""

import re
from collections.abc import Collection
from typing import Any

from kernrec.errors import UsageError, nearest, unknown

C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
"""The name of a macro or function in C."""

_REQUIRED: Any = object()


class Table:
    """One table of a file; `take` reads a key, and `done` refuses the keys that were not read."""

    def __init__(self, where: str, data: Any) -> None:
        self.where = where
        self.taken: list[str] = []
        if not isinstance(data, dict):
            raise UsageError(f"{where}: expected a table, got {what(data)}")
        self.data: dict[str, Any] = data

    def fail(self, key: str, expected: str, value: Any) -> UsageError:
        return UsageError(f"{self.where}: {key}: expected {expected}, got {what(value)}")

    def take(self, key: str, kind: type, expected: str, default: Any = _REQUIRED) -> Any:
        self.taken.append(key)
        value = self.data.get(key, default)
        if value is _REQUIRED:
            # A similar key that has not been read is more likely a misspelling than the key was forgotten.
            close = [k for k in nearest(key, self.data) if k not in self.taken]
            hint = f" (is {close[0]!r} a misspelling of it?)" if close else ""
            raise UsageError(f"{self.where}: {key} is missing, expected {expected}{hint}")
        if key in self.data and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise self.fail(key, expected, value)
        return value

    def string(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self.take(key, str, "a string", default)
        if isinstance(value, str) and "\n" in value:
            raise self.fail(key, "one line", value)
        return value

    def names(self, key: str, known: Collection[str]) -> tuple[str, ...]:
        """A list of at least one of the names in `known`."""
        values = self.take(key, list, f"a list of {', '.join(known)}")
        if not values:
            raise self.fail(key, "at least one name", values)
        for value in values:
            if value not in known:
                raise UsageError(f"{self.where}: {key}: {unknown('name', value, known)}")
        return tuple(dict.fromkeys(values))

    def done(self) -> None:
        for key in self.data:
            if key not in self.taken:
                raise UsageError(f"{self.where}: {unknown('key', key, self.taken)}")


def what(value: Any) -> str:
    """A value of a TOML file as error messages describe it: `the string 'x'`, `a table`."""
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return f"the list {value!r:.60}"
    names = {dict: "a table", list: "a list", bool: "a boolean", str: "the string", int: "the number"}
    name = names.get(type(value), f"a {type(value).__name__}")
    return f"{name} {value!r:.60}" if isinstance(value, str | int | float) else name
