"""Convert host-code expressions to Python notation, and evaluate constant ones."""

import ast
import math
import re

_LARGEST, _MOST_CHARACTERS = 2**63, 2_000
"""Maximum value of a number, and maximum characters of an expression."""
_ROUNDED_UP = re.compile(r"\(?(.+?) \+ (\d+)\)? // (\d+)")


class UnknownError(Exception):
    """The program's text does not determine the value of an expression."""


def literal(text: str) -> str:
    """Return a C++ literal in Python notation."""
    digits = text.replace("'", "")
    suffix = r"[uUlLzZ]+$" if digits[:2] in ("0x", "0X") else r"(?:[uUlLzZ]+|[fF])$"
    plain = re.sub(suffix, "", digits)
    try:
        return str(int(plain, 8 if re.fullmatch(r"0[0-7]+", plain) else 0))
    except ValueError:
        try:
            return repr(float(plain))
        except ValueError:
            raise UnknownError from None


def combined(left: str, operator: str, right: str) -> str:
    """Return the result of a binary operator as an expression or number."""
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
    """Return an expression, in parentheses if it needs them as an operand of another expression."""
    return text if re.fullmatch(r"[\w.]+|\w+\(.*\)", text) else f"({text})"


def folded(text: str) -> str:
    """Return the value of a constant expression, or any other expression unchanged. Raises `UnknownError` if it is too
    large, divides by zero, or has no numeric value.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UnknownError
    if re.search(r"[A-Za-z_]", re.sub(r"\b(?:min|max|if|else|ceil_div)\b", "", text)):
        return text
    try:
        value = eval(compile(ast.parse(text, mode="eval"), "", "eval"), {"__builtins__": {}, "min": min, "max": max})
    except (SyntaxError, ArithmeticError, MemoryError, ValueError, TypeError, NameError):
        raise UnknownError from None
    if not isinstance(value, int | float) or not abs(value) < _LARGEST:  # A parameter may be called `max`.
        raise UnknownError
    return str(int(value)) if isinstance(value, bool | int) or value == int(value) else repr(value)


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(?:e[+-]?\d+)?", text) is not None


def number(text: str) -> str:
    """Return the text of an integer of at most ten digits. Raises `UnknownError` for any other text."""
    if not re.fullmatch(r"\d{1,10}", text):
        raise UnknownError
    return text


def rounded_up(left: str, right: str) -> str:
    """Return a quotient rounded up; raise `UnknownError` if the divisor is zero."""
    if is_number(left) and is_number(right):
        try:
            return str(math.ceil(float(left) / float(right)))
        except (ArithmeticError, ValueError):
            raise UnknownError from None
    return f"ceil({inside(left)}/{inside(right)})"


def divided(text: str, size: int) -> str:
    """Return the number of elements of a buffer with `text` bytes."""
    if re.fullmatch(r"\d+", text):
        return str(-(-int(text) // size))
    for pattern in (rf"(.+) \* {size}", rf"{size} \* (.+)"):
        if match := re.fullmatch(pattern, text):
            return match[1]
    return f"({text})/{size}"


def by_block(text: str, axis: str, extent: int) -> str:
    """Return the blocks along an axis in terms of the block's extent, if `text` divides by this extent."""
    if (match := _ROUNDED_UP.fullmatch(text)) and extent and int(match[3]) == extent == int(match[2]) + 1:
        return f"ceil({match[1]}/block_{axis})"
    return text.replace(" // ", "/")
