"""Enumerate the configs of a kernel that can run on a GPU, and evaluate the kernel's expressions for these configs.

The configs are enumerated once per kernel and GPU, one tunable at a time. A constraint is checked as soon as all
tunables that it uses have a value, so the full product of all values is never built. For a problem, only the
expressions that depend on its dimensions are evaluated, once per distinct combination of the tunables that they use.
The engine does both (`engine/query/space.cpp`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.gpu.entry import code_sm
from kernrec.kernel.expression import Expression
from kernrec.kernel.spec import LIMITS, Kernel
from kernrec.op.dtype import ELEMENT_BYTES
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.gpu import GPU, SmLimits
    from kernrec.op import Problem

_MOST_ROWS = 4_000_000
"""Maximum number of candidate configs during the enumeration. If a spec exceeds it, its constraints are too weak."""


@dataclass(frozen=True)
class Variants:
    """The distinct compiled variants of a space. Configs that differ only in run-time tunables share a variant."""

    index: np.ndarray
    """For each config of the space, the index of its variant; int64 (configs,)."""
    rows: np.ndarray
    """For each variant, the row of its first config in the space; int64 (variants,)."""
    keys: list[str]
    """Key of each variant, from `Kernel.variant_key`. If each config is a separate variant, the keys come from
    `Kernel.sample_keys`.
    """


class Space:
    """The configs of a kernel for one GPU, dtype and layout that satisfy all constraints without problem dimensions.

    Each row of the space is one config. Rows are in lexicographic order of the tunables' values in the spec.

    Raises:
        UsageError: The kernel does not support the dtype, the layout or the architecture.
    """

    @classmethod
    def of(cls, kernel: Kernel, problem: "Problem", gpu: "GPU") -> "Space":
        """Return the space of a kernel for the dtype and layout of `problem`. The problem may belong to another op, if
        it can be expressed in the kernel's op."""
        form = kernel.form(problem)
        return cls(kernel, gpu.sm, gpu.limits, form.dtype, form.layout)

    def __init__(self, kernel: Kernel, sm: int, limits: "SmLimits", dtype: str, layout: str) -> None:
        kernel.require(dtype, layout, sm)
        self.kernel = kernel
        self.sm = sm
        self.dtype = dtype
        self.layout = layout
        facts = {"dtype": dtype, "layout": layout, "dtype_bytes": ELEMENT_BYTES[dtype], "sm": code_sm(sm)}
        facts |= {name: getattr(limits, name) for name in LIMITS}
        values = {t.name: np.array(t.values, dtype=np.int64) for t in kernel.tunables}
        digits = None
        if (listed := kernel.listed) is not None:
            values |= listed.values(listed.further)
            digits = np.stack(list(listed.digits(values).values()), axis=1)
        self._values = values
        static, dynamic = self._split((*kernel.constraints, *kernel.implied), facts)
        try:
            self.in_engine = query.Space(values, digits, kernel.lets, facts, static, dynamic, _MOST_ROWS)
        except ValueError as error:
            reason = str(error)
            if reason.startswith("over"):
                reason = f"the space of {kernel.name} has {reason}; add constraints"
            raise UsageError(reason) from None
        self._count: int = self.in_engine.count

    def __len__(self) -> int:
        return self._count

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Return the value of each tunable in each row, keyed by tunable; int64 (rows,)."""
        return {
            tunable.name: self._values[tunable.name].take(self.in_engine.digits(number))
            for number, tunable in enumerate(self.kernel.tunables)
        }

    def config(self, row: int) -> dict[str, int]:
        return {name: column.item(row) for name, column in self.columns.items()}

    def find(self, configs: Sequence[Mapping[str, object]]) -> np.ndarray:
        """Return the row of each config, or -1 if the space does not contain the config; int64 (configs,)."""
        values = {tunable.name: tunable.values for tunable in self.kernel.tunables}
        digits = [(name, {v: i for i, v in enumerate(choices)}) for name, choices in values.items()]
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
        # Rows are sorted by their position in the product of all tunables' values.
        rows = np.searchsorted(self._places, places)
        inside = rows < len(self)
        inside[inside] = self._places[rows[inside]] == places[inside]
        return np.where(inside, rows, -1)

    @cached_property
    def _places(self) -> np.ndarray:
        """Return the position of each row in the product of all tunables' values; int64 (rows,), ascending."""
        place = np.zeros(len(self), dtype=np.int64)
        for number, tunable in enumerate(self.kernel.tunables):
            place = place * len(tunable.values) + self.in_engine.digits(number)
        return place

    @cached_property
    def variants(self) -> Variants:
        """Return the distinct compiled variants of the space's configs."""
        kernel = self.kernel
        fixed = sorted(kernel.compile_time_tunables)
        names = [tunable.name for tunable in kernel.tunables]
        index, rows = self.in_engine.groups([names.index(name) for name in fixed])
        values = _rows([self.columns[name][rows] for name in kernel.compile_time_tunables], len(rows))
        return Variants(index, rows, kernel.variant_keys(values, self.dtype, self.layout))

    def configs_on(self, problem: "Problem") -> Variants:
        """Return `Variants` in which each config is a separate variant, with keys from `Kernel.sample_keys`. If a
        kernel is profiled on one problem only (`Kernel.sampled`), its profiles are stored under these keys.
        """
        rows = np.arange(len(self))
        values = _rows(list(self.columns.values()), len(rows))
        return Variants(rows, rows, self.kernel.sample_keys(values, problem.key))

    def fixed(self, expression: Expression) -> bool:
        """Return whether an expression has the same value for all problems."""
        fixed: bool = self.in_engine.fixed(expression)
        return fixed

    def form(self, problem: "Problem") -> "Problem":
        """Return an equivalent problem of the kernel's op. Raises `UsageError` if its data type or layout is not that
        of the space."""
        if problem.op != self.kernel.op:
            problem = self.kernel.form(problem)
        if (problem.op, problem.dtype, problem.layout) != (self.kernel.op, self.dtype, self.layout):
            raise UsageError(
                f"problem {problem.key} does not belong to the space of {self.kernel.name} for {self.dtype}, "
                f"{self.layout}"
            )
        return problem

    def at(self, problem: "Problem") -> "ProblemSpace":
        """Return a `ProblemSpace` that evaluates the kernel's expressions on one problem and caches their values."""
        return ProblemSpace(self, problem)

    def valid(self, problem: "Problem") -> np.ndarray:
        """Return, for each row, whether the config satisfies the constraints on this problem; bool (rows,)."""
        return self.at(problem).valid

    def _split(
        self, constraints: Iterable[Expression], facts: Iterable[str]
    ) -> tuple[list[tuple[int, Expression]], list[Expression]]:
        """Return (static, dynamic). `static` has a pair (n, constraint) for each constraint that does not depend on the
        problem's dimensions: it can be checked once the kernel's first n tunables have values. `dynamic` has all other
        constraints.
        """
        place = dict.fromkeys(facts, 0) | {t.name: i for i, t in enumerate(self.kernel.tunables, 1)}
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


def _rows(columns: Sequence[np.ndarray], count: int) -> Iterable[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True) if columns else [()] * count


def arguments(problem: "Problem") -> tuple[dict[str, int | str], dict[str, float], bool, float, float]:
    """Return what the engine needs of a problem: names, bytes of each tensor, whether a tensor is too large for 32-bit
    indices, FLOPs and bytes."""
    sizes = problem.tensor_bytes, problem.too_large is not None, float(problem.flops), float(problem.bytes)
    return problem.names, *sizes


class ProblemSpace:
    """The space of a kernel on one problem. Each expression is evaluated at most once."""

    def __init__(self, space: Space, problem: "Problem") -> None:
        self.problem = space.form(problem)
        self.space = space
        self.in_engine = query.Problem(space.in_engine, *arguments(self.problem))

    def column(self, expression: Expression, rows: np.ndarray | None = None) -> Any:
        """Return the values of an expression for the configs in `rows`, or for all configs if `rows` is None. The
        result is an array, or a scalar if all values are equal. Raises `UsageError` if the problem has no value for a
        name, or an operation does not accept its operands.
        """
        try:
            value = self.in_engine.column(expression, rows)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return value != 0 if expression.is_truth else value

    @cached_property
    def valid(self) -> np.ndarray:
        """Return, for each row, whether the config satisfies the constraints on this problem; bool (rows,). If a tensor
        of the problem is too large for 32-bit indices, all elements are false.
        """
        return self.valid_among(np.ones(len(self.space), dtype=bool))

    def valid_among(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of the Boolean mask `rows` in which the elements of configs that violate a constraint on this
        problem are false.
        """
        holds = rows.copy()
        try:
            self.in_engine.test(holds)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return holds

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the rows of the configs that satisfy the problem's constraints, int64."""
        return np.flatnonzero(self.valid)
