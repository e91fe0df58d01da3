"""Expressions of a space as one flat program, which the engine executes for a problem in one call.

    expressions -> instructions over registers
                -> laid out in one array, for `Program` in engine/query/program.cpp

Values that are the same on every problem are computed while the program is made. Expressions without instructions
(`instructions`) stay with `columns` alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from kernrec.kernel.domain import Domains
from kernrec.kernel.expression import Expression
from kernrec.kernel.instructions import Maker, Node, UnsupportedError
from kernrec.util.engine import query

Array = np.ndarray

_FIELDS = 12
"""Numbers of an instruction: operation, result, combinations, index, and four operands with their steps."""


class Output:
    """Where a program leaves the value of an expression."""

    __slots__ = ("end", "index", "is_truth", "register", "scalar", "size")

    def __init__(self, register: int, index: int, size: int, is_truth: bool, scalar: bool, end: int) -> None:
        self.register = register
        self.index = index
        """Where the rows' combinations begin in the program's indexes; `NO_INDEX` or `EVERY_ROW`."""
        self.size = size
        """Number of combinations."""
        self.is_truth = is_truth
        self.scalar = scalar
        self.end = end
        """Number of instructions after which the value is there."""


class Program:
    """A space's expressions on any problem.

    Attributes:
        outputs: of each expression that is in it.
        holds_conditions: whether it holds all conditions of the conjunction.
    """

    def __init__(
        self,
        domains: Domains,
        lets: Mapping[str, Expression],
        scalars: Mapping[str, Any],
        conditions: Sequence[Expression],
        expressions: Iterable[Expression],
    ) -> None:
        """Of the rows that `domains` has, with the lets and scalars of `columns.Columns`.

        conditions: of a conjunction, which is computed first; the others are when one is asked for.
        """
        self.outputs: dict[Expression, Output] = {}
        maker = Maker(domains, lets, scalars)
        first = self._made(maker, conditions)
        tested = maker.conjunction(list(first.values())) if len(first) == len(set(conditions)) else None
        self.holds_conditions = tested is not None
        self.ends = [len(maker.code)]
        nodes = first | {e: node for e, node in self._made(maker, expressions).items() if e not in first}
        self.ends.append(len(maker.code))
        self._lay_out(maker, {e: (node, self.ends[e not in first]) for e, node in nodes.items()}, tested)

    @staticmethod
    def _made(maker: Maker, expressions: Iterable[Expression]) -> dict[Expression, Node]:
        nodes = {}
        for expression in expressions:
            try:
                nodes[expression] = maker.made(expression)
            except UnsupportedError:
                continue
        return nodes

    def _lay_out(
        self, maker: Maker, nodes: Mapping[Expression, tuple[Node, int]], tested: Sequence[Node] | None
    ) -> None:
        sizes = [maker.length(node.domain) for node in maker.registers]
        places = list(accumulate(sizes, initial=0))
        starts = list(accumulate(map(len, maker.indexes), initial=0))
        code: list[int] = []
        for operation, out, operands, number in maker.code:
            code += [operation, places[out], sizes[out], starts[number] if number >= 0 else number]
            for operand in operands:
                spread = sizes[operand] > 1 or maker.registers[operand].domain is not maker.scalar
                code += [places[operand], int(spread)]
            code += [0] * (_FIELDS - 4 - 2 * len(operands))
        initial = [
            np.broadcast_to(0 if node.fixed is None else node.fixed, (size,)).astype(np.int64)
            for node, size in zip(maker.registers, sizes, strict=True)
        ]
        self._inputs = [(name, places[node.register]) for name, node in maker.inputs.items()]
        for expression, (node, end) in nodes.items():
            index, size = maker.row_index(node.domain, starts), sizes[node.register]
            scalar = node.domain is maker.scalar
            self.outputs[expression] = Output(places[node.register], index, size, node.is_truth, scalar, end)
        truths = [figure for n in tested or () for figure in (places[n.register], maker.row_index(n.domain, starts))]
        self.in_engine = query.Program(
            np.array(code, dtype=np.int64),
            np.concatenate([np.zeros(0, np.int32), *maker.indexes]).astype(np.int32),
            np.concatenate([np.zeros(0, np.int64), *initial]),
            np.array(truths, dtype=np.int64),
            maker.configs.count,
        )

    def begin(self, names: Mapping[str, Any]) -> "Execution | None":
        """Return the program on a problem; None if a name is missing, or no 64-bit integer."""
        values = query.Execution(self.in_engine)
        try:
            for name, place in self._inputs:
                values.set(place, names[name])
        except (KeyError, TypeError):
            return None
        return Execution(self, values)


class Execution:
    """A program on one problem."""

    __slots__ = ("_done", "in_engine", "program")

    def __init__(self, program: Program, in_engine: Any) -> None:
        self.program = program
        self.in_engine = in_engine
        self._done = 0

    def reach(self, end: int) -> None:
        """Execute the instructions up to `end`, and the rest of their part."""
        if self._done < end:
            last = self.program.ends[0] if end <= self.program.ends[0] else self.program.ends[1]
            self.in_engine.run(self._done, last)
            self._done = last

    def complete(self) -> None:
        """Execute all instructions."""
        self.reach(self.program.ends[-1])

    def value(self, output: Output) -> Any:
        """Return the value of an expression on its own domain: an array, or a Python scalar."""
        self.reach(output.end)
        if output.scalar:
            value = self.in_engine.item(output.register)
            return bool(value) if output.is_truth else value
        values = np.empty(output.size, dtype=np.int64)
        self.in_engine.column(output.register, values)
        return values != 0 if output.is_truth else values

    def all_true(self, among: Array) -> Array:
        """Return the rows of a mask for which all conditions of the program are true; bool (rows,)."""
        holds = among.copy()
        self.reach(self.program.ends[0])
        self.in_engine.test(holds)
        return holds
