"""Read TOML tables. A table records the keys that were read and refuses all others; errors are one line."""

import re
from collections.abc import Collection
from typing import Any

from kernrec.errors import UsageError, nearest, unknown
from kernrec.kernel.expression import Expression, parse

C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def mentions(text: str, name: str) -> bool:
    """Return whether a text contains an identifier as a whole word, without compiling a regular expression."""
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        if not _in_word(text[start - 1 : start]) and not _in_word(text[end : end + 1]):
            return True
        start = text.find(name, start + 1)
    return False


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


"""Matches the name of a macro or function in C."""

_REQUIRED: Any = object()


class Table:
    """One table of a file. `take` reads a key, and `done` refuses the keys that were not read."""

    def __init__(self, place: str, data: Any, named: set[str] | None = None) -> None:
        """Open a table that messages call `place`; `named` collects the names in the file's expressions."""
        self.place = place
        self.taken: list[str] = []
        self.named: set[str] = set() if named is None else named
        if not isinstance(data, dict):
            raise UsageError(f"{place}: expected a table, got {_shown(data)}")
        self.data: dict[str, Any] = data

    def inner(self, place: str, data: Any) -> "Table":
        """Return a table inside this one."""
        return Table(f"{self.place}: {place}", data, self.named)

    def error(self, message: object) -> UsageError:
        return UsageError(f"{self.place}: {message}")

    def fail(self, key: str, expected: str, value: Any) -> UsageError:
        return self.error(f"{key}: expected {expected}, got {_shown(value)}")

    def take(self, key: str, kind: type, expected: str, default: Any = _REQUIRED) -> Any:
        self.taken.append(key)
        value = self.data.get(key, default)
        if value is _REQUIRED:
            # If an unread key is similar, the user more likely misspelled the missing key than forgot it.
            close = [k for k in nearest(key, self.data) if k not in self.taken]
            hint = f" (is {close[0]!r} a misspelling of it?)" if close else ""
            raise self.error(f"{key} is missing, expected {expected}{hint}")
        if key in self.data and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise self.fail(key, expected, value)
        return value

    def string(self, key: str, default: Any = _REQUIRED) -> Any:
        value = self.take(key, str, "a string", default)
        if isinstance(value, str) and "\n" in value:
            raise self.fail(key, "one line", value)
        return value

    def names(self, key: str, choices: Collection[str]) -> tuple[str, ...]:
        """Return a list of at least one of the names in `choices`."""
        values = self.take(key, list, f"a list of {', '.join(choices)}")
        if not values:
            raise self.fail(key, "at least one name", values)
        for value in values:
            if value not in choices:
                raise self.error(f"{key}: {unknown('name', value, choices)}")
        return tuple(dict.fromkeys(values))

    def expression(self, key: str, names: Collection[str], default: Any = _REQUIRED) -> Expression:
        """Read an expression that may use `names`."""
        return self.parsed(key, self.take(key, object, "an expression", default), names)

    def parsed(self, key: str, text: Any, names: Collection[str], noun: str = "name") -> Expression:
        """Parse `text`, the expression of a key or of a part of it. It may use `names`, which messages call `noun`."""
        if isinstance(text, int) and not isinstance(text, bool):
            text = str(text)
        if not isinstance(text, str):
            raise self.fail(key, "an expression in quotes", text)
        try:
            expression = parse(text)
        except UsageError as error:
            raise self.error(f"{key}: {error}") from None
        for name in expression.names:
            if name not in names:
                raise self.error(f"{key}: {text!r}: {unknown(noun, name, sorted(names))}")
        self.named |= expression.names
        return expression

    def condition(self, names: Collection[str]) -> Expression | None:
        """Return the condition `when`, if the table has one."""
        text = self.take("when", str, "an expression", None)
        if text is None:
            return None
        condition = self.parsed("when", text, names)
        return condition if condition.is_truth else parse(f"({condition.text}) != 0")

    def done(self) -> None:
        for key in self.data:
            if key not in self.taken:
                raise self.error(unknown("key", key, self.taken))


def _shown(value: Any) -> str:
    """Describe a value of a TOML file for error messages: `the string 'x'`, `a table`."""
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return f"the list {value!r:.60}"
    names = {dict: "a table", list: "a list", bool: "a boolean", str: "the string", int: "the number"}
    name = names.get(type(value), f"a {type(value).__name__}")
    return f"{name} {value!r:.60}" if isinstance(value, str | int | float) else name
