"""A space on many problems at once, for a program that asks about thousands of shapes.

A row stands for a config on a problem: its number is that of the problem times the configs of the space, plus that of
the config. The engine evaluates a space's program for one problem after the other. For other expressions, the names of
the problem are columns (problems, 1) where `ProblemSpace` has numbers, so that an expression is evaluated on the
distinct values of its tunables for all problems in one go.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.kernel.columns import Columns, ColumnValues
from kernrec.kernel.domain import Domain
from kernrec.kernel.expression import Expression
from kernrec.kernel.space import ProblemSpace, Space

if TYPE_CHECKING:
    from kernrec.op import Problem

Array = np.ndarray

_AS_MANY = 16
"""Problems side by side that gain about as much by a flat program as one that is asked about alone."""


class ManyProblems:
    """The configs of a space on problems of one op, dtype and layout; has what predictions need of a `ProblemSpace`."""

    def __init__(self, space: Space, problems: "Sequence[Problem]") -> None:
        self.space = space
        self.problems = problems = tuple([space.kernel.form(problem) for problem in problems])
        self.each = tuple([space.at(problem) for problem in problems])
        """The space on each problem."""
        space.ask(len(problems) / _AS_MANY)
        names = {
            name: value if isinstance(value, str) else np.array([[problem.names[name]] for problem in problems])
            for name, value in problems[0].names.items()
        }
        self._configs: tuple[Array | None, Array] = None, np.empty(0, dtype=np.int64)
        self._values = _ManyValues(space._columns, names, len(problems))
        self.column = self._values.column
        """An expression of the kernel for these rows."""

    @cached_property
    def valid(self) -> Array:
        """Which configs can run which problem, bool (problems, configs)."""
        if self.space.in_engine:
            return np.array([alone.valid for alone in self.each])
        valid = self._values.valid(self.space._test)
        valid[[problem.too_large is not None for problem in self.problems]] = False
        return valid

    def parts(self, rows: Array) -> Iterator[tuple[ProblemSpace, int, int]]:
        """The space on each problem that some rows, ascending, are about, with the part of the rows that is."""
        starts = rows.searchsorted(np.arange(len(self.each) + 1) * len(self.space)).tolist()
        for alone, (first, last) in zip(self.each, pairwise(starts), strict=True):
            if first < last:
                yield alone, first, last

    def numbers(self, rows: Array) -> Array:
        """The problem of each row, by number."""
        return rows // len(self.space)

    def configs(self, rows: Array) -> Array:
        """The config of each row, as a row of the space; the last answer is remembered."""
        if rows is not self._configs[0]:
            self._configs = rows, rows % len(self.space)
        return self._configs[1]

    def of_rows(self, figures: Sequence[float], rows: Array) -> Array:
        """For each row the figure of its problem; figures: one for each problem."""
        return np.array(figures).take(self.numbers(rows))

    def tensor_bytes(self, rows: Array) -> dict[str, Array]:
        """The size of each tensor for each row."""
        numbers = self.numbers(rows)
        return {name: sizes.take(numbers) for name, sizes in self._tensor_bytes.items()}

    @cached_property
    def _tensor_bytes(self) -> dict[str, Array]:
        names = dict.fromkeys(name for problem in self.problems for name in problem.tensor_bytes)
        return {name: np.array([p.tensor_bytes.get(name, 0.0) for p in self.problems]) for name in names}


OnProblems = ProblemSpace | ManyProblems
"""A space on one problem or on many."""


class _ManyValues(ColumnValues):
    """The values of expressions on many problems: arrays (problems, combinations) where one problem has one row."""

    def __init__(self, columns: Columns, names: dict[str, Any], count: int) -> None:
        super().__init__(columns, names)
        self._count = count
        self._places: tuple[Array, Array] | None = None

    def column(self, expression: Expression, rows: Array | None = None) -> Any:
        """The value for each of these rows: an array, or a scalar that is valid for all."""
        assert rows is not None
        if rows is not self._rows:
            self._rows, self._spread, self._indices = rows, {}, {}
            numbers = rows // self._columns.configs.count
            self._places = numbers, rows - numbers * self._columns.configs.count
        elif expression in self._spread:
            return self._spread[expression]
        plan = self._columns.plan(expression)
        value = self._cached_value(plan)
        if value is None:
            value = self.computed(plan)
        if value.__class__ is np.ndarray:
            assert self._places is not None
            numbers, configs = self._places
            index = self._index(plan.domain, configs)
            if value.ndim == 1:
                value = value.take(index)
            else:
                across = value.shape[1]
                place: Any = numbers * across if value.shape[0] > 1 else 0
                value = value.ravel().take(place + index if across > 1 else place + np.zeros_like(numbers))
        self._spread[expression] = value
        return value

    def _index(self, domain: Domain, configs: Array) -> Array:
        """The combination of each row."""
        index = self._indices.get(domain)
        if index is None:
            index = self._indices[domain] = configs if domain.index is None else domain.index.take(configs)
        return index

    def valid(self, test: Sequence[Any]) -> Array:
        """Where every expression of a `Columns.test` is true, bool (problems, configs)."""
        mask = np.ones((self._count, self._columns.configs.count), dtype=bool)
        with np.errstate(all="ignore"):
            for plan in test:
                value = self._value(plan)
                if value.__class__ is np.ndarray:
                    truth = value if value.dtype.kind == "b" else value != 0
                    wide = truth.ndim == 0 or truth.shape[-1] == 1
                    mask &= truth if wide or plan.domain.index is None else truth.take(plan.domain.index, axis=-1)
                elif not value:
                    mask[:] = False
        return mask

    def _cached_value(self, plan: Any) -> Any:
        """The value on the plan's own domain; what other problems left behind holds for one of them alone."""
        return self._values.get(plan) if plan.dynamic else plan.value

    def _cache(self, plan: Any, value: Any) -> None:
        self._values[plan] = value
