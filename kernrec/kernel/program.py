"""Expressions of a space as one flat program, which `core.run` executes for a problem in one call.

    expressions -> instructions over registers
                -> laid out for the form of the core that runs

Values that are the same on every problem are computed while the program is made. Expressions without instructions
(`instructions`) stay with `columns` alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.kernel.core import FIELDS
from kernrec.kernel.domain import Domains
from kernrec.kernel.expression import Expression
from kernrec.kernel.instructions import Maker, Node, UnsupportedError
from kernrec.util.compiled import Core, core

Array = np.ndarray


class Output:
    """Where a program leaves the value of an expression."""

    __slots__ = ("end", "index", "is_truth", "register", "scalar", "start", "stop")

    def __init__(self, register: int, index: int, is_truth: bool, scalar: bool, end: int) -> None:
        self.register = register
        self.index = index
        """Of the row's combination in `Program.indexes`, as `arithmetic.gather` takes it."""
        self.is_truth = is_truth
        self.scalar = scalar
        self.end = end
        """The number of instructions after which it is there."""
        self.start = self.stop = 0
        """Its part of the values."""


class Program:
    """A space's expressions on any problem.

    Attributes:
        outputs: of each expression that is in it.
        truths: the conjunction of the conditions as `core.conjunction` takes it; None where it does not hold them all.
        indexes: combinations of rows, and of combinations of more tunables, one index after the other, int32.
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
        self.form: Core = core("kernrec.kernel")
        self.outputs: dict[Expression, Output] = {}
        maker = Maker(domains, lets, scalars)
        first = self._made(maker, conditions)
        tested = maker.conjunction(list(first.values())) if len(first) == len(set(conditions)) else None
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
        compiled = self.form.compiled
        places, sizes = [0], [maker.length(node.domain) for node in maker.registers]
        for size in sizes:
            places.append(places[-1] + (size if compiled else 1))
        starts = [0]
        for index in maker.indexes:
            starts.append(starts[-1] + (len(index) if compiled else 1))
        code: list[int] = []
        for operation, out, operands, number in maker.code:
            count = sizes[out] if compiled else 1
            code += [operation, places[out], count, starts[number] if number >= 0 else number]
            for operand in operands:
                code += [
                    places[operand],
                    int(sizes[operand] > 1 or maker.registers[operand].domain is not maker.scalar),
                ]
            code += [0] * (FIELDS - 4 - 2 * len(operands))
        self._code: Any = np.array(code, dtype=np.int64) if compiled else code
        self.indexes: Any = (
            np.concatenate([np.zeros(0, np.int32), *maker.indexes]).astype(np.int32) if compiled else maker.indexes
        )
        initial: list[Any] = []
        for node, size in zip(maker.registers, sizes, strict=True):
            value = 0 if node.fixed is None else node.fixed
            initial.append(np.broadcast_to(value, (size,)).astype(np.int64) if compiled else value)
        self._initial: Any = np.concatenate(initial) if compiled else initial
        self._inputs = [(name, places[node.register]) for name, node in maker.inputs.items()]
        for expression, (node, end) in nodes.items():
            output = Output(
                places[node.register], maker.row_index(node.domain, starts), node.is_truth,
                node.domain is maker.scalar, end,
            )  # fmt: skip
            output.start, output.stop = output.register, output.register + sizes[node.register]
            self.outputs[expression] = output
        self.truths: Any = None
        if tested is not None:
            truths = [number for n in tested for number in (places[n.register], maker.row_index(n.domain, starts))]
            self.truths = np.array(truths, dtype=np.int64) if compiled else truths

    def begin(self, names: Mapping[str, Any]) -> "Execution | None":
        """The program on a problem; None where a name is missing, or no 64-bit integer."""
        values = self._initial.copy()
        try:
            # Numbers go into a view quicker than into an array.
            registers = memoryview(values) if self.form.compiled else values
            for name, place in self._inputs:
                registers[place] = names[name]
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
        return Execution(self, values)


class Execution:
    """A program on one problem."""

    __slots__ = ("_done", "program", "values")

    def __init__(self, program: Program, values: Any) -> None:
        self.program = program
        self.values = values
        """The registers, as `core.run` takes them."""
        self._done = 0

    def reach(self, end: int) -> None:
        """Executes as many instructions, and those of their part."""
        program, done = self.program, self._done
        if done < end:
            end = next(part for part in program.ends if part >= end)
            if program.form.compiled:
                program.form.functions.run(program._code, done, end, self.values, program.indexes)
            else:
                with np.errstate(all="ignore"):
                    program.form.functions.run(program._code, done, end, self.values, program.indexes)
            self._done = end

    def complete(self) -> None:
        """Executes all of the program."""
        self.reach(self.program.ends[-1])

    def value(self, output: Output) -> Any:
        """The value of an expression on its own domain: an array, or a Python scalar."""
        self.reach(output.end)
        if not self.program.form.compiled:
            return self.values[output.register]
        if output.scalar:
            value = self.values.item(output.register)
            return bool(value) if output.is_truth else value
        value = self.values[output.start : output.stop]
        return value != 0 if output.is_truth else value

    def all_true(self, among: Array) -> Array:
        """The rows of a mask for which all conditions of the program are true; bool (rows,)."""
        program, holds = self.program, among.copy()
        self.reach(program.ends[0])
        if program.form.compiled:
            program.form.functions.conjunction(program.truths, self.values, program.indexes, holds.view(np.uint8))
            return holds
        column = [holds]
        program.form.functions.conjunction(program.truths, self.values, program.indexes, column)
        return column[0]
