"""Floating-point instructions.

`add`, `sub`, `mul`, `div.rn`, `sqrt.rn`, `rcp.rn` round once, as IEEE 754 requires. So does `fma` of f32 and f16 (for
normal results): the exact product is added in float64, and where that sum was itself rounded onto a tie of f32, its
rounding error decides. `fma` of f64 adds the rounding errors of product and sum back. bfloat16 always rounds once: its
sums carry their rounding error along. The `approx` instructions return the rounded float64 result, which is closer to
the true value than the hardware's tables and within the documented error.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.integer import (
    INTEGERS,
    carrying,
    divide,
    integer_multiply,
    integer_plain,
    maximum,
    minimum,
)
from kernrec.ptx.instructions.registry import (
    Compute,
    Elementwise,
    UnsupportedFormError,
    elementwise,
    lanewise,
    same_type,
)
from kernrec.ptx.instructions.rounding import (
    bf16_values,
    directed,
    exact_to_bf16,
    flush,
    is_subnormal,
    two_product,
    two_sum,
    widened,
)
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import Array

_MODES = ("rn", "rz", "rm", "rp")
_FLOATS = frozenset({"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64"})
_F32_TAIL = (1 << 29) - 1  # bits of a float64's mantissa that float32 does not have
_F32_TIE = 1 << 28


def _fma32(a: Array, b: Array, c: Array, out: Array) -> None:
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    tie = (total.view(np.int64) & _F32_TAIL) == _F32_TIE
    if tie.any():
        # The sum was rounded too: where that put it on a tie of f32, its rounding error decides.
        lost = two_sum(product, np.asarray(c, dtype=np.float64))[1]
        total = np.where(tie & (lost != 0), np.nextafter(total, np.copysign(np.inf, lost)), total)
    np.copyto(out, total, casting="same_kind")


def _fma64(a: Array, b: Array, c: Array, out: Array) -> None:
    product, below = two_product(a, b)
    total, lost = two_sum(product, c)
    better = total + (below + lost)
    np.copyto(out, np.where(np.isfinite(better), better, a * b + c))


def _directed(opcode: str, mode: str) -> Compute:
    def run(*rows: Array) -> None:
        *sources, out = rows
        wide = [s.astype(np.float64) for s in sources]
        lost: Array | float = 0.0
        if opcode == "mul":
            exact = wide[0] * wide[1]
        elif opcode == "add":
            exact, lost = two_sum(wide[0], wide[1])
        elif opcode == "sub":
            exact, lost = two_sum(wide[0], -wide[1])
        elif opcode == "fma":
            exact, lost = two_sum(wide[0] * wide[1], wide[2])
        elif opcode == "div":
            exact = wide[0] / wide[1]
            lost = (wide[0] - exact * wide[1]) * np.sign(wide[1])
        elif opcode == "rcp":
            exact = 1.0 / wide[0]
            product, below = two_product(exact, wide[0])
            lost = ((1.0 - product) - below) * np.sign(wide[0])
        else:
            exact = np.sqrt(wide[0])
            product, below = two_product(exact, exact)
            lost = (wide[0] - product) - below
        np.copyto(out, directed(exact, np.nan_to_num(lost), mode, out.dtype))

    return run


def _product_error(a: Array, b: Array, result: Array) -> Array:
    """The part of the exact product of float64 numbers that `result` lacks; its sign is right, its size is scaled."""
    (x, p), (y, q) = np.frexp(a), np.frexp(b)  # products of mantissas neither overflow nor lose bits
    product, below = two_product(x, y)
    lacking: Array = (product - np.ldexp(result, -(p + q))) + below
    return lacking


def _sum_error(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """The rounded value of `a b + c` in float64, and what is missing."""
    product, below = two_product(a, b)
    total, lost = two_sum(product, c)
    rest, least = two_sum(below, lost)
    result, error = two_sum(total, rest)
    return result, error + least


def _directed64(opcode: str, mode: str) -> Compute:
    """f64 arithmetic with directed rounding (PTX ISA, section 9.7.3); of the error only the sign counts."""

    def run(*rows: Array) -> None:
        *sources, out = rows
        a = sources[0]
        if opcode in ("add", "sub"):
            exact, lost = two_sum(a, sources[1] if opcode == "add" else -sources[1])
        elif opcode == "fma":
            exact, lost = _sum_error(*sources)
        elif opcode == "mul":
            exact = a * sources[1]
            lost = _product_error(a, sources[1], exact)
        elif opcode == "sqrt":
            exact = np.sqrt(a)
            x, p = np.frexp(a)
            root = np.ldexp(exact, -(p // 2))
            product, below = two_product(root, root)
            lost = (np.ldexp(x, p % 2) - product) - below
        else:  # div, rcp
            numerator, divisor = (np.ones_like(a), a) if opcode == "rcp" else (a, sources[1])
            exact = numerator / divisor
            (x, p), (y, q) = np.frexp(numerator), np.frexp(divisor)
            product, below = two_product(np.ldexp(exact, q - p), y)
            lost = ((x - product) - below) * np.sign(y)
        # What overflowed is below infinity, unless it is infinite by itself.
        finite = np.logical_and.reduce([np.isfinite(source) for source in sources])
        if opcode in ("div", "rcp"):
            finite &= sources[-1] != 0
        lost = np.where(np.isinf(exact) & finite, -exact, np.nan_to_num(lost))
        np.copyto(out, directed(exact, lost, mode, out.dtype))

    return run


def _reciprocal(a: Array, out: Array) -> None:
    np.divide(a.dtype.type(1), a, out)


def _rsqrt(a: Array, out: Array) -> None:
    np.copyto(out, 1.0 / np.sqrt(a.astype(np.float64)), casting="same_kind")


@lru_cache(None)
def _through_double(function: Callable[[Array], Array]) -> Compute:
    return lambda a, out: np.copyto(out, function(a.astype(np.float64)), casting="same_kind")


_BASE: dict[str, Compute] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
    "rcp": _reciprocal,
    "rsqrt": _rsqrt,
    "sin": _through_double(np.sin),
    "cos": _through_double(np.cos),
    "ex2": _through_double(np.exp2),
    "lg2": _through_double(np.log2),
    "tanh": _through_double(np.tanh),
}


def _saturated(a: Array) -> Array:
    """Values clamped to the unit interval; NaN becomes 0 (`.sat`)."""
    return np.clip(np.where(np.isnan(a), 0, a), 0, 1)


@lru_cache(None)
def _extreme(opcode: str, nan: bool, magnitudes: bool, signed: bool) -> Compute:
    """`min` and `max` of two or three values (PTX ISA, sections 9.7.3.9 and 9.7.3.10).

    `magnitudes`: of absolute values; `signed`: with the product of the signs of the operands (`.xorsign.abs`).
    """
    base = _base(opcode, nan)

    def run(*rows: Array) -> None:
        *sources, out = rows
        values = [np.abs(source) for source in sources] if magnitudes else sources
        result = np.empty_like(out)
        base(values[0], values[1], result)
        for value in values[2:]:
            base(result, value, result)
        if signed:
            # A source that is the same in all lanes may have fewer axes than the others.
            negative = reduce(np.logical_xor, map(np.signbit, sources))
            result = np.where(np.isnan(result), result, np.where(negative, -result, result))
        np.copyto(out, result)

    return run


def _rectified(a: Array) -> Array:
    """Negative numbers become 0; NaN stays (`.relu`)."""
    return np.where(np.isnan(a), a, np.maximum(a, 0))


def _base(opcode: str, nan: bool) -> Compute:
    if nan and opcode in ("min", "max"):
        return minimum if opcode == "min" else maximum
    return _BASE[opcode]


class _Modifiers(NamedTuple):
    """The modifiers of a floating-point instruction."""

    mode: str = "rn"
    """Rounding: `rn`, `rz`, `rm` or `rp`."""

    ftz: bool = False
    sat: bool = False
    nan: bool = False
    """Of `min` and `max`: NaN where one operand is NaN."""

    relu: bool = False
    magnitudes: bool = False
    """Of `min` and `max`: of absolute values (`.abs`)."""

    signed: bool = False
    """The result has the product of the operands' signs (`.xorsign`)."""


@lru_cache(None)
def _function(opcode: str, kind: str, modifiers: _Modifiers, count: int) -> Compute:
    """The computation of an instruction with `count` sources."""
    mode, ftz, sat, nan, relu, magnitudes, signed = modifiers
    if opcode == "fma":
        base: Compute = _fma64 if kind == "f64" else _fma32
    elif count == 3 or magnitudes:
        base = _extreme(opcode, nan, magnitudes, signed)
    else:
        base = _base(opcode, nan)
    if mode != "rn":
        base = _directed64(opcode, mode) if kind == "f64" else _directed(opcode, mode)
    if not (ftz or sat or relu):
        return base

    def run(*rows: Array) -> None:
        *sources, out = rows
        if ftz:
            sources = [flush(s) for s in sources]
        result = np.empty_like(out)
        base(*sources, result)
        if ftz:
            result = flush(result)
        if sat:
            result = _saturated(result)
        if relu:
            result = _rectified(result)
        np.copyto(out, result)

    return run


_SIGNS: dict[str, Compute] = {
    "neg": lambda a, out: np.bitwise_xor(a, np.uint16(0x8000), out),
    "abs": lambda a, out: np.bitwise_and(a, np.uint16(0x7FFF), out),
}


@lru_cache(None)
def _bf16(opcode: str, modifiers: _Modifiers) -> Compute:
    """Operations on the bits of bfloat16 numbers."""
    mode, ftz, sat, nan, relu, magnitudes, signed = modifiers
    if opcode in _SIGNS:
        return _SIGNS[opcode]
    if mode != "rn":
        raise UnsupportedFormError(f"rounding .{mode} of bf16")
    base = None if opcode == "fma" else _base(opcode, nan)
    if magnitudes:
        base = _extreme(opcode, nan, magnitudes, signed)

    def run(*rows: Array) -> None:
        *bits, out = rows
        sources = [flush(v) if ftz else v for v in map(bf16_values, bits)]
        wide = [v.astype(np.float64) for v in sources]
        lost: Array | float = 0.0
        if base is None:
            exact, lost = two_sum(wide[0] * wide[1], wide[2])
        elif opcode in ("add", "sub"):
            exact, lost = two_sum(wide[0], wide[1] if opcode == "add" else -wide[1])
        else:
            exact = np.empty(out.shape)
            base(*wide, exact)
        if sat:
            exact = _saturated(exact)
        if relu:
            exact = _rectified(exact)
        result = exact_to_bf16(exact, lost)
        if ftz:
            result = np.where(is_subnormal(bf16_values(result)), result & np.uint16(0x8000), result)
        np.copyto(out, result)

    return run


_MODIFIERS = frozenset({"rn", "rz", "rm", "rp", "ftz", "sat", "NaN", "relu", "approx", "full", "abs", "xorsign"})


def _floating(ins: Instruction, count: int) -> Elementwise:
    *marks, kind = ins.modifiers
    half = kind if kind in ("f16", "bf16") and marks[-1:] == ["f32"] and ins.opcode in ("add", "sub", "fma") else ""
    if half:
        kind = marks.pop()
    if kind not in _FLOATS or not _MODIFIERS.issuperset(marks) or len(ins.operands) != count + 1:
        raise UnsupportedFormError
    mode = next((m for m in marks if m in _MODES), "rn")
    modifiers = _Modifiers(mode, *(mark in marks for mark in ("ftz", "sat", "NaN", "relu", "abs", "xorsign")))
    function = _bf16(ins.opcode, modifiers) if "bf16" in kind else _function(ins.opcode, kind, modifiers, count)
    if half:  # all sources but the last are widened
        return lanewise(ins, widened(function), kind, *(half,) * (count - 1), kind)
    return lanewise(ins, function, kind)


@elementwise("add", "sub", "min", "max", "neg", "abs", "mul", "mad", "div", "fma")
def _arithmetic(ins: Instruction) -> Elementwise | list[Elementwise]:
    """Arithmetic of integers, too, whose opcodes are the same."""
    opcode, kind = ins.opcode, ins.modifiers[-1]
    if "cc" in ins.modifiers and opcode in ("add", "sub", "mad"):
        return carrying(ins)
    if kind in INTEGERS and opcode != "fma":
        if opcode == "div":
            return lanewise(ins, divide, kind)
        return integer_multiply(ins) if opcode in ("mul", "mad") else integer_plain(ins)
    if opcode == "mad":
        return _floating(replace(ins, opcode="fma"), 3)
    three = opcode in ("min", "max") and kind == "f32" and len(ins.operands) == 4
    return _floating(ins, 3 if three or opcode == "fma" else 1 if opcode in ("neg", "abs") else 2)


@elementwise("sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh")
def _special(ins: Instruction) -> Elementwise:
    return _floating(ins, 1)


same_type({"copysign": lambda a, b, out: np.copysign(b, a, out)})

_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & ~is_subnormal(a),
    "subnormal": lambda a: (a != 0) & is_subnormal(a),
}


@lru_cache(None)
def _test(name: str) -> Compute:
    function = _TESTS[name]
    return lambda a, out: np.copyto(out, function(a))


@elementwise("testp")
def _testp(ins: Instruction) -> Elementwise:
    name, kind = ins.modifiers
    return lanewise(ins, _test(name), "pred", kind)
