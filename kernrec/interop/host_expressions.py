"""Calculate with expressions of a CUDA program's host code. Expressions are strings in Python notation."""

import ast
import math
import re
from collections.abc import Callable
from contextlib import suppress

_LARGEST, _MOST_CHARACTERS = 2**63, 2_000
"""Maximum absolute value of a number, and maximum number of characters in an expression."""
_ROUNDED_UP = re.compile(r"\(?(.+?) \+ (\d+)\)? // (\d+)")


class UnknownError(Exception):
    """Error for an expression whose value the program's text does not determine."""


def literal(text: str) -> str:
    """Convert a C++ number literal to Python notation. Raise `UnknownError` if it is not a number."""
    digits = text.replace("'", "")
    suffix = r"[uUlLzZ]+$" if digits[:2] in ("0x", "0X") else r"(?:[uUlLzZ]+|[fF])$"
    plain = re.sub(suffix, "", digits)
    with suppress(ValueError):
        return str(int(plain, 8 if re.fullmatch(r"0[0-7]+", plain) else 0))
    with suppress(ValueError):
        return repr(float(plain))
    raise UnknownError


def combined(left: str, operator: str, right: str) -> str:
    """Apply a binary C++ operator to two expressions. The result is a number if both are constant.

    Raise `UnknownError` if the operator is not supported, or the result is not a valid number.
    """
    if operator in ("<<", ">>"):
        bits = int(number(right))
        if bits > 62:
            raise UnknownError
        return folded(f"{inside(left)} {'*' if operator == '<<' else '//'} {2**bits}")
    if operator not in ("+", "-", "*", "/", "%", "<", ">", "<=", ">=", "==", "!="):
        raise UnknownError
    fraction = operator == "/" and ("." in left or "." in right)
    return folded(f"{inside(left)} {'//' if operator == '/' and not fraction else operator} {inside(right)}")


def inside(text: str) -> str:
    """Return an expression with parentheses if it needs them as an operand."""
    return text if re.fullmatch(r"[\w.]+|\w+\(.*\)", text) else f"({text})"


def folded(text: str) -> str:
    """Return the value of a constant expression. Return any other expression unchanged.

    Raise `UnknownError` if the expression is too long, or its value is too large or not a number.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UnknownError
    if re.search(r"[A-Za-z_]", re.sub(r"\b(?:min|max|if|else|ceil_div)\b", "", text)):
        return text
    try:
        value = eval(compile(ast.parse(text, mode="eval"), "", "eval"), {"__builtins__": {}, "min": min, "max": max})
    except (SyntaxError, ArithmeticError, MemoryError, ValueError, TypeError, NameError):
        raise UnknownError from None
    # The text `max` evaluates to a Python function, not to a number.
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise UnknownError
    return str(int(value)) if isinstance(value, bool | int) or value == int(value) else repr(value)


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", text) is not None


def number(text: str) -> str:
    """Return the text unchanged. Raise `UnknownError` unless it is a nonnegative integer with at most ten digits."""
    if not re.fullmatch(r"\d{1,10}", text):
        raise UnknownError
    return text


def rounded_up(left: str, right: str) -> str:
    """Return the quotient of two expressions, rounded up. Raise `UnknownError` if the divisor is zero."""
    if is_number(left) and is_number(right):
        try:
            return str(math.ceil(float(left) / float(right)))
        except (ArithmeticError, ValueError):
            raise UnknownError from None
    left, right = (re.sub(r"\b(\d+)\.0\b", r"\1", side) for side in (left, right))
    return f"ceil({inside(left)}/{inside(right)})"


def whole(text: str, rounded: Callable[[float], int]) -> str:
    """Apply `rounded` to a number such as `2.5`. Return an expression without a decimal point unchanged.

    Raise `UnknownError` for an expression such as `2.5 * n`.
    """
    if not re.search(r"\d\.|\de[+-]", text):
        return text
    if not is_number(text):
        raise UnknownError
    return folded(str(rounded(float(text))))


def divided(text: str, size: int) -> str:
    """Convert the size of a buffer from bytes to elements. `size` is the number of bytes per element."""
    if re.fullmatch(r"\d+", text):
        return str(-(-int(text) // size))
    for pattern in (rf"(.+) \* {size}", rf"{size} \* (.+)"):
        if match := re.fullmatch(pattern, text):
            return match[1]
    return f"({text})/{size}"


def by_block(text: str, axis: str, extent: int) -> str:
    """Generalize an expression for the number of blocks along an axis, so that it is valid for any block size.

    A rounded-up division by `extent` becomes a division by `block_x`, `block_y` or `block_z`.

    Args:
        axis: `x`, `y` or `z`.
        extent: Number of the block's threads along the axis.
    """
    if (match := _ROUNDED_UP.fullmatch(text)) and extent and int(match[3]) == extent == int(match[2]) + 1:
        return f"ceil({match[1]}/block_{axis})"
    return text.replace(" // ", "/")
