"""Rows of configs, and the distinct combinations of some of their tunables."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from kernrec.util.light_dataclass import dataclass

_SPARSE = 8
"""Combinations are marked in a table if it has at most so many times the rows, else sorted; only then pays a domain."""


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
        digits = {fixed: np.repeat(digit, choices) for fixed, digit in self.digits.items()}
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


class Domain:
    """The distinct combinations of some tunables.

    Attributes:
        index: Row -> combination; None if every row is its own combination.
        first: Combination -> the first row that has it; None as for `index`.
        names: Values on this domain of the names that do not depend on the problem.
        lets: Plans of the names that depend on the problem, each with its embedding in this domain.
    """

    __slots__ = ("first", "index", "lets", "names")

    def __init__(self, index: np.ndarray | None, first: np.ndarray | None) -> None:
        self.index = index
        self.first = first
        self.names: dict[str, Any] = {}
        self.lets: dict[str, tuple[Any, np.ndarray | None]] = {}

    def embedded_in(self, other: "Domain") -> np.ndarray | None:
        """Combination of `other` (of these tunables and more) -> combination of this domain; None for identity."""
        if self.index is None:
            return None
        return self.index if other.first is None else self.index[other.first]


class Domains:
    """The domains of some rows of configs, each made when it is asked for."""

    def __init__(self, configs: ConfigRows) -> None:
        self.configs = configs
        self.every = Domain(None, None)  # every row is its own combination
        self.scalar = Domain(None, None)  # depends on no tunable: one value for all rows
        self._domains: dict[frozenset[str], Domain] = {frozenset(): self.scalar}

    def of(self, support: frozenset[str]) -> Domain:
        """The domain of these tunables."""
        if support not in self._domains:
            configs = self.configs
            domain = self.every
            if prod(len(configs.values[name]) for name in support) <= _SPARSE * configs.count:
                index, first = configs.groups(support)
                if 2 * len(first) <= configs.count:
                    domain = Domain(index, first)
            self._domains[support] = domain
        return self._domains[support]
