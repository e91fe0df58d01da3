"""Parse and evaluate the expressions of `kernel.toml`, for one config or for many configs at once.

An expression is parsed with `ast`, checked against a closed grammar, and evaluated by the engine
(`engine/query/space.cpp`), never by `eval`. The grammar: decimal integers, names, `'text'` (only in `==` and `!=`), `+
- * // / % **`, unary minus, comparisons (chained too), `and`, `or`, `not`, `a if c else b`, and `FUNCTIONS`.

Integers have 64 bits and wrap around. Every operation is defined for all operands, because both branches of `a if c
else b` are evaluated if c is an array:

- `x // 0`, `x % 0`, `x / 0` and `ceil_div(x, 0)` are 0; an integer to a negative power is 0; `**` takes integers;
- `floor_sum(n, a, b, d)` is the sum of `(a * i + b) // d` for i from 0 to n - 1 (0 where n or d is not positive, a is
  negative, or one of them is 2**31 or more);
- `log2(x)` is the base-2 logarithm, rounded down (0 for x < 2); `power_of_two(x)` is true for 1, 2, 4, ...;
- `magic_mul(d)`, `magic_shift(d)` replace a division by the run-time constant d by a multiplication: with unsigned
  32-bit n and 2 <= d <= 2**31, `n / d == umulhi(n, magic_mul(d)) >> magic_shift(d)` for all n < 2**31 (Granlund and
  Montgomery, "Division by invariant integers using multiplication", PLDI 1994). `magic_mul(1)` is 0, because no 32-bit
  multiplier exists for d = 1. Both functions are 0 if d is outside 1..2**31.
"""

import ast
import re
from collections.abc import Mapping
from functools import lru_cache, reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np

from kernrec.errors import UsageError, nearest
from kernrec.util.engine import query

MAX_LENGTH = 4000
MAX_DEPTH = 64

Value = int | float | str | np.ndarray
Namespace = Mapping[str, Any]
Tree = tuple[Any, ...]
"""Node of an expression tree: number in `OPERATIONS`, then the operands. A leaf has a value instead of operands."""

OPERATIONS: dict[str, int] = query.OPERATIONS
"""Number of each operation, as in engine/query/space_values.cpp."""

_HALF = 1 << 63
_ALPHABET = re.compile(r"[A-Za-z0-9_ +\-*/%<>=!(),.'\"]*")
_NUMBER_THEN_LETTER = re.compile(r"(?<![A-Za-z0-9_])[0-9]+[A-Za-z_]")
_NUMBER, _TRUTH, _TEXT = "number", "truth", "text"


class Expression:
    """Parsed expression of a `kernel.toml`."""

    __slots__ = ("is_truth", "names", "text", "tree")

    def __init__(self, text: str, names: frozenset[str], tree: Tree, is_truth: bool) -> None:
        self.text = text
        self.names = names  # Names of variables, without names of functions
        self.is_truth = is_truth  # Whether the result is true or false, not a number
        self.tree = tree

    @property
    def shown(self) -> str:
        """Return the quoted and possibly shortened text for error messages."""
        return _short(self.text)

    def evaluate(self, names: Namespace) -> Any:
        """Return the value: an array if any variable is an array. Raise `UsageError` if the evaluation fails."""
        missing = sorted(self.names - names.keys())
        if missing:
            raise UsageError(f"expression {_short(self.text)} needs {', '.join(missing)}")
        values = {name: self._plain(name, names[name]) for name in self.names}
        shapes = {value.shape for value in values.values() if isinstance(value, np.ndarray)}
        if len(shapes) > 1:
            raise UsageError(f"expression {_short(self.text)}: mixes columns of different lengths")
        shape = shapes.pop() if shapes else (1,)
        if len(shape) > 1:
            values = {name: v.ravel() if isinstance(v, np.ndarray) else v for name, v in values.items()}
        try:
            value = query.evaluated(self, values, prod(shape))
        except ValueError as error:
            raise UsageError(str(error)) from None
        value = value.reshape(shape) if isinstance(value, np.ndarray) else value
        return value != 0 if self.is_truth else value

    def whole_number(self, names: Namespace, least: int, place: str) -> int:
        """Return the expression's value. Raise `UsageError` unless it is an integer of at least `least`."""
        value = self.evaluate(names)
        if not isinstance(value, int) or value < least:
            sizes = ", ".join(f"{name}={names[name]}" for name in sorted(self.names - {self.text}))
            shown = f"{self.text!r} is {value!r}{sizes and f' at {sizes}'}"
            raise UsageError(f"{place}: {shown}, expected an integer of at least {least}")
        return int(value)

    def _plain(self, name: str, value: Any) -> Value:
        if isinstance(value, np.ndarray) and value.ndim:
            if value.dtype.kind in "bi" or (value.dtype.kind == "u" and value.dtype.itemsize < 8):
                return value.astype(np.int64, copy=False)
            if value.dtype.kind == "f":
                return value.astype(np.float64, copy=False)
        elif isinstance(value, (int, np.integer, np.bool_)) and -_HALF <= int(value) < _HALF:
            return int(value)
        elif isinstance(value, (float, np.floating)):
            return float(value)
        elif isinstance(value, str):
            return value
        shown = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"{value!r:.40}"
        raise UsageError(
            f"expression {_short(self.text)}: {name} is {shown}; expected a 64-bit integer, a float or text"
        )

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse an expression. Equal texts give the same object. Raise `UsageError` if the text is invalid."""
    if len(text) > MAX_LENGTH:
        raise UsageError(f"expression {_short(text)} is {len(text)} characters long; at most {MAX_LENGTH} are accepted")
    flat = text.replace("\n", " ").replace("\r", " ").replace("\t", " ")
    allowed = _ALPHABET.match(flat)
    if allowed is not None and allowed.end() < len(flat):
        raise _refuse(text, allowed.end(), f"character {flat[allowed.end()]!r} is not accepted")
    if number := _NUMBER_THEN_LETTER.search(flat):
        raise _refuse(text, number.start(), f"{number[0]!r} is neither a number nor a name")
    lead = len(flat) - len(flat.lstrip())
    if lead == len(flat):
        raise UsageError("expression '' is empty")
    try:
        tree = ast.parse(flat.strip(), mode="eval")
    except SyntaxError as error:
        raise _refuse(text, lead + (error.offset or 1) - 1, error.msg or "not an expression") from None
    except (ValueError, MemoryError, RecursionError):
        raise UsageError(
            f"expression {_short(text)} is nested too deeply; at most {MAX_DEPTH} levels are accepted"
        ) from None
    compiler = _Compiler(text, lead)
    made, kind = compiler.compile(tree.body, 0)
    if kind == _TEXT:
        raise _refuse(text, lead, "text is accepted only beside == and !=")
    return Expression(text, frozenset(compiler.names), made, kind == _TRUTH)


def implication(condition: Expression, rule: Expression) -> Expression:
    """Return an expression that is true if `condition` is false or `rule` is true."""
    return parse(f"not ({condition.text}) or {rule.text}")


def literal(value: float) -> Expression:
    """Return a constant expression."""
    return Expression(repr(value), frozenset(), (OPERATIONS["number"], value), False)


def _short(text: str) -> str:
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    # Escaping can make a character ten times as long, so shorten the text again.
    return shown if len(shown) <= 160 else f"{shown[:157]}..."


def _refuse(text: str, column: int, reason: str) -> UsageError:
    return UsageError(f"expression {_short(text)}, column {column + 1}: {reason}")


class _Function(NamedTuple):
    operation: str
    least: int
    most: int
    kind: str


FUNCTIONS: dict[str, _Function] = {
    "ceil_div": _Function("ceil_div", 2, 2, _NUMBER),
    "floor_sum": _Function("floor_sum", 4, 4, _NUMBER),
    "min": _Function("minimum", 2, 8, _NUMBER),
    "max": _Function("maximum", 2, 8, _NUMBER),
    "abs": _Function("absolute", 1, 1, _NUMBER),
    "log2": _Function("log2", 1, 1, _NUMBER),
    "power_of_two": _Function("power_of_two", 1, 1, _TRUTH),
    "magic_mul": _Function("magic_mul", 1, 1, _NUMBER),
    "magic_shift": _Function("magic_shift", 1, 1, _NUMBER),
}

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.FloorDiv: "floor_divide", ast.Div: "divide",
    ast.Mod: "modulo", ast.Pow: "**",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Lt: ("less", False), ast.LtE: ("less_equal", False), ast.Gt: ("less", True), ast.GtE: ("less_equal", True),
    ast.Eq: ("equal", False), ast.NotEq: ("equal", False),
}  # fmt: skip
"""Operation of each comparison, and whether to swap its operands."""


def _node(operation: str, *operands: Any) -> Tree:
    return (OPERATIONS[operation], *operands)


class _Compiler:
    """Converter from Python's syntax tree. It rejects all nodes outside the grammar."""

    def __init__(self, text: str, lead: int) -> None:
        self.text = text
        self.lead = lead
        self.names: set[str] = set()

    def refuse(self, node: ast.AST, reason: str) -> UsageError:
        return _refuse(self.text, self.lead + getattr(node, "col_offset", 0), reason)

    def compile(self, node: ast.expr, depth: int) -> tuple[Tree, str]:
        """Return a tree, and the kind of its value: number, truth value or text. Names count as numbers."""
        if depth > MAX_DEPTH:
            raise self.refuse(node, f"nested too deeply, at most {MAX_DEPTH} levels are accepted")
        depth += 1
        match node:
            case ast.Constant(value=int(value)) if value.__class__ is int:
                if value >= _HALF:
                    raise self.refuse(node, "the integer does not fit in 64 bits")
                return _node("number", value), _NUMBER
            case ast.Constant(value=str(value)):
                return _node("text", value), _TEXT
            case ast.Name(id=name):
                if name in FUNCTIONS:
                    raise self.refuse(node, f"{name} is a function and needs arguments in parentheses")
                self.names.add(name)
                return _node("name", name), _NUMBER
            case ast.BinOp(left=left, op=operator, right=right) if operator.__class__ in _BINARY:
                return _node(_BINARY[operator.__class__], self.number(left, depth), self.number(right, depth)), _NUMBER
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _node("subtract", _node("number", 0), self.number(operand, depth)), _NUMBER
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _node("negation", self.number(operand, depth)), _TRUTH
            case ast.BoolOp(op=logic, values=operands):
                operation = "both" if isinstance(logic, ast.And) else "either"
                trees = [self.truth(operand, depth) for operand in operands]
                return reduce(lambda left, right: _node(operation, left, right), trees), _TRUTH
            case ast.Compare(left=first, ops=operators, comparators=others):
                return self.comparison(node, operators, [first, *others], depth), _TRUTH
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.truth(test, depth)
                (then, kind), (otherwise, other) = self.plain(body, depth), self.plain(orelse, depth)
                return _node("choose", condition, then, otherwise), kind if kind == other else _NUMBER
            case ast.Call():
                return self.call(node, depth)
        raise self.refuse(
            node, "only integers, names, arithmetic, comparisons, and/or/not, if/else and functions are accepted"
        )

    def plain(self, node: ast.expr, depth: int) -> tuple[Tree, str]:
        tree, kind = self.compile(node, depth)
        if kind == _TEXT:
            raise self.refuse(node, "text is accepted only beside == and !=")
        return tree, kind

    def number(self, node: ast.expr, depth: int) -> Tree:
        return self.plain(node, depth)[0]

    def truth(self, node: ast.expr, depth: int) -> Tree:
        tree, kind = self.plain(node, depth)
        return tree if kind == _TRUTH else _node("truth", tree)

    def comparison(self, node: ast.expr, operators: list[ast.cmpop], operands: list[ast.expr], depth: int) -> Tree:
        """Return the tree of a chain such as `a < b < c`."""
        text_allowed = all(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in operators)
        trees: list[Tree] = []
        for operand in operands:
            if text_allowed and isinstance(operand, ast.Constant) and isinstance(operand.value, str):
                trees.append(self.compile(operand, depth)[0])
            else:
                trees.append(self.number(operand, depth))
        links = []
        for operator, left, right in zip(operators, trees, trees[1:], strict=False):
            if operator.__class__ not in _COMPARISONS:
                raise self.refuse(node, "only the comparisons == != < <= > >= are accepted")
            operation, swapped = _COMPARISONS[operator.__class__]
            link = _node(operation, right, left) if swapped else _node(operation, left, right)
            links.append(_node("negation", link) if isinstance(operator, ast.NotEq) else link)
        return reduce(lambda left, right: _node("both", left, right), links)

    def call(self, node: ast.Call, depth: int) -> tuple[Tree, str]:
        if not isinstance(node.func, ast.Name):
            raise self.refuse(node, "only these functions can be called: " + ", ".join(FUNCTIONS))
        name = node.func.id
        if name not in FUNCTIONS:
            close = nearest(name, FUNCTIONS)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(FUNCTIONS)}"
            raise self.refuse(node, f"unknown function {name!r}; {hint}")
        function = FUNCTIONS[name]
        if node.keywords or not function.least <= len(node.args) <= function.most:
            count = f"{function.least}" if function.least == function.most else f"{function.least} to {function.most}"
            raise self.refuse(node, f"{name} takes {count} arguments")
        arguments = [self.number(argument, depth) for argument in node.args]
        if function.most > function.least:
            return reduce(lambda left, right: _node(function.operation, left, right), arguments), function.kind
        return _node(function.operation, *arguments), function.kind


_RESERVED = frozenset({"and", "or", "not", "if", "else", "in", "is", "lambda", "for", "none", "true", "false"})


def is_identifier(name: str) -> bool:
    """Return whether `name` is valid for a tunable, a tensor or an expression in the table `let`."""
    return bool(re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name)) and name not in _RESERVED and name not in FUNCTIONS


def identifier(name: str) -> str:
    """Convert a name to an identifier for a spec: `BLOCK_M` to `block_m`, and the reserved `in` to `in_`."""
    folded = re.sub(r"\W+", "_", name.lower()).strip("_")[:38]
    if folded in _RESERVED or folded in FUNCTIONS:
        return f"{folded}_"
    return folded if is_identifier(folded) else f"k_{folded}"


def as_in_source(text: str) -> str:
    """Restore the names that `identifier` changed, such as `in` for `in_`, in a text."""
    return re.sub(rf"\b({'|'.join((*_RESERVED, *FUNCTIONS))})_\b", r"\1", text)


def expected_name(name: str) -> str:
    """Return the error message for an invalid name."""
    if name in _RESERVED or name in FUNCTIONS:
        return f"{name!r} is reserved in expressions; expected another name, such as {name}_0"
    cure = f"; write {name.lower()!r}" if is_identifier(name.lower()) else ""
    return f"expected a name of up to 40 lower-case letters, digits and _, got {name!r}{cure}"
