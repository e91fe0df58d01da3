"""Reads the expressions of a `kernel.toml`; an error is one line that names file and key."""

from collections.abc import Collection
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.kernel.expression import Expression, parse
from kernrec.kernel.toml_table import Table, what


def read_expression(where: str, key: str, text: Any, names: Collection[str], noun: str = "name") -> Expression:
    """The expression `text` of a key, which may name `names`, each of which is a `noun`; errors begin with `where`."""
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    if not isinstance(text, str):
        raise UsageError(f"{where}: {key}: expected an expression in quotes, got {what(text)}")
    try:
        expression = parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {key}: {error}") from None
    for name in expression.names:
        if name not in names:
            raise UsageError(f"{where}: {key}: {text!r}: {unknown(noun, name, sorted(names))}")
    return expression


class ExpressionReader:
    """Reads the expressions of one file, and notes which names they use."""

    def __init__(self, where: str) -> None:
        """`where`: the file, as errors name it."""
        self.where = where
        self.named: set[str] = set()
        """The names that the expressions use."""

    def read(self, key: str, text: Any, names: Collection[str], where: str | None = None) -> Expression:
        """The expression `text` of a key, which may name `names`; errors begin with `where`, by default the file."""
        expression = read_expression(where or self.where, key, text, names)
        self.named |= expression.names
        return expression

    def condition(self, table: Table, names: Collection[str]) -> Expression | None:
        """The condition `when` of a table, if it has one."""
        text = table.take("when", str, "an expression", None)
        if text is None:
            return None
        condition = self.read("when", text, names, table.where)
        return condition if condition.is_truth else parse(f"({condition.text}) != 0")
