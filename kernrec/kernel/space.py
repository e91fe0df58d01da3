"""Enumerate the configs of a kernel that can run on a GPU, and evaluate the kernel's expressions for them.

Configs are enumerated one tunable at a time, and constraints are checked as early as possible. The engine does both
(`engine/query/space.cpp`).
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
from kernrec.op.problem import LARGEST
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

if TYPE_CHECKING:
    from kernrec.gpu import GPU, SmLimits
    from kernrec.op import Problem

_MOST_ROWS = 4_000_000
"""Maximum number of candidate configs. A spec that exceeds it needs more constraints."""


@dataclass(frozen=True)
class Variants:
    """Compiled variants of a space. Configs that differ only in run-time tunables share a variant."""

    index: np.ndarray
    """Index of each config's variant, as int64 of shape (configs,)."""
    rows: np.ndarray
    """Row of the first config of each variant, as int64 of shape (variants,)."""
    keys: list[str]
    """Key of each variant (`Kernel.variant_key`, or `Kernel.sample_keys` for kernels profiled on one problem)."""


class Space:
    """Configs of a kernel for one GPU, dtype and layout. Constraints on a problem's dimensions are not applied yet.

    Each row is one config, in lexicographic order of the tunables' values in the spec.

    Raises:
        UsageError: the kernel does not support the dtype, the layout or the architecture.
    """

    @classmethod
    def of(cls, kernel: Kernel, problem: "Problem", gpu: "GPU") -> "Space":
        """Return the space for a problem's dtype and layout. Raise `UsageError` if the op does not fit the problem."""
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
        self.in_engine.config_names = [tunable.name for tunable in kernel.tunables]
        self._count: int = self.in_engine.count

    def __len__(self) -> int:
        return self._count

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Return the values of each tunable as int64 arrays of shape (rows,)."""
        return {
            tunable.name: self._values[tunable.name].take(self.in_engine.digits(number))
            for number, tunable in enumerate(self.kernel.tunables)
        }

    def config(self, row: int) -> dict[str, int]:
        config: dict[str, int] = self.in_engine.config(row)
        return config

    def find(self, configs: Sequence[Mapping[str, object]]) -> np.ndarray:
        """Return the row of each config as int64. Missing configs have row -1."""
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
        rows = np.searchsorted(self._places, places)
        inside = rows < len(self)
        inside[inside] = self._places[rows[inside]] == places[inside]
        return np.where(inside, rows, -1)

    @cached_property
    def _places(self) -> np.ndarray:
        """Return each row's position among all combinations of the tunables' values, as ascending int64."""
        place = np.zeros(len(self), dtype=np.int64)
        for number, tunable in enumerate(self.kernel.tunables):
            place = place * len(tunable.values) + self.in_engine.digits(number)
        return place

    @cached_property
    def variants(self) -> Variants:
        kernel = self.kernel
        fixed = sorted(kernel.compile_time_tunables)
        names = [tunable.name for tunable in kernel.tunables]
        index, rows = self.in_engine.groups([names.index(name) for name in fixed])
        values = _rows([self.columns[name][rows] for name in kernel.compile_time_tunables], len(rows))
        return Variants(index, rows, kernel.variant_keys(values, self.dtype, self.layout))

    def configs_on(self, problem: "Problem") -> Variants:
        """Return each config as a separate variant, because the kernel's profiles are valid only for `problem`."""
        rows = np.arange(len(self))
        values = _rows(list(self.columns.values()), len(rows))
        return Variants(rows, rows, self.kernel.sample_keys(values, problem.key))

    def fixed(self, expression: Expression) -> bool:
        fixed: bool = self.in_engine.fixed(expression)
        return fixed

    def form(self, problem: "Problem") -> "Problem":
        """Convert a problem to the kernel's op. Raise `UsageError` if the space has another dtype or layout."""
        if problem.op != self.kernel.op:
            problem = self.kernel.form(problem)
        if (problem.op, problem.dtype, problem.layout) != (self.kernel.op, self.dtype, self.layout):
            raise UsageError(
                f"problem {problem.key} does not belong to the space of {self.kernel.name} for {self.dtype}, "
                f"{self.layout}"
            )
        return problem

    def at(self, problem: "Problem") -> "ProblemSpace":
        """Return the space's configs on one problem."""
        return ProblemSpace(self, problem)

    def _split(
        self, constraints: Iterable[Expression], facts: Iterable[str]
    ) -> tuple[list[tuple[int, Expression]], list[Expression]]:
        """Divide constraints into static constraints and constraints that depend on the problem's dimensions.

        A static constraint is (n, constraint): it can be checked once the first n tunables have values.
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
    """Return a problem as (names, bytes by tensor, whether indices need 64 bits, FLOPs, minimum bytes of traffic)."""
    tensor_bytes, moved, largest = problem.traffic
    return problem.names, tensor_bytes, largest > LARGEST, float(problem.flops), float(moved)


class ProblemSpace:
    """Space of a kernel on one problem. The results of expressions are cached."""

    def __init__(self, space: Space, problem: "Problem") -> None:
        self.problem = space.form(problem)
        self.space = space
        self.in_engine = query.Problem(space.in_engine, *arguments(self.problem))

    def column(self, expression: Expression, rows: np.ndarray | None = None) -> Any:
        """Return an expression's values for the configs in `rows` (default: all), or a scalar if they are equal."""
        try:
            value = self.in_engine.column(expression, rows)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return value != 0 if expression.is_truth else value

    @cached_property
    def valid(self) -> np.ndarray:
        """Return which configs can run, as an array of shape (rows,). All are False if a tensor is too large."""
        return self.valid_among(np.ones(len(self.space), dtype=bool))

    def valid_among(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of the Boolean mask `rows` that is False for configs that violate a constraint."""
        holds = rows.copy()
        try:
            self.in_engine.test(holds)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return holds

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the indices of the configs that can run on this problem, as ascending int64."""
        return np.flatnonzero(self.valid)
