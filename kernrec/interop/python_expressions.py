"""Translate expressions in Python notation, which Kernel Tuner and KTT use, to the notation of kernel.toml.

Expressions are only parsed, never executed. The module accepts arithmetic, comparisons, `ProblemSize[0]`, `x in [...]`,
`&&`, `||`, `int(a / b)`, `math.ceil(a / b)` and `p["name"]`. `max(p)` and `min(p)` are a parameter's largest and
smallest value.

Lists of values are evaluated: `[1, 2]`, `list(range(32, 1025, 32))`, `[2**i for i in range(6)]`, and sums of lists.
"""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from kernrec.errors import UsageError, unknown

_MOST_LENGTH = 4000
_MOST_VALUES = 4096
_SIZES = ("problem_size_x", "problem_size_y", "problem_size_z")


def _tree(what: str, text: str) -> ast.expr:
    if not isinstance(text, str) or len(text) > _MOST_LENGTH:
        raise UsageError(f"{what}: expected an expression of at most {_MOST_LENGTH} characters")
    python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).strip()
    try:
        with warnings.catch_warnings(action="ignore"):  # Suppress Python's warning about `1or 2`.
            return ast.parse(python, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{what}: {text!r:.80} is not an expression") from None


class Translator:
    """Translator of the expressions in one file, which use the tuning parameters of a kernel."""

    def __init__(
        self,
        names: Mapping[str, str],
        values: Mapping[str, Sequence[int]],
        dimensions: int,
        noun: str = "tuning parameter",
    ) -> None:
        """Create a translator.

        Args:
            names: Name of each parameter in kernel.toml, keyed by its original name.
            values: Values of each parameter, keyed by its original name.
            noun: Description of a parameter in error messages, such as `tuning parameter`.
        """
        self.noun = noun
        self.names = names
        self.values = values
        self.dimensions = dimensions

    def expression(self, what: str, text: str) -> str:
        """Translate an expression to the grammar of kernel.toml. The message of a `UsageError` starts with `what`."""
        try:
            return ast.unparse(self._node(_tree(what, text)))
        except _RefusedError as refused:
            raise UsageError(f"{what}: {text!r:.80}: {refused}") from None

    def _node(self, node: ast.expr) -> ast.expr:
        match node:
            case ast.Constant(value=bool(value)):
                return ast.Constant(int(value))
            case ast.Constant(value=int() | float() | str()):
                return node
            case ast.Name(id=name):
                return ast.Name(self._name(name))
            case ast.Subscript(value=ast.Name(id="ProblemSize" | "problem_size"), slice=ast.Constant(value=int(axis))):
                if not 0 <= axis < self.dimensions:
                    raise _RefusedError(f"ProblemSize has {self.dimensions} dimensions")
                return ast.Name(_SIZES[axis])
            case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=str(name))):
                return ast.Name(self._name(name))
            case ast.Call(func=function, args=arguments, keywords=[]):
                return self._call(_called(function), arguments)
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as membership], comparators=[chosen]):
                return self._membership(left, membership, chosen)
            case ast.BinOp(left=left, op=operator, right=right):
                return ast.BinOp(self._node(left), operator, self._node(right))
            case ast.UnaryOp(op=operator, operand=operand):
                return ast.UnaryOp(operator, self._node(operand))
            case ast.BoolOp(op=operator, values=values):
                return ast.BoolOp(operator, [self._node(value) for value in values])
            case ast.Compare(left=left, ops=operators, comparators=others):
                return ast.Compare(self._node(left), operators, [self._node(other) for other in others])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return ast.IfExp(self._node(test), self._node(body), self._node(orelse))
        raise _RefusedError(f"{ast.unparse(node)!r:.60} is not supported")

    def _name(self, name: str) -> str:
        if name in self.names:
            return self.names[name]
        for axis, size in enumerate(_SIZES):
            if name == size and axis < self.dimensions:
                return size
        raise _RefusedError(str(unknown(self.noun, name, self.names)))

    def _call(self, name: str, arguments: list[ast.expr]) -> ast.expr:
        first = arguments[0] if arguments else None
        if name in ("max", "min") and len(arguments) == 1 and isinstance(first, ast.Name) and self.values.get(first.id):
            return ast.Constant((max if name == "max" else min)(self.values[first.id]))
        if name in ("max", "min", "abs", "ceil_div"):
            return ast.Call(ast.Name(name), [self._node(argument) for argument in arguments], [])
        if name in ("ceil", "floor", "int") and len(arguments) == 1 and first is not None:
            quotient = isinstance(first, ast.BinOp) and isinstance(first.op, ast.Div)
            parts = [first.left, first.right] if isinstance(first, ast.BinOp) and quotient else [first, ast.Constant(1)]
            left, right = map(self._node, parts)
            if name == "ceil":
                return ast.Call(ast.Name("ceil_div"), [left, right], [])
            return ast.BinOp(left, ast.FloorDiv(), right)
        raise _RefusedError(f"the function {name} is not supported")

    def _membership(self, left: ast.expr, membership: ast.cmpop, chosen: ast.expr) -> ast.expr:
        if not isinstance(chosen, ast.List | ast.Tuple | ast.Set) or not chosen.elts:
            raise _RefusedError(f"{ast.unparse(chosen)!r:.60} is not a list")
        inside = isinstance(membership, ast.In)
        parts: list[ast.expr] = [
            ast.Compare(self._node(left), [ast.Eq() if inside else ast.NotEq()], [self._node(item)])
            for item in chosen.elts
        ]
        return ast.BoolOp(ast.Or() if inside else ast.And(), parts) if len(parts) > 1 else parts[0]


class _RefusedError(Exception):
    """Error for a part of an expression that is not supported."""


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "math":
        return function.attr
    if isinstance(function, ast.Name):
        return function.id
    raise _RefusedError(f"{ast.unparse(function)!r:.60} is not a function")


def read_values(what: str, stated: object) -> list[Any]:
    """Evaluate the values of a tuning parameter: a JSON list, or text with a list in Python notation.

    Raises:
        UsageError: The text is not a list of values, or uses syntax that is not supported.
    """
    if isinstance(stated, list):
        return stated
    if not isinstance(stated, str):
        raise UsageError(f"{what}: expected a list of values, got {stated!r:.60}")
    try:
        values = _evaluate(_tree(what, stated), {})
    except (_RefusedError, TypeError, ZeroDivisionError) as refused:
        raise UsageError(f"{what}: {stated!r:.80}: {refused}") from None
    if not isinstance(values, list | range):
        raise UsageError(f"{what}: {stated!r:.80} is not a list of values")
    return list(values)


def _evaluate(node: ast.expr, names: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate(item, names) for item in items]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, names)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combine(operator, _evaluate(left, names), _evaluate(right, names))
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]) if 1 <= len(arguments) <= 3:
            return _bounded(range(*(_evaluate(argument, names) for argument in arguments)))
        case ast.Call(func=ast.Name(id="list" | "sorted"), args=[argument], keywords=[]):
            return list(_evaluate(argument, names))
        case ast.ListComp(elt=item, generators=[ast.comprehension(target=ast.Name(id=name), iter=source, ifs=[])]):
            return [_evaluate(item, {**names, name: value}) for value in _bounded(_evaluate(source, names))]
    raise _RefusedError(f"{ast.unparse(node)!r:.60} is not supported in a list of values")


def _bounded(values: Any) -> Any:
    if len(values) > _MOST_VALUES:
        raise _RefusedError(f"over {_MOST_VALUES} values")
    return values


def _combine(operator: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(operator, ast.Add):
        return list(left) + list(right) if isinstance(left, list | range) else left + right
    if isinstance(left, list | range) or isinstance(right, list | range):
        raise _RefusedError("lists support only +")
    if isinstance(operator, ast.Pow):
        if not (0 <= right <= 64 and abs(left) <= 1024):
            raise _RefusedError(f"{left}**{right} is too large")
        return left**right
    match operator:
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv():
            return left // right
    raise _RefusedError("expected numbers with + - * // **")
