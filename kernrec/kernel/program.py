"""Expressions of a space as one flat program, which `core.run` executes for a problem in one call.

    expressions -> instructions over registers (each subexpression once, on the combinations of its own tunables)
                -> laid out for the form of the core that runs

Values that are the same on every problem are computed while the program is made. Programs are of 64-bit integers and
truth values; an expression with a division into fractions, or one that compares the problem's text, stays with
`columns` alone.
"""

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from kernrec.kernel import arithmetic
from kernrec.kernel.domain import Domain, Domains
from kernrec.kernel.expression import Expression
from kernrec.util.compiled import Core, core

Array = np.ndarray

_NUMBERED = (
    "multiply", "ceil_div", "gather", "add", "subtract", "floor_divide", "modulo", "equal", "less", "less_equal",
    "both", "either", "negation", "choose", "minimum", "maximum", "truth", "as_integer", "power", "absolute", "log2",
    "power_of_two", "magic_mul", "magic_shift", "floor_sum",
)  # fmt: skip
"""Operations, in the order of their numbers in `core`."""
_TRUTHS = frozenset({"equal", "less", "less_equal", "both", "either", "negation", "truth", "power_of_two"})
_FIELDS = 12
_NO_INDEX, _EVERY_ROW = -1, -2
"""Indexes of a register with one value for all rows, and of one with a value for each row."""

_BINARY = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.FloorDiv: "floor_divide", ast.Mod: "modulo",
    ast.Pow: "power",
}  # fmt: skip
_FUNCTIONS = {"min": "minimum", "max": "maximum", "abs": "absolute"}


class _UnsupportedError(Exception):
    """An expression that no program holds."""


class _Node:
    """A value of the program: one for each combination of a domain."""

    __slots__ = ("domain", "fixed", "is_truth", "register", "support")

    def __init__(self, domain: Domain, support: frozenset[str], is_truth: bool, fixed: Any = None) -> None:
        self.domain = domain
        self.support = support
        self.is_truth = is_truth
        self.fixed = fixed  # the value, where it is the same on every problem
        self.register = -1


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
        indexes: combinations of rows, and of combinations of more tunables, one index after the other, int32.
    """

    def __init__(
        self,
        domains: Domains,
        lets: Mapping[str, Expression],
        scalars: Mapping[str, Any],
        expressions: Sequence[Iterable[Expression]],
    ) -> None:
        """Of the rows that `domains` has, with the lets and scalars of `columns.Columns`.

        expressions: in parts, of which a later one is computed when it is asked for; a part stands together.
        """
        self.form: Core = core("kernrec.kernel")
        self.outputs: dict[Expression, Output] = {}
        self._inputs: dict[str, int] = {}
        maker = _Maker(domains, lets, scalars)
        ends = []
        nodes: dict[Expression, tuple[_Node, int]] = {}
        for part in expressions:
            for expression in part:
                try:
                    nodes[expression] = maker.made(expression), 0
                except _UnsupportedError:
                    continue
            ends.append(len(maker.code))
            nodes = {e: (node, end or ends[-1]) for e, (node, end) in nodes.items()}
        self.ends = ends
        self._lay_out(maker, nodes)

    def _lay_out(self, maker: "_Maker", nodes: Mapping[Expression, tuple[_Node, int]]) -> None:
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
            code += [0] * (_FIELDS - 4 - 2 * len(operands))
        self._code: Any = np.array(code, dtype=np.int64) if compiled else code
        self.indexes: Any = (
            np.concatenate([np.zeros(0, np.int32), *maker.indexes]).astype(np.int32) if compiled else maker.indexes
        )
        initial: list[Any] = []
        for node, size in zip(maker.registers, sizes, strict=True):
            value = 0 if node.fixed is None else node.fixed
            initial.append(np.broadcast_to(value, (size,)).astype(np.int64) if compiled else value)
        self._initial: Any = np.concatenate(initial) if compiled else initial
        self._inputs = {name: places[node.register] for name, node in maker.inputs.items()}
        for expression, (node, end) in nodes.items():
            output = Output(
                places[node.register], maker.row_index(node.domain, starts), node.is_truth,
                node.domain is maker.scalar, end,
            )  # fmt: skip
            output.start, output.stop = output.register, output.register + sizes[node.register]
            self.outputs[expression] = output

    def begin(self, names: Mapping[str, Any]) -> "Execution | None":
        """The program on a problem; None where a name is missing, or no 64-bit integer."""
        values = self._initial.copy()
        try:
            for name, place in self._inputs.items():
                values[place] = names[name]
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
        return Execution(self, values)

    def truths(self, conditions: Sequence[Output | None]) -> Any:
        """Conditions as `core.conjunction` takes them; None where the program has not all of them in its first part."""
        numbers: list[int] = []
        for output in conditions:
            if output is None or output.end > self.ends[0]:
                return None
            numbers += [output.register, output.index]
        return np.array(numbers, dtype=np.int64) if self.form.compiled else numbers


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

    def all_true(self, truths: Any, rows: int) -> Array:
        """The rows for which conditions of `Program.truths`, all of the first part, are true; bool (rows,)."""
        program = self.program
        self.reach(program.ends[0])
        holds = np.ones(rows, dtype=bool)
        if program.form.compiled:
            program.form.functions.conjunction(truths, self.values, program.indexes, holds.view(np.uint8))
            return holds
        column = [holds]
        program.form.functions.conjunction(truths, self.values, program.indexes, column)
        return column[0]


class _Maker:
    """The instructions of expressions."""

    def __init__(self, domains: Domains, lets: Mapping[str, Expression], scalars: Mapping[str, Any]) -> None:
        self.domains, self.configs = domains, domains.configs
        self.lets, self.scalars = lets, scalars
        self.scalar = domains.scalar
        self.code: list[tuple[int, int, list[int], int]] = []
        self.registers: list[_Node] = []
        self.inputs: dict[str, _Node] = {}
        self.indexes: list[Array] = []
        self._numbers = {name: number for number, name in enumerate(_NUMBERED)}
        self._index_of: dict[tuple[Domain, Domain | None], int] = {}
        self._made: dict[Any, _Node] = {}

    def made(self, expression: Expression) -> _Node:
        """The node of an expression, in a register."""
        node = self._expression(expression)
        if isinstance(node.fixed, str):
            raise _UnsupportedError
        self._place(node)
        if node.domain is not self.scalar and node.domain.index is not None:
            self._index(node.domain, None)
        return node

    def length(self, domain: Domain) -> int:
        """How many combinations a domain has."""
        if domain is self.scalar:
            return 1
        return self.configs.count if domain.first is None else len(domain.first)

    def row_index(self, domain: Domain, starts: Sequence[int]) -> int:
        """The index by which a register is spread over rows."""
        if domain is self.scalar:
            return _NO_INDEX
        if domain.index is None:
            return _EVERY_ROW
        return starts[self._index_of[domain, None]]

    def _expression(self, expression: Expression) -> _Node:
        if expression not in self._made:
            self._made[expression] = self._node(ast.parse(_flat(expression.text), mode="eval").body)
        return self._made[expression]

    def _place(self, node: _Node) -> int:
        if node.register < 0:
            node.register = len(self.registers)
            self.registers.append(node)
        return node.register

    def _index(self, domain: Domain, inside: Domain | None) -> int:
        """The number of the index from the combinations of `inside`, or from rows, to those of a domain."""
        key = domain, inside
        if key not in self._index_of:
            index = domain.index if inside is None else domain.embedded_in(inside)
            assert index is not None
            self._index_of[key] = len(self.indexes)
            self.indexes.append(index.astype(np.int32))
        return self._index_of[key]

    def _name(self, name: str) -> _Node:
        if name in self.configs.digits:
            support = frozenset((name,))
            domain = self.domains.of(support)
            column = self.configs.columns[name]
            return _Node(domain, support, False, column if domain.first is None else column[domain.first])
        if name in self.lets:
            return self._as_number(self._expression(self.lets[name]))
        if name in self.scalars:
            return self._constant(self.scalars[name])
        if name not in self.inputs:
            self.inputs[name] = _Node(self.scalar, frozenset(), False)
            self._place(self.inputs[name])
        return self.inputs[name]

    def _constant(self, value: Any) -> _Node:
        if value.__class__ not in (int, bool, str):
            raise _UnsupportedError
        value = int(value) if value.__class__ is bool else value
        if ("constant", value) not in self._made:
            self._made["constant", value] = _Node(self.scalar, frozenset(), False, value)
        return self._made["constant", value]

    def _node(self, node: ast.expr) -> _Node:
        if not isinstance(node, ast.Name):
            return self._parsed(node)
        if ("name", node.id) not in self._made:
            self._made["name", node.id] = self._name(node.id)
        return self._made["name", node.id]

    def _parsed(self, node: ast.expr) -> _Node:
        match node:
            case ast.Constant(value=value):
                return self._constant(value)
            case ast.BinOp(left=left, op=operator, right=right):
                if operator.__class__ not in _BINARY:
                    raise _UnsupportedError
                return self._apply(_BINARY[operator.__class__], self._number(left), self._number(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply("subtract", self._constant(0), self._number(operand))
            case ast.UnaryOp(operand=operand):
                return self._apply("negation", self._node(operand))
            case ast.BoolOp(op=logic, values=operands):
                operation = "both" if isinstance(logic, ast.And) else "either"
                return reduce(lambda a, b: self._apply(operation, a, b), [self._truth(each) for each in operands])
            case ast.Compare(left=first, ops=operators, comparators=others):
                return self._comparison(operators, [self._number(each) for each in (first, *others)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                then, otherwise = self._node(body), self._node(orelse)
                if then.is_truth != otherwise.is_truth:
                    then, otherwise = self._as_number(then), self._as_number(otherwise)
                return self._apply("choose", self._truth(test), then, otherwise)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                operation = _FUNCTIONS.get(name, name)
                numbers = [self._number(argument) for argument in arguments]
                if name in ("min", "max"):
                    return reduce(lambda a, b: self._apply(operation, a, b), numbers)
                return self._apply(operation, *numbers)
        raise _UnsupportedError

    def _comparison(self, operators: Sequence[ast.cmpop], numbers: Sequence[_Node]) -> _Node:
        links = []
        for operator, left, right in zip(operators, numbers[:-1], numbers[1:], strict=True):
            match operator:
                case ast.Lt():
                    links.append(self._apply("less", left, right))
                case ast.LtE():
                    links.append(self._apply("less_equal", left, right))
                case ast.Gt():
                    links.append(self._apply("less", right, left))
                case ast.GtE():
                    links.append(self._apply("less_equal", right, left))
                case ast.Eq():
                    links.append(self._apply("equal", left, right))
                case _:
                    links.append(self._apply("negation", self._apply("equal", left, right)))
        return reduce(lambda a, b: self._apply("both", a, b), links)

    def _number(self, node: ast.expr) -> _Node:
        return self._as_number(self._node(node))

    def _truth(self, node: ast.expr) -> _Node:
        made = self._node(node)
        return made if made.is_truth else self._apply("truth", made)

    def _as_number(self, node: _Node) -> _Node:
        return self._apply("as_integer", node) if node.is_truth else node

    def _apply(self, operation: str, *operands: _Node) -> _Node:
        key = operation, *[id(operand) for operand in operands]
        if key in self._made:
            return self._made[key]
        support = frozenset[str]().union(*(operand.support for operand in operands))
        domain = self.domains.of(support)
        is_truth = operation in _TRUTHS or (operation == "choose" and operands[1].is_truth)
        result = self._made[key] = _Node(domain, support, is_truth)
        if all(operand.fixed is not None for operand in operands):
            result.fixed = self._folded(operation, domain, operands)
        else:
            if any(isinstance(operand.fixed, str) for operand in operands):
                raise _UnsupportedError
            registers = [self._place(self._spread(operand, domain)) for operand in operands]
            self.code.append((self._numbers[operation], self._place(result), registers, _NO_INDEX))
        return result

    def _folded(self, operation: str, domain: Domain, operands: Sequence[_Node]) -> Any:
        function: Callable[..., Any] = getattr(arithmetic, operation)
        values = []
        for operand in operands:
            value = operand.fixed
            if value.__class__ is np.ndarray and operand.domain is not domain:
                index = operand.domain.embedded_in(domain)
                value = value if index is None else value.take(index)
            values.append(value)
        try:
            with np.errstate(all="ignore"):
                value = function(*values)
        except (TypeError, ValueError):
            raise _UnsupportedError from None
        if value.__class__ is np.ndarray and value.dtype.kind not in "bi":
            raise _UnsupportedError
        if value.__class__ is not np.ndarray and value.__class__ not in (int, bool, str):
            raise _UnsupportedError
        return value

    def _spread(self, node: _Node, domain: Domain) -> _Node:
        """A node on a domain of more tunables."""
        if node.domain is domain or node.domain is self.scalar or node.domain.index is None:
            return node
        key = "spread", id(node), id(domain)
        if key not in self._made:
            spread = self._made[key] = _Node(domain, node.support, node.is_truth)
            if node.fixed is not None:
                index = node.domain.embedded_in(domain)
                spread.fixed = (
                    node.fixed if index is None or node.fixed.__class__ is not np.ndarray else node.fixed[index]
                )
            else:
                register = self._place(node)
                index_number = self._index(node.domain, domain)
                self.code.append((self._numbers["gather"], self._place(spread), [register], index_number))
        return self._made[key]


def _flat(text: str) -> str:
    """An expression's text as `expression.parse` reads it."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ").strip()
