"""Read TOML tables, and a kernel's explicit list of configs.

A `Table` refuses keys that nothing reads. By default, a kernel's configs are all combinations of tunables. `[configs]`
lists configs explicitly instead:

    [configs]
    columns = ["block_m", "num_warps", "grid_x"]
    rows = [[64, 4, 4096], [128, 8, 2048]]

Each tunable has a column. Expressions may also use the numbers in other columns.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.errors import UsageError, nearest, unknown
from kernrec.kernel.expression import Expression, is_identifier, parse
from kernrec.util.light_dataclass import dataclass

C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
"""Matches the name of a macro or function in C, up to 100 characters."""


def mentions(text: str, name: str) -> bool:
    """Return whether a text contains a name as a whole word. This is faster than a regular expression."""
    start = text.find(name)
    while start >= 0:
        around = text[start - 1 : start] + text[start + len(name) : start + len(name) + 1]
        if not any(letter.isalnum() or letter == "_" for letter in around):
            return True
        start = text.find(name, start + 1)
    return False


_REQUIRED: Any = object()


class Table:
    """TOML table that rejects keys which nothing reads."""

    def __init__(self, place: str, data: Any, named: set[str] | None = None) -> None:
        """Wrap `data`. Messages call the table `place`. Parsing an expression adds its names to `named`."""
        self.place = place
        self.taken: list[str] = []
        self.named: set[str] = set() if named is None else named
        if not isinstance(data, dict):
            raise UsageError(f"{place}: expected a table, got {_shown(data)}")
        self.data: dict[str, Any] = data

    def inner(self, place: str, data: Any) -> "Table":
        return Table(f"{self.place}: {place}", data, self.named)

    def error(self, message: object) -> UsageError:
        return UsageError(f"{self.place}: {message}")

    def fail(self, key: str, expected: str, value: Any) -> UsageError:
        return self.error(f"{key}: expected {expected}, got {_shown(value)}")

    def take(self, key: str, kind: type, expected: str, default: Any = _REQUIRED) -> Any:
        self.taken.append(key)
        value = self.data.get(key, default)
        if value is _REQUIRED:
            # If the file has a similar key that nothing reads, it is probably a misspelling.
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
        values = self.take(key, list, f"a list of {', '.join(choices)}")
        if not values:
            raise self.fail(key, "at least one name", values)
        self.check(key, "name", values, choices)
        return tuple(dict.fromkeys(values))

    def check(self, key: str, noun: str, names: Iterable[Any], choices: Collection[str]) -> None:
        """Raise `UsageError` if a name under a key is not among `choices`. `noun` describes the names in messages."""
        for name in names:
            if name not in choices:
                raise self.error(f"{key}: {unknown(noun, name, choices)}")

    def expressions(self, key: str, names: Collection[str], expected: str = "a table") -> dict[str, Expression]:
        """Return the expressions in the table under `key`, or an empty result if the table is missing."""
        texts = self.take(key, dict, expected, {})
        return {name: self.parsed(f"{key}.{name}", text, names) for name, text in texts.items()}

    def items(
        self, key: str, texts: Sequence[Any], names: Collection[str], noun: str = "name"
    ) -> tuple[Expression, ...]:
        return tuple(self.parsed(f"{key}[{i}]", text, names, noun) for i, text in enumerate(texts))

    def tables(self, key: str, expected: str, default: Any = _REQUIRED) -> "list[Table]":
        return [self.inner(f"{key}[{i}]", data) for i, data in enumerate(self.take(key, list, expected, default))]

    def expression(self, key: str, names: Collection[str], default: Any = _REQUIRED) -> Expression:
        return self.parsed(key, self.take(key, object, "an expression", default), names)

    def parsed(self, key: str, text: Any, names: Collection[str], noun: str = "name") -> Expression:
        """Parse an expression that may use `names`. `noun` describes the names in messages."""
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
        """Return the condition under the key `when`, or None."""
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
    """Describe a value for error messages, such as `the string 'x'` or `a table`."""
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return f"the list {value!r:.60}"
    names = {dict: "a table", list: "a list", bool: "a boolean", str: "the string", int: "the number"}
    name = names.get(type(value), f"a {type(value).__name__}")
    return f"{name} {value!r:.60}" if isinstance(value, str | int | float) else name


_MOST_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class ConfigList:
    """List of a kernel's configs."""

    columns: tuple[str, ...]
    """Names of all columns."""
    rows: tuple[tuple[int, ...], ...]
    tunables: tuple[str, ...]
    """Columns that are tunables."""

    @property
    def further(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.tunables)

    @cached_property
    def by_config(self) -> dict[tuple[int, ...], dict[str, int]]:
        """Return the row of each config, keyed by the values of its tunables."""
        rows = (dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return {tuple(row[name] for name in self.tunables): row for row in rows}

    def numbers(self, config: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers that are listed with a config. Raise `UsageError` if the config is not listed."""
        row = self.by_config.get(tuple(config[name] for name in self.tunables))
        if row is None:
            shown = " ".join(f"{name}={config[name]}" for name in self.tunables)
            raise UsageError(f"{shown} is not among the {len(self.rows)} listed configs")
        return {name: row[name] for name in self.further}

    def digits(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the index of each row's value in a column's `values`, int64 of shape (rows,), keyed by column."""
        places = {name: {int(v): i for i, v in enumerate(choices)} for name, choices in values.items()}
        digits_of_rows = {name: [places[name][row[i]] for row in self.rows] for i, name in enumerate(self.columns)}
        digits = {name: np.array(digits_of_rows[name], dtype=np.int64) for name in values}
        # Sort the rows by the indices of the tunables.
        order = np.lexsort([digits[name] for name in reversed(self.tunables)])
        return {name: digit[order] for name, digit in digits.items()}

    def values(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the distinct values of each column as ascending int64 arrays."""
        # Avoid np.unique, because it imports np.ma, which is slow.
        distinct = {name: sorted({row[self.columns.index(name)] for row in self.rows}) for name in names}
        return {name: np.array(values, dtype=np.int64) for name, values in distinct.items()}


def listed_configs(top: Table, values: Mapping[str, Sequence[int]]) -> ConfigList | None:
    """Return the configs in a spec's `[configs]` table, or None if there is no table."""
    data = top.take("configs", dict, "a table with columns and rows", None)
    if data is None:
        return None
    table = top.inner("[configs]", data)
    columns = table.take("columns", list, "a list of names")
    rows = table.take("rows", list, "a list of rows")
    table.done()
    for name in columns:
        if not isinstance(name, str) or not is_identifier(name):
            raise table.fail("columns", "names of lower-case letters, digits and _", name)
    if len(set(columns)) < len(columns) or not values.keys() <= set(columns):
        raise table.fail("columns", f"every tunable once ({', '.join(values)})", columns)
    if not 1 <= len(rows) <= _MOST_ROWS:
        raise table.fail("rows", f"1 to {_MOST_ROWS} configs", len(rows))
    for row in rows:
        if not isinstance(row, list) or len(row) != len(columns) or not all(type(v) is int for v in row):
            raise table.fail("rows", f"rows of {len(columns)} integers", row)
        for name, value in zip(columns, row, strict=True):
            if name in values and value not in values[name]:
                raise table.fail(f"rows: {name}", f"one of {', '.join(map(str, values[name]))}", value)
            if abs(value) >= 2**31:
                raise table.fail(f"rows: {name}", "an integer below 2**31", value)
    listed = ConfigList(tuple(columns), tuple(map(tuple, rows)), tuple(values))
    if len(listed.by_config) < len(rows):
        raise table.error("rows: a config is listed twice")
    return listed
