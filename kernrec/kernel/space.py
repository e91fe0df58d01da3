"""The configs of a kernel that can run on a GPU, as columns, and its expressions on a problem.

A space is enumerated once per kernel and GPU, tunable by tunable. Each constraint is applied as soon as the tunables in
it are fixed, so that the full product of the tunables' values is never built. For a problem, only the expressions that
depend on its dimensions are evaluated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu.entry import code_sm
from kernrec.kernel.columns import Columns
from kernrec.kernel.domain import ConfigRows
from kernrec.kernel.expression import Expression
from kernrec.kernel.program import Execution
from kernrec.kernel.spec import LIMITS, Kernel
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.gpu import GPU, SmLimits
    from kernrec.op import Problem

_MOST_ROWS = 4_000_000
"""The most candidate configs at any point of the enumeration; a spec with more is missing constraints."""

_COMPILED_AT = 3
"""From this problem on a space has a flat program: making it takes as long as it gains on a few problems, so a command
that asks once is quicker without."""


@dataclass(frozen=True)
class Variants:
    """The distinct compiled variants of a space; configs that differ only in run-time tunables share a variant."""

    index: np.ndarray
    """The variant of each config, int64 (configs,)."""
    rows: np.ndarray
    """The first config of each variant, int64 (variants,)."""
    keys: list[str]
    """`Kernel.variant_key` of each variant."""


class Space:
    """All configs of a kernel for one GPU, dtype and layout that satisfy the constraints without problem dimensions.

    Rows are in lexicographic order of the spec's values.

    Raises:
        UsageError: The kernel does not support the dtype, layout or architecture.
    """

    @classmethod
    def of(cls, kernel: Kernel, problem: "Problem", gpu: "GPU") -> "Space":
        """Return the space of a kernel for problems like this one, which may be in the terms of another op."""
        form = kernel.form(problem)
        return cls(kernel, gpu.sm, gpu.limits, form.dtype, form.layout)

    def __init__(self, kernel: Kernel, sm: int, limits: "SmLimits", dtype: str, layout: str) -> None:
        kernel.require(dtype, layout, sm)
        self.kernel = kernel
        self.sm = sm
        self.dtype = dtype
        self.layout = layout
        self._facts = {"dtype": dtype, "layout": layout, "dtype_bytes": ELEMENT_BYTES[dtype], "sm": code_sm(sm)}
        self._facts |= {name: getattr(limits, name) for name in LIMITS}
        self._values = {t.name: np.array(t.values, dtype=np.int64) for t in kernel.tunables}
        static, dynamic = self._split((*kernel.constraints, *kernel.implied))
        self._columns = self._enumerate(self._values, static)
        self._test = self._columns.test(dynamic)
        self._asked = 0.0

    def __len__(self) -> int:
        return self._columns.configs.count

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The values of each tunable, int64 (rows,)."""
        columns = self._columns.configs.columns
        return {tunable.name: columns[tunable.name] for tunable in self.kernel.tunables}

    def config(self, row: int) -> dict[str, int]:
        """The config in this row."""
        return {name: column.item(row) for name, column in self.columns.items()}

    def find(self, configs: Sequence[Mapping[str, object]]) -> np.ndarray:
        """The row of each config, int64 (N,); -1 for a config that is not in this space."""
        values = self._values
        digits = [(name, {int(v): i for i, v in enumerate(choices)}) for name, choices in values.items()]
        places = np.full(len(configs), -1, dtype=np.int64)
        for number, config in enumerate(configs):
            if config.keys() == values.keys():
                place = 0
                for name, digit in digits:
                    if (position := digit.get(config[name])) is None:  # type: ignore[call-overload]
                        break
                    place = place * len(digit) + position
                else:
                    places[number] = place
        # Rows are in the order of their places in the full product.
        rows = np.searchsorted(self._places, places)
        inside = rows < len(self)
        inside[inside] = self._places[rows[inside]] == places[inside]
        return np.where(inside, rows, -1)

    @cached_property
    def _places(self) -> np.ndarray:
        """The position of each row in the product of all tunables' values, int64 (rows,), ascending."""
        configs = self._columns.configs
        place = np.zeros(len(self), dtype=np.int64)
        for name, values in self._values.items():
            place = place * len(values) + configs.digits[name]
        return place

    @cached_property
    def variants(self) -> Variants:
        """The distinct compiled variants."""
        kernel = self.kernel
        index, rows = self._columns.configs.groups(kernel.compile_time_tunables)
        values = _rows([self.columns[name][rows] for name in kernel.compile_time_tunables], len(rows))
        return Variants(index, rows, kernel.variant_keys(values, self.dtype, self.layout))

    def configs_on(self, problem: "Problem") -> Variants:
        """Each config as its own variant with a key of `Kernel.sample_keys`, for profiles of one problem."""
        rows = np.arange(len(self))
        values = _rows(list(self.columns.values()), len(rows))
        return Variants(rows, rows, self.kernel.sample_keys(values, problem.key))

    def ask(self, problems: float = 1.0) -> None:
        """Counts problems that are asked about, and makes the flat program from that on from which it pays."""
        before, self._asked = self._asked, self._asked + problems
        if before < _COMPILED_AT <= self._asked and not self.kernel.sampled:
            self._columns.compile(self._test, self.kernel.launch_expressions)

    @property
    def in_engine(self) -> bool:
        """Whether the engine evaluates the constraints of problems."""
        return self._columns.program is not None and self._columns.tested is self._test

    def fixed(self, expression: Expression) -> bool:
        """Whether an expression has the same values on every problem."""
        return not self._columns.plan(expression).dynamic

    def at(self, problem: "Problem") -> "ProblemSpace":
        """This space on a problem; the returned object caches what it evaluates."""
        return ProblemSpace(self, problem)

    def valid(self, problem: "Problem") -> np.ndarray:
        """Which configs satisfy the constraints that depend on the problem, bool (rows,)."""
        return self.at(problem).valid

    def _split(self, constraints: Iterable[Expression]) -> tuple[list[tuple[int, Expression]], list[Expression]]:
        """Constraints without problem dimensions, with how many tunables to fix before each, and the others."""
        place = dict.fromkeys(self._facts, 0) | {t.name: i for i, t in enumerate(self.kernel.tunables, 1)}
        listed = self.kernel.listed
        place |= dict.fromkeys(listed.further if listed else (), len(self.kernel.tunables))
        for name, let in self.kernel.lets.items():
            if let.names <= place.keys():
                place[name] = max((place[used] for used in let.names), default=0)
        static, dynamic = [], []
        for constraint in dict.fromkeys(constraints):
            if constraint.names <= place.keys():
                static.append((max((place[used] for used in constraint.names), default=0), constraint))
            else:
                dynamic.append(constraint)
        return static, dynamic

    def _enumerate(self, values: Mapping[str, np.ndarray], static: list[tuple[int, Expression]]) -> Columns:
        if (listed := self.kernel.listed) is not None:
            values = {**values, **listed.values(listed.further)}
            configs = ConfigRows(len(listed.rows), values, listed.digits(values))
            columns = Columns(configs, self.kernel.lets, self._facts)
            test = columns.test(constraint for _, constraint in static)
            configs = configs.take(np.flatnonzero(columns.at({}).all_true(test)))
            return Columns(configs, self.kernel.lets, self._facts)
        configs = ConfigRows(1, values, {})
        for fixed, name in enumerate((None, *values)):
            if name is not None:
                if configs.count * len(values[name]) > _MOST_ROWS:
                    raise UsageError(
                        f"the space of {self.kernel.name} has over {_MOST_ROWS} configs already at {name}; "
                        "add constraints"
                    )
                configs = configs.with_tunable(name)
            if decided := [constraint for place, constraint in static if place == fixed]:
                columns = Columns(configs, self.kernel.lets, self._facts)
                configs = configs.take(np.flatnonzero(columns.at({}).all_true(columns.test(decided))))
        return Columns(configs, self.kernel.lets, self._facts)


def _rows(columns: Sequence[np.ndarray], count: int) -> Iterable[tuple[int, ...]]:
    """The values of each of `count` rows, one of each column; without columns they are empty."""
    return zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * count


class ProblemSpace:
    """A space on one problem; each expression is evaluated at most once, for the requested rows."""

    def __init__(self, space: Space, problem: "Problem") -> None:
        problem = space.kernel.form(problem)
        if (problem.op, problem.dtype, problem.layout) != (space.kernel.op, space.dtype, space.layout):
            raise UsageError(
                f"problem {problem.key} does not belong to the space of {space.kernel.name} for {space.dtype}, "
                f"{space.layout}"
            )
        self.problem = problem
        self.space = space
        self._values = space._columns.at(problem.names)
        self._asked = False
        self.column = self._values.column
        """An expression of the kernel for these rows (None: all)."""

    @property
    def execution(self) -> Execution | None:
        """The flat program of the space on the problem; None where it has none yet."""
        return self._values.execution

    @cached_property
    def valid(self) -> np.ndarray:
        """Which configs satisfy the constraints that depend on the problem, bool (rows,); none where a tensor is too
        large for 32-bit indices."""
        return self.valid_among(None)

    def valid_among(self, rows: np.ndarray | None) -> np.ndarray:
        """The rows of a mask that are `valid`; None: all."""
        if self.problem.too_large:
            return np.zeros(len(self.space), dtype=bool)
        if not self._asked:
            self._asked = True
            self.space.ask()
        return self._values.all_true(self.space._test, rows)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row numbers of the valid configs, int64."""
        return np.flatnonzero(self.valid)

    @property
    def problems(self) -> "tuple[Problem, ...]":
        """The problem."""
        return (self.problem,)

    def configs(self, rows: np.ndarray) -> np.ndarray:
        """The config of each row, as a row of the space: the same, on one problem."""
        return rows

    def parts(self, rows: np.ndarray) -> "Iterator[tuple[ProblemSpace, int, int]]":
        """The space on each problem, with the part of the rows that is about it: all of them, on one problem."""
        yield self, 0, len(rows)

    def of_rows(self, figures: Sequence[float], rows: np.ndarray) -> float:
        """The figure of the problem, the same for all rows."""
        return figures[0]

    def tensor_bytes(self, rows: np.ndarray) -> dict[str, float]:
        """The size of each tensor, the same for all rows."""
        return self.problem.tensor_bytes
