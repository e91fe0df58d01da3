"""Configs as rows of digits: for each tunable an index into its values."""

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from kernrec.util.light_dataclass import dataclass

_SPARSE = 8
"""Of this many times more combinations than rows, those that occur are sorted out; of fewer they are marked."""


@dataclass(frozen=True, eq=False)
class ConfigRows:
    """Some rows of the product of all tunables' values."""

    count: int
    """The number of rows."""
    values: Mapping[str, np.ndarray]
    """The values of each tunable, int64."""
    digits: Mapping[str, np.ndarray]
    """The index into its values in each row, int64 (rows,), of each tunable that is fixed."""

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The value of each fixed tunable in each row, int64 (rows,)."""
        return {name: self.values[name][digit] for name, digit in self.digits.items()}

    def with_tunable(self, name: str) -> "ConfigRows":
        """Each row once for each value of another tunable."""
        choices = len(self.values[name])
        digits = {known: np.repeat(digit, choices) for known, digit in self.digits.items()}
        digits[name] = np.tile(np.arange(choices), self.count)
        return ConfigRows(self.count * choices, self.values, digits)

    def take(self, rows: np.ndarray) -> "ConfigRows":
        """These rows alone."""
        return ConfigRows(len(rows), self.values, {name: digit.take(rows) for name, digit in self.digits.items()})

    def groups(self, tunables: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Groups rows by their values of `tunables`: (row -> group number, group -> its first row)."""
        code = np.zeros(self.count, dtype=np.int64)
        size = 1
        for name in sorted(tunables):
            code = code * len(self.values[name]) + self.digits[name]
            size *= len(self.values[name])
        if size > max(_SPARSE * self.count, 1 << 16):
            _, first, index = np.unique(code, return_index=True, return_inverse=True)
            return index, first
        present = np.zeros(size, dtype=bool)
        present[code] = True
        index = (np.cumsum(present) - 1)[code]
        first = np.empty(np.count_nonzero(present), dtype=np.int64)
        first[index[::-1]] = np.arange(self.count)[::-1]  # reversed, so that the first row is assigned last and stays
        return index, first
