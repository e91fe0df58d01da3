"""Integer arithmetic and logic. Arithmetic wraps, as the PTX ISA manual says (from section 9.7.1 on)."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from kernrec.ptx.instructions.registry import Compute, Elementwise, UnsupportedFormError, elementwise
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array

INTEGERS = frozenset(k + w for k in "us" for w in ("8", "16", "32", "64", "16x2"))


def wide(kind: str) -> str:
    """The type twice as wide."""
    return f"{kind[0]}{2 * int(kind[1:])}"


def _mad(a: Array, b: Array, c: Array, out: Array) -> None:
    np.add(np.multiply(a, b), c, out)


@lru_cache(None)
def _mul_wide(kind: str) -> Compute:
    dtype = DTYPES[wide(kind)]
    return lambda a, b, out: np.multiply(a, b, out, dtype=dtype)


@lru_cache(None)
def _mad_wide(kind: str) -> Compute:
    dtype = DTYPES[wide(kind)]
    return lambda a, b, c, out: np.add(np.multiply(a, b, dtype=dtype), c, out)


def _high64(a: Array, b: Array) -> Array:
    """The upper half of the 128-bit product of unsigned 64-bit numbers."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> shift) + (other >> shift)


@lru_cache(None)
def _mul_hi(kind: str) -> Callable[[Array, Array], Array]:
    bits = WIDTHS[kind]
    if bits == 64:
        if kind == "u64":
            return _high64

        def signed(a: Array, b: Array) -> Array:
            high = _high64(a.view("u8"), b.view("u8")).view("i8")
            return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)

        return signed
    dtype = DTYPES[wide(kind)]
    narrow = DTYPES[kind]
    return lambda a, b: (np.multiply(a, b, dtype=dtype) >> dtype.type(bits)).astype(narrow)


@lru_cache(None)
def _hi(kind: str, plus: bool) -> Compute:
    high = _mul_hi(kind)

    def multiply(a: Array, b: Array, out: Array) -> None:
        np.copyto(out, high(a, b))

    def multiply_add(a: Array, b: Array, c: Array, out: Array) -> None:
        np.add(high(a, b), c, out)

    return multiply_add if plus else multiply


def _mul24(a: Array, b: Array, out: Array) -> None:
    shift = a.dtype.type(8)
    np.multiply((a << shift) >> shift, (b << shift) >> shift, out)


def _mad24(a: Array, b: Array, c: Array, out: Array) -> None:
    shift = a.dtype.type(8)
    np.add(((a << shift) >> shift) * ((b << shift) >> shift), c, out)


def integer_multiply(ins: Instruction) -> Elementwise:
    """`mul` and `mad` of integers: `.lo`, `.hi`, `.wide`."""
    kind = ins.modifiers[-1]
    d, *sources = ins.operands
    plus = ins.opcode in ("mad", "mad24")
    if "cc" in ins.modifiers or "sat" in ins.modifiers:
        raise UnsupportedFormError
    if ins.opcode in ("mul24", "mad24"):
        if "hi" in ins.modifiers:
            raise UnsupportedFormError
        return Elementwise(_mad24 if plus else _mul24, d, kind, tuple(sources), (kind,) * len(sources))
    if "wide" in ins.modifiers:
        result = wide(kind)
        types = (kind, kind, result) if plus else (kind, kind)
        return Elementwise((_mad_wide if plus else _mul_wide)(kind), d, result, tuple(sources), types)
    if "hi" in ins.modifiers:
        return Elementwise(_hi(kind, plus), d, kind, tuple(sources), (kind,) * len(sources))
    return Elementwise(_mad if plus else np.multiply, d, kind, tuple(sources), (kind,) * len(sources))


@elementwise("mul24", "mad24")
def _multiply24(ins: Instruction) -> Elementwise:
    return integer_multiply(ins)


def _divide(a: Array, b: Array, out: Array) -> None:
    """Truncating division; a zero divisor gives all ones, as on the hardware."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        remainder = a - quotient * safe
        quotient = quotient + ((remainder != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    np.copyto(out, quotient)
    if zero.any():
        np.copyto(out, out.dtype.type(-1) if a.dtype.kind == "i" else np.iinfo(a.dtype).max, where=zero)


def _remainder(a: Array, b: Array, out: Array) -> None:
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    result = np.fmod(a, safe)
    np.copyto(out, np.where(zero, a, result))


def integer_divide(ins: Instruction) -> Elementwise:
    """`div` of integers."""
    kind = ins.modifiers[-1]
    return Elementwise(_divide, ins.operands[0], kind, ins.operands[1:], (kind, kind))


@elementwise("rem")
def _rem(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    return Elementwise(_remainder, ins.operands[0], kind, ins.operands[1:], (kind, kind))


def _sad(a: Array, b: Array, c: Array, out: Array) -> None:
    np.add(c, np.where(a < b, b - a, a - b).astype(c.dtype), out)


@elementwise("sad")
def _sad_(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    return Elementwise(_sad, ins.operands[0], kind, ins.operands[1:], (kind,) * 3)


def _saturating(subtract: bool) -> Compute:
    def add(a: Array, b: Array, out: Array) -> None:
        total = a.astype(np.int64) - b if subtract else a.astype(np.int64) + b
        np.copyto(out, np.clip(total, -(1 << 31), (1 << 31) - 1), casting="unsafe")

    return add


_SATURATING = {"add": _saturating(False), "sub": _saturating(True)}


def minimum(a: Array, b: Array, out: Array) -> None:
    """The smaller value; NaN where one of them is NaN."""
    np.minimum(a, b, out=out)


def maximum(a: Array, b: Array, out: Array) -> None:
    """The larger value; NaN where one of them is NaN."""
    np.maximum(a, b, out=out)


_PLAIN: dict[str, Compute] = {
    "add": np.add,
    "sub": np.subtract,
    "min": minimum,
    "max": maximum,
    "neg": np.negative,
    "abs": np.absolute,
}


def integer_plain(ins: Instruction) -> Elementwise:
    """`add sub min max neg abs` of integers."""
    kind = ins.modifiers[-1]
    function = _PLAIN[ins.opcode]
    count = 1 if ins.opcode in ("neg", "abs") else 2
    if len(ins.operands) != count + 1:
        raise UnsupportedFormError(f"{len(ins.operands) - 1} sources")
    if "sat" in ins.modifiers:
        function = _SATURATING[ins.opcode]
    elif len(ins.modifiers) > 1:
        raise UnsupportedFormError
    return Elementwise(function, ins.operands[0], kind, ins.operands[1:], (kind,) * count)


_BITWISE: dict[str, Compute] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
_LOGICAL: dict[str, Compute] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
}


@elementwise("and", "or", "xor", "not")
def _bitwise(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    table = _LOGICAL if kind == "pred" else _BITWISE
    return Elementwise(table[ins.opcode], ins.operands[0], kind, ins.operands[1:], (kind,) * (len(ins.operands) - 1))


def _cnot(a: Array, out: Array) -> None:
    np.copyto(out, a == 0)


@elementwise("cnot")
def _cnot_(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    return Elementwise(_cnot, ins.operands[0], kind, ins.operands[1:], (kind,))


def _dp4a(a: Array, b: Array, c: Array, out: Array) -> None:
    kinds = ("i1" if a.dtype.kind == "i" else "u1", "i1" if b.dtype.kind == "i" else "u1")
    total = c.astype(np.int64)
    for i in range(4):
        total = total + a.view(kinds[0])[..., i::4].astype(np.int64) * b.view(kinds[1])[..., i::4]
    np.copyto(out, total, casting="unsafe")


@lru_cache(None)
def _dp2a(start: int) -> Compute:
    def dot(a: Array, b: Array, c: Array, out: Array) -> None:
        halves, octets = ("i2" if a.dtype.kind == "i" else "u2"), ("i1" if b.dtype.kind == "i" else "u1")
        total = c.astype(np.int64)
        for i in range(2):
            total = total + a.view(halves)[..., i::2].astype(np.int64) * b.view(octets)[..., start + i :: 4]
        np.copyto(out, total, casting="unsafe")

    return dot


@elementwise("dp4a", "dp2a")
def _dot_product(ins: Instruction) -> Elementwise:
    first, second = ins.modifiers[-2:]
    kind = "s32" if "s32" in (first, second) else "u32"
    function = _dp4a if ins.opcode == "dp4a" else _dp2a(2 if "hi" in ins.modifiers else 0)
    return Elementwise(function, ins.operands[0], kind, ins.operands[1:], (first, second, kind))


@lru_cache(None)
def _differences(kind: str, add: bool) -> Compute:
    octets = "i1" if kind[0] == "s" else "u1"

    def differ(a: Array, b: Array, c: Array, out: Array) -> None:
        apart = np.abs(a.view(octets).astype(np.int16) - b.view(octets)).astype(np.uint8)
        if add:
            total = c.astype(np.int64)
            for i in range(4):
                total = total + apart[..., i::4]
            np.copyto(out, total, casting="unsafe")
        else:
            np.copyto(out, apart.view(out.dtype))

    return differ


@elementwise("vabsdiff4")
def _vabsdiff4(ins: Instruction) -> Elementwise:
    result, kind, other, *add = ins.modifiers
    if kind != other or add not in ([], ["add"]):
        raise UnsupportedFormError
    return Elementwise(_differences(kind, bool(add)), ins.operands[0], result, ins.operands[1:], (kind, kind, result))
