"""The instructions of expressions: each subexpression once, on the combinations of its own tunables.

Values that are the same on every problem are computed at once. Instructions are of 64-bit integers and truth values; an
expression with a division into fractions, or one that compares the problem's text, has none.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from kernrec.kernel import arithmetic
from kernrec.kernel.domain import Domain, Domains
from kernrec.kernel.expression import Expression

Array = np.ndarray

_TRUTHS = frozenset({"equal", "less", "less_equal", "both", "either", "negation", "truth", "power_of_two"})
OPERATIONS = (
    "multiply", "ceil_div", "gather", "add", "subtract", "floor_divide", "modulo", "equal", "less", "less_equal",
    "both", "either", "negation", "choose", "minimum", "maximum", "truth", "as_integer", "power", "absolute", "log2",
    "power_of_two", "magic_mul", "magic_shift", "floor_sum",
)  # fmt: skip
"""Operations by name of `kernrec.kernel.arithmetic`, in the order of `Operation` in engine/query/program.cpp."""
NO_INDEX, EVERY_ROW = -1, -2
"""Indexes of a register with one value for all rows, and of one with a value for each row."""

_BINARY = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.FloorDiv: "floor_divide", ast.Mod: "modulo",
    ast.Pow: "power",
}  # fmt: skip
_FUNCTIONS = {"min": "minimum", "max": "maximum", "abs": "absolute"}


class UnsupportedError(Exception):
    """An expression that no program holds."""


class Node:
    """A value of the program: one for each combination of a domain."""

    __slots__ = ("domain", "fixed", "is_truth", "register", "support")

    def __init__(self, domain: Domain, support: frozenset[str], is_truth: bool, fixed: Any = None) -> None:
        self.domain = domain
        self.support = support
        self.is_truth = is_truth
        self.fixed = fixed  # the value, where it is the same on every problem
        self.register = -1


class Maker:
    """Makes the instructions; nodes that are asked for twice are made once."""

    def __init__(self, domains: Domains, lets: Mapping[str, Expression], scalars: Mapping[str, Any]) -> None:
        self.domains, self.configs = domains, domains.configs
        self.lets, self.scalars = lets, scalars
        self.scalar = domains.scalar
        self.code: list[tuple[int, int, list[int], int]] = []
        self.registers: list[Node] = []
        self.inputs: dict[str, Node] = {}
        self.indexes: list[Array] = []
        self._index_of: dict[tuple[Domain, Domain | None], int] = {}
        self._made: dict[Any, Node] = {}

    def made(self, expression: Expression) -> Node:
        """The node of an expression, in a register."""
        node = self._expression(expression)
        if isinstance(node.fixed, str):
            raise UnsupportedError
        return self._spreadable(node)

    def conjunction(self, conditions: Sequence[Node]) -> list[Node]:
        """As few nodes as can be that are all true for a row where all conditions are.

        A condition joins one of the same tunables, or of more that have fewer combinations than there are rows.
        """
        joined: list[Node] = []
        truths = [node if node.is_truth else self._apply("truth", node) for node in conditions]
        for node in sorted(truths, key=lambda node: self.length(node.domain), reverse=True):
            for place, other in enumerate(joined):
                few = other.domain is not self.scalar and other.domain.index is not None
                if other.domain is node.domain or (few and other.support >= node.support):
                    joined[place] = self._apply("both", other, node)
                    break
            else:
                joined.append(node)
        return [self._spreadable(node) for node in joined]

    def _spreadable(self, node: Node) -> Node:
        """A node in a register, with the index that spreads it over rows."""
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
            return NO_INDEX
        if domain.index is None:
            return EVERY_ROW
        return starts[self._index_of[domain, None]]

    def _expression(self, expression: Expression) -> Node:
        if expression not in self._made:
            self._made[expression] = self._node(ast.parse(_flat(expression.text), mode="eval").body)
        return self._made[expression]

    def _place(self, node: Node) -> int:
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

    def _name(self, name: str) -> Node:
        if name in self.configs.digits:
            support = frozenset((name,))
            domain = self.domains.of(support)
            column = self.configs.columns[name]
            return Node(domain, support, False, column if domain.first is None else column[domain.first])
        if name in self.lets:
            return self._as_number(self._expression(self.lets[name]))
        if name in self.scalars:
            return self._constant(self.scalars[name])
        if name not in self.inputs:
            self.inputs[name] = Node(self.scalar, frozenset(), False)
            self._place(self.inputs[name])
        return self.inputs[name]

    def _constant(self, value: Any) -> Node:
        if value.__class__ not in (int, bool, str):
            raise UnsupportedError
        value = int(value) if value.__class__ is bool else value
        if ("constant", value) not in self._made:
            self._made["constant", value] = Node(self.scalar, frozenset(), False, value)
        return self._made["constant", value]

    def _node(self, node: ast.expr) -> Node:
        if not isinstance(node, ast.Name):
            return self._parsed(node)
        if ("name", node.id) not in self._made:
            self._made["name", node.id] = self._name(node.id)
        return self._made["name", node.id]

    def _parsed(self, node: ast.expr) -> Node:
        match node:
            case ast.Constant(value=value):
                return self._constant(value)
            case ast.BinOp(left=left, op=operator, right=right):
                if operator.__class__ not in _BINARY:
                    raise UnsupportedError
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
        raise UnsupportedError

    def _comparison(self, operators: Sequence[ast.cmpop], numbers: Sequence[Node]) -> Node:
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

    def _number(self, node: ast.expr) -> Node:
        return self._as_number(self._node(node))

    def _truth(self, node: ast.expr) -> Node:
        made = self._node(node)
        return made if made.is_truth else self._apply("truth", made)

    def _as_number(self, node: Node) -> Node:
        return self._apply("as_integer", node) if node.is_truth else node

    def _apply(self, operation: str, *operands: Node) -> Node:
        key = operation, *[id(operand) for operand in operands]
        if key in self._made:
            return self._made[key]
        support = frozenset[str]().union(*(operand.support for operand in operands))
        domain = self.domains.of(support)
        is_truth = operation in _TRUTHS or (operation == "choose" and operands[1].is_truth)
        result = self._made[key] = Node(domain, support, is_truth)
        if all(operand.fixed is not None for operand in operands):
            result.fixed = self._folded(operation, domain, operands)
        else:
            if any(isinstance(operand.fixed, str) for operand in operands):
                raise UnsupportedError
            registers = [self._place(self._spread(operand, domain)) for operand in operands]
            self.code.append((OPERATIONS.index(operation), self._place(result), registers, NO_INDEX))
        return result

    def _folded(self, operation: str, domain: Domain, operands: Sequence[Node]) -> Any:
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
            raise UnsupportedError from None
        if value.__class__ is np.ndarray and value.dtype.kind not in "bi":
            raise UnsupportedError
        if value.__class__ is not np.ndarray and value.__class__ not in (int, bool, str):
            raise UnsupportedError
        return value

    def _spread(self, node: Node, domain: Domain) -> Node:
        """A node on a domain of more tunables."""
        if node.domain is domain or node.domain is self.scalar or node.domain.index is None:
            return node
        key = "spread", id(node), id(domain)
        if key not in self._made:
            spread = self._made[key] = Node(domain, node.support, node.is_truth)
            if node.fixed is not None:
                index = node.domain.embedded_in(domain)
                spread.fixed = (
                    node.fixed if index is None or node.fixed.__class__ is not np.ndarray else node.fixed[index]
                )
            else:
                register = self._place(node)
                index_number = self._index(node.domain, domain)
                self.code.append((OPERATIONS.index("gather"), self._place(spread), [register], index_number))
        return self._made[key]


def _flat(text: str) -> str:
    """An expression's text as `expression.parse` reads it."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ").strip()
