"""Evaluate expected outputs, given as NumPy expressions: `alpha * x + y`, `a.reshape(64, 32) @ b.reshape(32, 16)`.

Expressions may contain only arithmetic, comparisons, indices, slices and the functions listed here. kernrec never calls
`eval`. Numbers are float64, or int64 if the arrays contain integers.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernrec.errors import UsageError, unknown

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.MatMult: operator.matmul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_METHODS = ("reshape", "transpose", "sum", "mean", "max", "min", "cumsum", "argmax", "argmin", "flatten")
_FUNCTIONS = (
    *("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos", "arctan", "abs", "floor", "ceil", "round", "square"),
    *("maximum", "minimum", "where", "clip", "power", "sign", "isfinite"),
    *("sum", "mean", "var", "std", "max", "min", "prod", "cumsum", "argmax", "argmin", "sort", "argsort"),
    *("matmul", "dot", "outer", "einsum", "transpose", "reshape", "concatenate", "stack", "roll", "pad", "flip"),
    *("arange", "zeros", "ones", "diag", "tril", "triu", "histogram", "bincount", "convolve"),
)
_KEYWORDS = ("axis", "keepdims", "mode", "minlength")
_MOST_LETTERS = 4000


def evaluate(text: str, arrays: Mapping[str, Any]) -> np.ndarray:
    """Return the value of a NumPy expression. `arrays` has an array or number for each name.

    Raises:
        UsageError: The text contains something that is not allowed in expressions, or its evaluation fails.
    """
    if len(text) > _MOST_LETTERS:
        raise UsageError(f"the reference has {len(text)} characters; at most {_MOST_LETTERS} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        with np.errstate(all="ignore"):
            return np.asarray(_value(tree.body, arrays))
    except UsageError:
        raise
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise UsageError(f"reference {text!r:.80}: {error.args[0] if error.args else type(error).__name__}") from None
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise UsageError(f"reference {text!r:.80}: {error}".replace("\n", " ")) from None


def _value(node: ast.expr, arrays: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            if name not in arrays:
                raise unknown("name in a reference", name, arrays)
            return arrays[name]
        case ast.Constant(value=bool() | int() | float() | None as number):
            return number
        # Accept strings for the subscripts of `einsum` and the mode of `pad`.
        case ast.Constant(value=str() as word) if len(word) < 80:
            return word
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            # Compute with NumPy's numbers, because a power of Python integers could have millions of digits.
            return np.power(np.asarray(_value(left, arrays), dtype=np.float64), _value(right, arrays))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_number(_value(left, arrays)), _number(_value(right, arrays)))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, arrays))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, arrays), _value(right, arrays))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, arrays) for item in items)
        case ast.Subscript(value=value, slice=index):
            return _array(_value(value, arrays))[_index(index, arrays)]
        case ast.Attribute(value=value, attr="T"):
            return _array(_value(value, arrays)).T
        case ast.Call(func=func, args=arguments, keywords=keywords):
            return _call(func, arguments, keywords, arrays)
    raise UsageError(f"reference: {ast.unparse(node)!r:.60} is not supported; use arithmetic and NumPy's functions")


def _call(func: ast.expr, arguments: list[ast.expr], keywords: list[ast.keyword], arrays: Mapping[str, Any]) -> Any:
    for keyword in keywords:
        if keyword.arg not in _KEYWORDS:
            raise unknown("keyword in a reference", str(keyword.arg), _KEYWORDS)
    values = [_value(argument, arrays) for argument in arguments]
    named = {str(keyword.arg): _value(keyword.value, arrays) for keyword in keywords}
    if isinstance(func, ast.Attribute) and not (isinstance(func.value, ast.Name) and func.value.id in ("np", "numpy")):
        if func.attr not in _METHODS:
            raise unknown("method in a reference", func.attr, _METHODS)
        return _numeric(func.attr, getattr(_array(_value(func.value, arrays)), func.attr)(*values, **named))
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name not in _FUNCTIONS:
        raise unknown("function in a reference", name or ast.unparse(func)[:40], _FUNCTIONS)
    return _numeric(name, getattr(np, name)(*values, **named))


def _numeric(name: str, result: Any) -> Any:
    """Return `result`. Raise `UsageError` for Python objects, which could grow without bounds."""
    kind = np.asarray(result).dtype
    if kind.kind not in "biuf":
        raise UsageError(f"reference: {name} is an array of {kind}; expected whole or floating-point numbers")
    return result


def _index(node: ast.expr, arrays: Mapping[str, Any]) -> Any:
    match node:
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(None if part is None else _value(part, arrays) for part in (lower, upper, step)))
        case ast.Tuple(elts=items):
            return tuple(_index(item, arrays) for item in items)
    return _value(node, arrays)


def _number(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        raise UsageError("a reference has a number of more than 64 bits")
    return np.int64(value) if type(value) is int else value


def _array(value: Any) -> np.ndarray:
    return np.asarray(value)
