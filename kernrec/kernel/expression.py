"""The small arithmetic language of `kernel.toml`: one text, evaluated on one config or on a whole column of them.

An expression is parsed with `ast`, checked against a closed grammar and compiled to closures; nothing is ever passed
to `eval`. The grammar: decimal integers, names, `'text'` (only in `==` and `!=`), `+ - * // / % **`, unary minus,
comparisons (chained too), `and`, `or`, `not`, `a if c else b`, and the functions of `FUNCTIONS`.

An integer is 64 bits wide and wraps, and every operation has a value everywhere, so that a number and a NumPy column of
numbers give the same result, element for element, even in the branch that a condition does not take:

- `x // 0`, `x % 0`, `x / 0` and `ceil_div(x, 0)` are 0; an integer to a negative power is 0; `**` takes integers;
- `floor_sum(n, a, b, d)` is the sum of `(a * i + b) // d` for i from 0 to n - 1 (0 where n or d is not positive, a is
  negative, or one of them is 2**31 or more);
- `log2(x)` is the integer below the base-2 logarithm (0 for x < 2); `power_of_two(x)` is true for 1, 2, 4, ...;
- `magic_mul(d)`, `magic_shift(d)` make a division by the run-time constant d a multiplication: with unsigned 32-bit n
  and 2 <= d <= 2**31, `n / d == umulhi(n, magic_mul(d)) >> magic_shift(d)` for all n < 2**31 (Granlund and Montgomery,
  "Division by invariant integers using multiplication", PLDI 1994). No 32-bit multiplier does this for d = 1:
  `magic_mul(1)` is 0, by which a kernel knows that the quotient is n itself. Outside 1..2**31 both are 0.
"""

import ast
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from kernrec.errors import UsageError, nearest
from kernrec.kernel import arithmetic
from kernrec.util.light_dataclass import dataclass

MAX_LENGTH = 4000
MAX_DEPTH = 64

Value = int | float | str | np.ndarray
Namespace = Mapping[str, Any]
_Run = Callable[[Namespace], Any]

_ALPHABET = re.compile(r"[A-Za-z0-9_ +\-*/%<>=!(),.'\"]*")
_NUMBER_THEN_LETTER = re.compile(r"(?<![A-Za-z0-9_])[0-9]+[A-Za-z_]")
_NUMBER, _TRUTH, _TEXT = "number", "truth", "text"


class Expression:
    """A parsed expression: its text, the names it uses, and its evaluation."""

    __slots__ = ("is_truth", "names", "run", "sufficient", "text")

    def __init__(self, text: str, names: frozenset[str], run: _Run, is_truth: bool) -> None:
        self.text = text
        self.names = names  # names of variables, without functions
        self.is_truth = is_truth  # whether the value is true or false, not a number
        self.run = run  # evaluation without checks: names must map to int, float, str, int64 or float64 arrays
        self.sufficient: Expression | None = None  # a simpler expression; where it is true, this one is true as well

    def evaluate(self, names: Namespace) -> Any:
        """The value: an array if a name in the expression has an array, else a Python scalar.

        Args:
            names: Value of each name: an integer, a float, text or an array; unused names are ignored.

        Raises:
            UsageError: A name is missing, or an operation does not accept its value.
        """
        missing = sorted(self.names - names.keys())
        if missing:
            raise UsageError(f"expression {_short(self.text)} needs {', '.join(missing)}")
        values = {name: self._plain(name, names[name]) for name in self.names}
        try:
            with np.errstate(all="ignore"):
                return self.run(values)
        except (TypeError, ValueError) as error:
            shapes = {value.shape for value in values.values() if isinstance(value, np.ndarray)}
            reason = "mixes columns of different lengths" if len(shapes) > 1 else str(error)
            raise UsageError(f"expression {_short(self.text)}: {reason}") from None

    def whole_number(self, names: Namespace, least: int, place: str) -> int:
        """The value, an integer of at least `least`; `UsageError` for another, which begins with `place`."""
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
        elif isinstance(value, (int, np.integer, np.bool_)) and -arithmetic.HALF <= int(value) < arithmetic.HALF:
            return int(value)
        elif isinstance(value, (float, np.floating)):
            return float(value)
        elif isinstance(value, str):
            return value
        kind = f"{value.dtype} array" if isinstance(value, np.ndarray) else f"{type(value).__name__} {value!r:.40}"
        raise UsageError(
            f"expression {_short(self.text)}: {name} is a {kind}, expected a 64-bit integer, a float or text"
        )

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parses an expression; the same text gives the same object, so that results can be cached by identity.

    Raises:
        UsageError: The text is not an expression; the message names the column and the reason.
    """
    if len(text) > MAX_LENGTH:
        raise UsageError(f"expression {_short(text)} is {len(text)} characters long, at most {MAX_LENGTH} are accepted")
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
            f"expression {_short(text)} is nested too deeply, at most {MAX_DEPTH} levels are accepted"
        ) from None
    compiler = _Compiler(text, lead)
    run, kind = compiler.compile(tree.body, 0)
    if kind == _TEXT:
        raise _refuse(text, lead, "text is accepted only beside == and !=")
    return Expression(text, frozenset(compiler.names), run, kind == _TRUTH)


def implication(condition: Expression, rule: Expression) -> Expression:
    """An expression that is true where `condition` is false or `rule` is true."""
    implied = parse(f"not ({condition.text}) or {rule.text}")
    implied.sufficient = rule
    return implied


def literal(value: float) -> Expression:
    """An expression that is a constant; unlike in the grammar, it may be a fraction (for scalar arguments)."""
    return Expression(repr(value), frozenset(), lambda names: value, False)


def _short(text: str) -> str:
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    return shown if len(shown) <= 160 else f"{shown[:157]}..."  # signs that are escaped take up to ten times the room


def _refuse(text: str, column: int, reason: str) -> UsageError:
    return UsageError(f"expression {_short(text)}, column {column + 1}: {reason}")


class _Function(NamedTuple):
    call: Callable[..., Any]
    least: int  # fewest arguments
    most: int
    kind: str


FUNCTIONS: dict[str, _Function] = {
    "ceil_div": _Function(arithmetic.ceil_div, 2, 2, _NUMBER),
    "floor_sum": _Function(arithmetic.floor_sum, 4, 4, _NUMBER),
    "min": _Function(arithmetic.minimum, 2, 8, _NUMBER),
    "max": _Function(arithmetic.maximum, 2, 8, _NUMBER),
    "abs": _Function(arithmetic.absolute, 1, 1, _NUMBER),
    "log2": _Function(arithmetic.log2, 1, 1, _NUMBER),
    "power_of_two": _Function(arithmetic.power_of_two, 1, 1, _TRUTH),
    "magic_mul": _Function(arithmetic.magic_mul, 1, 1, _NUMBER),
    "magic_shift": _Function(arithmetic.magic_shift, 1, 1, _NUMBER),
}

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: arithmetic.add,
    ast.Sub: arithmetic.subtract,
    ast.Mult: arithmetic.multiply,
    ast.FloorDiv: arithmetic.floor_divide,
    ast.Div: arithmetic.divide,
    ast.Mod: arithmetic.modulo,
    ast.Pow: arithmetic.power,
}

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: arithmetic.less,
    ast.LtE: arithmetic.less_equal,
    ast.Gt: arithmetic.greater,
    ast.GtE: arithmetic.greater_equal,
    ast.Eq: arithmetic.equal,
    ast.NotEq: arithmetic.not_equal,
}


class _Compiler:
    """Compiles one expression's syntax tree; refuses every node outside the grammar."""

    def __init__(self, text: str, lead: int) -> None:
        self.text = text
        self.lead = lead
        self.names: set[str] = set()

    def refuse(self, node: ast.AST, reason: str) -> UsageError:
        return _refuse(self.text, self.lead + getattr(node, "col_offset", 0), reason)

    def compile(self, node: ast.expr, depth: int) -> tuple[_Run, str]:
        """The closure of a node and the kind of its value; a name counts as a number until it is evaluated."""
        if depth > MAX_DEPTH:
            raise self.refuse(node, f"nested too deeply, at most {MAX_DEPTH} levels are accepted")
        depth += 1
        match node:
            case ast.Constant(value=int(value)) if value.__class__ is int:
                if value >= arithmetic.HALF:
                    raise self.refuse(node, "the integer does not fit in 64 bits")
                return _Constant(value), _NUMBER
            case ast.Constant(value=str(value)):
                return _Constant(value), _TEXT
            case ast.Name(id=name):
                if name in FUNCTIONS:
                    raise self.refuse(node, f"{name} is a function and needs arguments in parentheses")
                self.names.add(name)
                return _Name(name), _NUMBER
            case ast.BinOp(left=left, op=operator, right=right) if operator.__class__ in _BINARY:
                operation = _BINARY[operator.__class__]
                return _binary(operation, self.number(left, depth), self.number(right, depth)), _NUMBER
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _unary(arithmetic.negate, self.number(operand, depth)), _NUMBER
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _unary(arithmetic.negation, self.plain(operand, depth)[0]), _TRUTH
            case ast.BoolOp(op=logic, values=operands):
                runs = [self.truth(operand, depth) for operand in operands]
                return reduce(_and if isinstance(logic, ast.And) else _or, runs), _TRUTH
            case ast.Compare(left=first, ops=operators, comparators=others):
                return self.comparison(node, operators, [first, *others], depth), _TRUTH
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.truth(test, depth)
                (then, kind), (otherwise, other) = self.plain(body, depth), self.plain(orelse, depth)
                if kind == other:
                    return _choose(condition, then, otherwise), kind
                return _choose(condition, _as_number(then, kind), _as_number(otherwise, other)), _NUMBER
            case ast.Call():
                return self.call(node, depth)
        raise self.refuse(
            node, "only integers, names, arithmetic, comparisons, and/or/not, if/else and functions are accepted"
        )

    def plain(self, node: ast.expr, depth: int) -> tuple[_Run, str]:
        run, kind = self.compile(node, depth)
        if kind == _TEXT:
            raise self.refuse(node, "text is accepted only beside == and !=")
        return run, kind

    def number(self, node: ast.expr, depth: int) -> _Run:
        return _as_number(*self.plain(node, depth))

    def truth(self, node: ast.expr, depth: int) -> _Run:
        run, kind = self.plain(node, depth)
        return run if kind == _TRUTH else _unary(arithmetic.truth, run)

    def comparison(self, node: ast.expr, operators: list[ast.cmpop], operands: list[ast.expr], depth: int) -> _Run:
        text_allowed = all(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in operators)
        runs: list[_Run] = []
        for operand in operands:
            if text_allowed and isinstance(operand, ast.Constant) and isinstance(operand.value, str):
                runs.append(self.compile(operand, depth)[0])
            else:
                runs.append(self.number(operand, depth))
        links = []
        for operator, left, right in zip(operators, runs, runs[1:], strict=False):
            if operator.__class__ not in _COMPARISONS:
                raise self.refuse(node, "only the comparisons == != < <= > >= are accepted")
            links.append(_binary(_COMPARISONS[operator.__class__], left, right))
        return reduce(_and, links)

    def call(self, node: ast.Call, depth: int) -> tuple[_Run, str]:
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
        if len(arguments) == 1:
            return _unary(function.call, arguments[0]), function.kind
        if function.least > 2:
            return (lambda names: function.call(*[argument(names) for argument in arguments])), function.kind
        return reduce(lambda left, right: _binary(function.call, left, right), arguments), function.kind


def _as_number(run: _Run, kind: str) -> _Run:
    return _unary(arithmetic.as_integer, run) if kind == _TRUTH else run


@dataclass(frozen=True)
class _Constant:
    """A number or text as written."""

    value: int | str

    def __call__(self, names: Namespace) -> Any:
        return self.value


@dataclass(frozen=True)
class _Name:
    """The value of a name."""

    name: str

    def __call__(self, names: Namespace) -> Any:
        return names[self.name]


def _unary(operation: Callable[[Any], Any], operand: _Run) -> _Run:
    return lambda names: operation(operand(names))


def _binary(operation: Callable[[Any, Any], Any], left: _Run, right: _Run) -> _Run:
    """An operation on two operands; names and numbers are read directly, which saves a call."""
    match left, right:
        case _Name(name=a), _Name(name=b):
            return lambda names: operation(names[a], names[b])
        case _Name(name=a), _Constant(value=number):
            return lambda names: operation(names[a], number)
        case _Constant(value=number), _Name(name=b):
            return lambda names: operation(number, names[b])
        case _Name(name=a), _:
            return lambda names: operation(names[a], right(names))
        case _, _Name(name=b):
            return lambda names: operation(left(names), names[b])
        case _, _Constant(value=number):
            return lambda names: operation(left(names), number)
    return lambda names: operation(left(names), right(names))


def _and(left: _Run, right: _Run) -> _Run:
    def both(names: Namespace) -> Any:
        a = left(names)
        if a.__class__ is bool:
            return right(names) if a else False
        return a & right(names)

    return both


def _or(left: _Run, right: _Run) -> _Run:
    def either(names: Namespace) -> Any:
        a = left(names)
        if a.__class__ is bool:
            return True if a else right(names)
        return a | right(names)

    return either


def _choose(condition: _Run, body: _Run, orelse: _Run) -> _Run:
    def choose(names: Namespace) -> Any:
        chosen = condition(names)
        if chosen.__class__ is bool:
            return body(names) if chosen else orelse(names)
        a, b = body(names), orelse(names)
        if a.__class__ is str or b.__class__ is str:
            raise TypeError("if/else gives text, but its condition is a column; expected numbers")
        return np.where(chosen, a, b)

    return choose


_RESERVED = frozenset({"and", "or", "not", "if", "else", "in", "is", "lambda", "for", "none", "true", "false"})


def is_identifier(name: str) -> bool:
    """Whether a text can name a tunable, a let or a tensor: lower case, and no keyword or function of the grammar."""
    return bool(re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name)) and name not in _RESERVED and name not in FUNCTIONS


def identifier(name: str) -> str:
    """Return a name that `is_identifier` accepts: `block_m` for `BLOCK_M`, `in_` for the reserved word `in`."""
    folded = re.sub(r"\W+", "_", name.lower()).strip("_")[:38]
    if folded in _RESERVED or folded in FUNCTIONS:
        return f"{folded}_"
    return folded if is_identifier(folded) else f"k_{folded}"


def as_in_source(text: str) -> str:
    """Return a text with reserved words as in the source: `in` for the identifier `in_`."""
    return re.sub(rf"\b({'|'.join((*_RESERVED, *FUNCTIONS))})_\b", r"\1", text)


def expected_name(name: str) -> str:
    """The error message for a name that `is_identifier` refuses."""
    if name in _RESERVED or name in FUNCTIONS:
        return f"{name!r} is reserved in expressions; expected another name, such as {name}_0"
    cure = f"; write {name.lower()!r}" if is_identifier(name.lower()) else ""
    return f"expected a name of up to 40 lower-case letters, digits and _, got {name!r}{cure}"
