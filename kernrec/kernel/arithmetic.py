"""Arithmetic on numbers and columns: an operation on arrays gives the same elements as on the single numbers.

`engine/query/program.cpp` has the operations on 64-bit integers for programs.

Operands are Python scalars (64-bit int, float; text only in `equality`) or int64 and float64 arrays. Integers wrap at
64 bits like NumPy's; every operation is defined for all operands (see `expression`). An operand of the wrong type
raises `TypeError`. Callers silence NumPy's floating-point warnings.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

HALF, _FULL = 1 << 63, 1 << 64


def _wrap(value: Any) -> Any:
    if value.__class__ is int and not -HALF <= value < HALF:
        return (value + HALF) % _FULL - HALF
    return value


_ARRAY = np.ndarray


def _is_array(a: Any, b: Any) -> bool:
    """Whether one of the operands is an array. Raises `TypeError` for text, so that `'ab' * 10**9` is refused."""
    if a.__class__ is str or b.__class__ is str:  # also beside an array: `text % array` is text
        raise TypeError(f"text {a if a.__class__ is str else b!r} where a number is expected")
    return a.__class__ is _ARRAY or b.__class__ is _ARRAY


# The most frequent operations test for arrays inline: a call costs as much as the operation on a short column.


def add(a: Any, b: Any) -> Any:
    if a.__class__ is _ARRAY or b.__class__ is _ARRAY or _is_array(a, b):
        return a + b
    return _wrap(a + b)


def subtract(a: Any, b: Any) -> Any:
    if a.__class__ is _ARRAY or b.__class__ is _ARRAY or _is_array(a, b):
        return a - b
    return _wrap(a - b)


def multiply(a: Any, b: Any) -> Any:
    if a.__class__ is _ARRAY or b.__class__ is _ARRAY or _is_array(a, b):
        return a * b
    return _wrap(a * b)


def _zero_where(zero: Any, value: Any) -> Any:
    return np.where(zero == 0, 0.0, value)


def floor_divide(a: Any, b: Any) -> Any:
    if a.__class__ is _ARRAY or b.__class__ is _ARRAY or _is_array(a, b):
        quotient = a // b  # integers: NumPy's x // 0 is 0
        return quotient if quotient.dtype.kind == "i" else _zero_where(b, quotient)
    return _wrap(a // b) if b else 0


def modulo(a: Any, b: Any) -> Any:
    if _is_array(a, b):
        rest = a % b
        return rest if rest.dtype.kind == "i" else _zero_where(b, rest)
    return a % b if b else 0


def divide(a: Any, b: Any) -> Any:
    if _is_array(a, b):
        return _zero_where(b, a / b)
    return float(a) / float(b) if b else 0.0


def power(a: Any, b: Any) -> Any:
    if _is_array(a, b):
        if np.asarray(a).dtype.kind != "i" or np.asarray(b).dtype.kind != "i":
            raise TypeError("** takes integers")
        return np.where(np.less(b, 0), 0, np.power(a, np.maximum(b, 0)))
    if a.__class__ is float or b.__class__ is float:
        raise TypeError("** takes integers")
    return _wrap(pow(a, b, _FULL)) if b >= 0 else 0


def negate(a: Any) -> Any:
    return subtract(0, a)


def compare(array: Callable[[Any, Any], Any], scalar: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """A comparison of numbers from its array and scalar forms; an integer and a float are compared as floats."""

    def apply(a: Any, b: Any) -> Any:
        if a.__class__ is _ARRAY or b.__class__ is _ARRAY or _is_array(a, b):
            return array(a, b)
        if a.__class__ is float or b.__class__ is float:
            return scalar(float(a), float(b))
        return scalar(a, b)

    return apply


def equality(array: Callable[[Any, Any], Any], scalar: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """Like `compare`, but also compares two texts."""
    numbers = compare(array, scalar)

    def equal(a: Any, b: Any) -> Any:
        if a.__class__ is int and b.__class__ is int:
            return scalar(a, b)
        if a.__class__ is str and b.__class__ is str:
            return scalar(a, b)
        if a.__class__ is str or b.__class__ is str:
            raise TypeError(f"compares text with a number ({a!r:.40} and {b!r:.40})")
        return numbers(a, b)

    return equal


less = compare(np.less, lambda a, b: a < b)
less_equal = compare(np.less_equal, lambda a, b: a <= b)
greater = compare(np.greater, lambda a, b: a > b)
greater_equal = compare(np.greater_equal, lambda a, b: a >= b)
equal = equality(np.equal, lambda a, b: a == b)
not_equal = equality(np.not_equal, lambda a, b: a != b)


def both(a: Any, b: Any) -> Any:
    return a & b


def either(a: Any, b: Any) -> Any:
    return a | b


def choose(condition: Any, a: Any, b: Any) -> Any:
    if condition.__class__ is bool:
        return a if condition else b
    return np.where(condition, a, b)


def truth(a: Any) -> Any:
    if a.__class__ is np.ndarray:
        return a != 0
    _is_array(a, 0)
    return bool(a)


def negation(a: Any) -> Any:
    if a.__class__ is np.ndarray:
        return a == 0
    _is_array(a, 0)
    return not a


def as_integer(a: Any) -> Any:
    return a.astype(np.int64) if a.__class__ is np.ndarray else int(a)


def ceil_div(a: Any, b: Any) -> Any:
    return negate(floor_divide(negate(a), b))


_SUMMED = 1 << 31


def floor_sum(n: Any, step: Any, start: Any, divisor: Any) -> Any:
    """The sum of (step * i + start) // divisor for i < n; 0 where n <= 0, step < 0, divisor <= 0 or one reaches 2**31.

    Each round exchanges step and divisor, of which the larger is first taken modulo the other, as in Euclid's algorithm
    (Graham, Knuth and Patashnik, "Concrete Mathematics", section 3.5).
    """
    operands = (n, step, start, divisor)
    are_columns = [_integers(operand, "floor_sum") for operand in operands]
    if not any(are_columns):
        return _floor_sum(*operands) if _summable(*operands) else 0
    n, step, start, divisor = np.broadcast_arrays(*(np.asarray(operand, np.int64) for operand in operands))
    able = _summable(n, step, start, divisor)
    total = np.zeros(able.shape, np.int64)
    total[able] = _floor_sum(n[able], step[able], start[able], divisor[able])
    return total


def _summable(n: Any, step: Any, start: Any, divisor: Any) -> Any:
    positive = (n > 0) & (step >= 0) & (divisor > 0) & (start > -_SUMMED)
    return positive & (n < _SUMMED) & (step < _SUMMED) & (divisor < _SUMMED) & (start < _SUMMED)


def _floor_sum(n: Any, step: Any, start: Any, divisor: Any) -> Any:
    total = 0 * n
    while True:
        pairs = n * (n - 1) // 2
        total = add(total, add(multiply(pairs, floor_divide(step, divisor)), multiply(n, floor_divide(start, divisor))))
        step, start = modulo(step, divisor), modulo(start, divisor)
        beyond = step * n + start
        n = floor_divide(beyond, divisor)
        if not np.any(n):
            return total
        start, step, divisor = modulo(beyond, divisor), divisor, step


def minimum(a: Any, b: Any) -> Any:
    return np.minimum(a, b) if _is_array(a, b) else min(a, b)


def maximum(a: Any, b: Any) -> Any:
    return np.maximum(a, b) if _is_array(a, b) else max(a, b)


def absolute(a: Any) -> Any:
    return abs(a) if _is_array(a, 0) else _wrap(abs(a))


def _integers(a: Any, function: str) -> bool:
    """Whether `a` is an array. Raises `TypeError` if it is not of integers."""
    array = _is_array(a, 0)
    if (a.dtype.kind != "i") if array else a.__class__ is float:
        raise TypeError(f"{function} takes integers")
    return array


def log2(a: Any) -> Any:
    """The greatest e with 2**e <= a; 0 for a < 2."""
    if not _integers(a, "log2"):
        return max(a.bit_length() - 1, 0) if a > 0 else 0
    exponent = np.clip(np.frexp(a.astype(np.float64))[1].astype(np.int64) - 1, 0, 62)
    exponent -= (np.int64(1) << exponent) > a  # the conversion to float may have rounded up to the next power
    return np.where(a < 2, 0, exponent)


def power_of_two(a: Any) -> Any:
    _integers(a, "power_of_two")
    return (a > 0) & (a & subtract(a, 1) == 0)


def magic_shift(d: Any) -> Any:
    """The bit length of d - 1, less one: the right shift that follows `umulhi` in a division by d."""
    usable = _magic_usable(d, "magic_shift")
    shift = log2(d - 1)
    return np.where(usable, shift, 0) if shift.__class__ is np.ndarray else int(usable and shift)


def magic_mul(d: Any) -> Any:
    """2**(32 + magic_shift(d)) / d, rounded up: below 2**32 for 2 <= d <= 2**31, else 0."""
    usable = _magic_usable(d, "magic_mul")
    if d.__class__ is np.ndarray:
        divisor = np.where(usable, d, 2)
        return np.where(usable, ceil_div(np.int64(1) << (log2(divisor - 1) + 32), divisor), 0)
    return ceil_div(1 << (log2(d - 1) + 32), d) if usable else 0


def _magic_usable(d: Any, function: str) -> Any:
    _integers(d, function)
    return (d >= 2) & (d <= 1 << 31)
