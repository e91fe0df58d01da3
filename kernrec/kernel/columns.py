"""Expressions over many configs at once, each evaluated only on the distinct values that it depends on.

`ceil_div(m, block_m)` over 3,000 configs has only as many distinct values as `block_m`: four. Every expression is
therefore evaluated on the distinct combinations of the tunables that it depends on (its *domain*) and expanded to the
configs last. Without tunables it stays a scalar; without problem dimensions it is evaluated once for all problems. Most
expressions depend on one or two dimensions that the layers of a network share, so short results are cached.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np

from kernrec.errors import UsageError
from kernrec.kernel.domain import ConfigRows, Domain, Domains
from kernrec.kernel.expression import Expression
from kernrec.kernel.program import Execution, Output, Program

_SHORT, _CACHED = 256, 32
"""The most values in a result that is cached for other problems, and the most cached results per expression."""


class _Plan:
    """How to evaluate one expression: on which domain, and whether again for each problem."""

    __slots__ = ("asks", "cached", "domain", "dynamic", "expression", "output", "sufficient", "support", "value")

    def __init__(self, expression: Expression | None, support: frozenset[str], domain: Domain) -> None:
        self.expression = expression
        self.support = support  # tunables that it depends on
        self.domain = domain
        self.dynamic = False  # whether it depends on the problem
        self.sufficient: _Plan | None = None  # a cheaper condition; where it is true, this one is true
        self.value: Any = None  # on the domain; only where not dynamic
        self.asks: tuple[str, ...] = ()  # the problem's names that it depends on
        self.output: Output | None = None  # where the flat program of the space leaves it
        self.cached: dict[tuple[Any, ...], Any] = {}  # cached values, by the values of `asks`


class Columns:
    """The expressions over rows of configs.

    Args:
        configs: The rows.
        lets: Named expressions that other expressions may use.
        scalars: Names with one value for all rows and problems. All other names are the problem's; `at` gives them.
    """

    def __init__(self, configs: ConfigRows, lets: Mapping[str, Expression], scalars: Mapping[str, Any]) -> None:
        self.configs = configs
        self.lets = lets
        self.scalars = scalars
        self.domains = Domains(configs)
        self.program: Program | None = None
        self.tested: Sequence[_Plan] | None = None
        """The conjunction that the program tests."""
        self._plans: dict[Expression, _Plan] = {}
        self._tunables: dict[str, _Plan] = {}

    def plan(self, expression: Expression) -> _Plan:
        plan = self._plans.get(expression)
        if plan is None:
            plan = self._plans[expression] = self._make_plan(expression)
        return plan

    def test(self, expressions: Iterable[Expression]) -> tuple[_Plan, ...]:
        """The plans of a conjunction of expressions, for `ColumnValues.all_true`."""
        # Row-independent expressions first: if one is false, the others are not evaluated.
        planned = [self.plan(expression) for expression in expressions]
        return tuple(sorted(planned, key=lambda plan: plan.domain is not self.domains.scalar))

    def _input(self, name: str) -> _Plan | None:
        """The plan of a name; None for a name of the problem."""
        if name in self.configs.digits:
            if name not in self._tunables:
                support = frozenset((name,))
                plan = _Plan(None, support, self.domains.of(support))
                column = self.configs.columns[name]
                plan.value = column if plan.domain.first is None else column[plan.domain.first]
                self._tunables[name] = plan
            return self._tunables[name]
        if name in self.lets:
            return self.plan(self.lets[name])
        if name in self.scalars:
            plan = _Plan(None, frozenset(), self.domains.scalar)
            plan.value = self.scalars[name]
            return plan
        return None

    def _make_plan(self, expression: Expression) -> _Plan:
        inputs = {name: self._input(name) for name in expression.names}
        support = frozenset[str]().union(*(plan.support for plan in inputs.values() if plan))
        plan = _Plan(expression, support, self.domains.of(support))
        asks: dict[str, None] = {}
        for name, source in inputs.items():
            if source is None:
                plan.dynamic = True
                asks[name] = None
                continue
            embedding = None if source.domain is plan.domain else source.domain.embedded_in(plan.domain)
            if source.dynamic:
                plan.dynamic = True
                plan.domain.lets[name] = source, embedding
                asks |= dict.fromkeys(source.asks)
            else:
                plan.domain.names[name] = _spread(source.value, embedding)
        plan.asks = tuple(asks)
        if not plan.dynamic:
            plan.value = self.at({}).computed(plan)
        elif expression.sufficient is not None:
            plan.sufficient = self.plan(expression.sufficient)
        return plan

    def compile(self, test: Sequence[_Plan], expressions: Iterable[Expression]) -> None:
        """Makes the flat program of a conjunction that is tested first, and of other expressions.

        From then on `at` executes it; expressions that it cannot hold, and others, are evaluated one by one.
        """
        conditions = [plan.expression for plan in test if plan.expression is not None]
        program = Program(self.domains, self.lets, self.scalars, conditions, expressions)
        for expression, output in program.outputs.items():
            self.plan(expression).output = output
        self.tested = test if program.holds_conditions else None
        self.program = program

    def at(self, names: Mapping[str, Any]) -> "ColumnValues":
        """The values of expressions for these (scalar) values of the problem's names."""
        return ColumnValues(self, names)


class ColumnValues:
    """The values of expressions on one problem, each computed once."""

    def __init__(self, columns: Columns, names: Mapping[str, Any]) -> None:
        self._columns = columns
        self.names = names
        self._values: dict[_Plan, Any] = {}
        self._names_on: dict[Domain, _Names] = {}
        self._rows: np.ndarray | None = None
        self._spread: dict[Expression, Any] = {}
        self._indices: dict[Domain, np.ndarray | None] = {}
        self._execution: Execution | None = None

    @property
    def execution(self) -> Execution | None:
        """The flat program on the problem; None where there is none, or it does not hold the problem's names."""
        if self._execution is None and self._columns.program is not None:
            self._execution = self._columns.program.begin(self.names)
        return self._execution

    def column(self, expression: Expression, rows: np.ndarray | None = None) -> Any:
        """The value for each row, or for each of the row numbers `rows`: an array, or a scalar that is valid for all.

        Columns are cached while `rows` stays the same object; callers must not modify them.
        """
        if rows is not self._rows:
            self._rows, self._spread, self._indices = rows, {}, {}
        elif expression in self._spread:
            return self._spread[expression]
        plan = self._columns.plan(expression)
        value = self._cached_value(plan)
        if value is None:
            value = self.computed(plan)
        if value.__class__ is np.ndarray:
            domain = plan.domain
            if domain not in self._indices:
                self._indices[domain] = (
                    domain.index if rows is None else rows if domain.index is None else domain.index.take(rows)
                )
            index = self._indices[domain]
            value = value if index is None else value.take(index)
        self._spread[expression] = value
        return value

    def all_true(self, test: Sequence[_Plan], among: np.ndarray | None = None) -> np.ndarray:
        """The rows for which every expression of a `Columns.test` is true, bool (rows,); among: the only rows."""
        if self._columns.tested is test and (execution := self.execution) is not None:
            return execution.all_true(np.ones(self._columns.configs.count, dtype=bool) if among is None else among)
        mask = self._all_true(test)
        return mask if among is None else mask & among

    def _all_true(self, test: Sequence[_Plan]) -> np.ndarray:
        """As `all_true`, of all rows, from the expressions one by one."""
        by_domain: dict[Domain, np.ndarray] = {}
        with np.errstate(all="ignore"):
            for plan in test:
                if plan.sufficient is not None and _holds(self._value(plan.sufficient)):
                    continue
                value = self._value(plan)
                if value.__class__ is np.ndarray:
                    truth = value if value.dtype.kind == "b" else value != 0
                    domain = plan.domain
                    by_domain[domain] = by_domain[domain] & truth if domain in by_domain else truth
                elif not value:
                    return np.zeros(self._columns.configs.count, dtype=bool)
        masks = [truth if domain.index is None else truth.take(domain.index) for domain, truth in by_domain.items()]
        if not masks:
            return np.ones(self._columns.configs.count, dtype=bool)
        mask = masks[0] if len(masks) == 1 else masks[0] & masks[1]
        for other in masks[2:]:
            mask &= other
        return mask

    def computed(self, plan: _Plan) -> Any:
        """The value on the plan's own domain, computed even where it is cached."""
        with np.errstate(all="ignore"):
            return self._computed(plan)

    def _value(self, plan: _Plan) -> Any:
        """The value on the plan's own domain. Callers silence NumPy's warnings, which takes as long as an operation."""
        value = self._cached_value(plan)
        return self._computed(plan) if value is None else value

    def _cached_value(self, plan: _Plan) -> Any:
        """The value on the plan's own domain; None where it has to be computed."""
        if not plan.dynamic:
            return plan.value
        value = self._values.get(plan)
        if value is None:
            if plan.output is not None and (execution := self.execution) is not None:
                value = self._values[plan] = execution.value(plan.output)
            else:
                value = plan.cached.get(tuple(map(self.names.get, plan.asks)))
        return value

    def _computed(self, plan: _Plan) -> Any:
        domain = plan.domain
        names = self._names_on.get(domain)
        if names is None:
            names = self._names_on[domain] = _Names(self, domain)
        expression: Expression = plan.expression  # type: ignore[assignment]
        try:
            value = expression.run(names)
        except KeyError as error:
            raise UsageError(f"expression {expression.text!r} needs {error.args[0]}") from None
        except (TypeError, ValueError) as error:
            raise UsageError(f"expression {expression.text!r}: {error}") from None
        self._cache(plan, value)
        return value

    def _cache(self, plan: _Plan, value: Any) -> None:
        """Remember a value for this problem, and a short one for others with the same dimensions."""
        self._values[plan] = value
        if plan.dynamic and (value.__class__ is not np.ndarray or len(value) <= _SHORT):
            if len(plan.cached) >= _CACHED:
                plan.cached.clear()
            plan.cached[tuple(map(self.names.get, plan.asks))] = value


class _Names(dict[str, Any]):
    """The names of expressions on one domain and problem; a let is evaluated when it is first used."""

    def __init__(self, evaluation: ColumnValues, domain: Domain) -> None:
        super().__init__({**evaluation.names, **domain.names})
        self._evaluation = ref(evaluation)  # weak, because the evaluation refers to these names: no reference cycle
        self._domain = domain

    def __missing__(self, name: str) -> Any:
        domain = self._domain
        if (let := domain.lets.get(name)) is None:
            return domain.names[name]  # of an expression that was planned after this was made
        source, embedding = let
        evaluation: ColumnValues = self._evaluation()  # type: ignore[assignment]
        value = self[name] = _spread(evaluation._value(source), embedding)
        return value


def _holds(value: Any) -> bool:
    """Whether a condition is true everywhere."""
    return bool(value.all() if value.__class__ is np.ndarray else value)


def _spread(value: Any, embedding: np.ndarray | None) -> Any:
    if value.__class__ is not np.ndarray:
        return int(value) if value.__class__ is bool else value
    if value.dtype.kind == "b":
        value = value.astype(np.int64)
    return value if embedding is None else value.take(embedding, axis=-1)
