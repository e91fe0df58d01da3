"""Integer arithmetic and logic. Arithmetic wraps, as the PTX ISA manual says (from section 9.7.1 on).

Extended precision (`add.cc addc sub.cc subc mad.cc madc`): the carry (or borrow) of each thread is in a row of its own,
`%carry`. An instruction that reads and writes it first computes the new carry in `%carry_next`, because the old one is
needed until the result is computed.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from kernrec.ptx.instructions.registry import (
    Compute,
    Elementwise,
    UnsupportedFormError,
    copy_row,
    elementwise,
    lanewise,
    same_type,
)
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import DTYPES, Array

INTEGERS = frozenset(k + w for k in "us" for w in ("8", "16", "32", "64", "16x2"))
_CARRY, _NEXT = Register("%carry"), Register("%carry_next")


def _high64(a: Array, b: Array) -> Array:
    """The upper half of the 128-bit product of unsigned 64-bit numbers."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    other = a0 * b1 + (middle & low)
    product: Array = a1 * b1 + (middle >> shift) + (other >> shift)
    return product


def _high(a: Array, b: Array) -> Array:
    """The upper half of the product of integers of one type."""
    if a.dtype.itemsize == 8:
        if a.dtype.kind == "u":
            return _high64(a, b)
        high: Array = _high64(a.view("u8"), b.view("u8")).view("i8")
        return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    product: Array = (np.multiply(a, b, dtype=wide) >> wide.type(8 * a.dtype.itemsize)).astype(a.dtype)
    return product


def _low24(a: Array, b: Array) -> Array:
    """The lower half of the product of the lower 24 bits."""
    shift = a.dtype.type(8)
    product: Array = ((a << shift) >> shift) * ((b << shift) >> shift)
    return product


_MULTIPLY: dict[str, Callable[[Array, Array], Array]] = {"hi": _high, "lo": np.multiply, "24": _low24}


@lru_cache(None)
def _product(part: str, plus: bool) -> Compute:
    multiply = _MULTIPLY[part]
    if plus:
        return lambda a, b, c, out: np.add(multiply(a, b), c, out)
    return np.multiply if part == "lo" else lambda a, b, out: np.copyto(out, multiply(a, b))


@lru_cache(None)
def _wide_product(wide: str, plus: bool) -> Compute:
    dtype = DTYPES[wide]
    if plus:
        return lambda a, b, c, out: np.add(np.multiply(a, b, dtype=dtype), c, out)
    return lambda a, b, out: np.multiply(a, b, out, dtype=dtype)


@elementwise("mul24", "mad24")
def integer_multiply(ins: Instruction) -> Elementwise:
    """`mul` and `mad` of integers: `.lo`, `.hi`, `.wide`; `mul24` and `mad24`."""
    kind = ins.modifiers[-1]
    plus, short = ins.opcode[:3] == "mad", ins.opcode.endswith("24")
    if "cc" in ins.modifiers or "sat" in ins.modifiers or (short and "hi" in ins.modifiers):
        raise UnsupportedFormError
    if "wide" in ins.modifiers and not short:
        wide = f"{kind[0]}{2 * int(kind[1:])}"
        return lanewise(ins, _wide_product(wide, plus), wide, kind, kind, *[wide] * plus)
    return lanewise(ins, _product("24" if short else "hi" if "hi" in ins.modifiers else "lo", plus), kind)


def divide(a: Array, b: Array, out: Array) -> None:
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


same_type(
    {
        "rem": _remainder,
        "sad": lambda a, b, c, out: np.add(c, np.where(a < b, b - a, a - b).astype(c.dtype), out),
        "cnot": lambda a, out: np.copyto(out, a == 0),
    }
)


def _saturating(operation: np.ufunc, a: Array, b: Array, out: Array) -> None:
    total = operation(a.astype(np.int64), b)
    np.copyto(out, np.clip(total, -(1 << 31), (1 << 31) - 1), casting="unsafe")


_SATURATING: dict[str, Compute] = {"add": partial(_saturating, np.add), "sub": partial(_saturating, np.subtract)}


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
    if len(ins.operands) != (2 if ins.opcode in ("neg", "abs") else 3):
        raise UnsupportedFormError(f"{len(ins.operands) - 1} sources")
    saturates = "sat" in ins.modifiers
    if not saturates and len(ins.modifiers) > 1:
        raise UnsupportedFormError
    return lanewise(ins, (_SATURATING if saturates else _PLAIN)[ins.opcode], ins.modifiers[-1])


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
    return lanewise(ins, (_LOGICAL if kind == "pred" else _BITWISE)[ins.opcode], kind)


@lru_cache(None)
def _dot(octets_from: int, count: int) -> Compute:
    """The sum of products of `count` parts of the first source with octets of the second from one on, and the third."""

    def dot(a: Array, b: Array, c: Array, out: Array) -> None:
        parts, octets = a.view(f"{a.dtype.kind}{4 // count}"), b.view(f"{b.dtype.kind}1")
        total = c.astype(np.int64)
        for i in range(count):
            total = total + parts[..., i::count].astype(np.int64) * octets[..., octets_from + i :: 4]
        np.copyto(out, total, casting="unsafe")

    return dot


@elementwise("dp4a", "dp2a")
def _dot_product(ins: Instruction) -> Elementwise:
    first, second = ins.modifiers[-2:]
    kind = "s32" if "s32" in (first, second) else "u32"
    function = _dot(0, 4) if ins.opcode == "dp4a" else _dot(2 if "hi" in ins.modifiers else 0, 2)
    return lanewise(ins, function, kind, first, second, kind)


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
    return lanewise(ins, _differences(kind, bool(add)), result, kind, kind, result)


def _sum(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    """Sum and carry of unsigned numbers."""
    total = a + b
    over = total < a
    if carry is not None:
        more = total + carry.astype(a.dtype)
        over, total = over | (more < total), more
    return total, over


def _difference(a: Array, b: Array, borrow: Array | None) -> tuple[Array, Array]:
    """Difference and borrow of unsigned numbers."""
    left = a - b
    under = a < b
    if borrow is not None:
        less = left - borrow.astype(a.dtype)
        under, left = under | (less > left), less
    return left, under


@lru_cache(None)
def _with_carry(operation: str, product: Compute | None, carried: bool, which: int) -> Compute:
    """The result (`which` 0) or the carry (1) of one instruction; `product` computes the first summand of `mad`."""
    law = _difference if operation == "sub" else _sum

    def run(*rows: Array) -> None:
        *sources, out = rows
        carry = sources.pop() if carried else None
        if product is None:
            a, b = sources
        else:
            a, b = np.empty_like(sources[0]), sources[2]
            product(sources[0], sources[1], a)
        unsigned = f"u{a.dtype.itemsize}"
        np.copyto(out if which else out.view(unsigned), law(a.view(unsigned), b.view(unsigned), carry)[which])

    return run


@elementwise("addc", "subc", "madc")
def carrying(ins: Instruction) -> list[Elementwise]:
    """An instruction that reads or writes a carry, as elementwise instructions in order."""
    kind, operation = ins.modifiers[-1], ins.opcode[:3]
    carried, sets = ins.opcode.endswith("c"), "cc" in ins.modifiers
    if kind not in ("u32", "s32", "u64", "s64"):
        raise UnsupportedFormError
    product = _product("hi" if "hi" in ins.modifiers else "lo", False) if operation == "mad" else None
    d, *sources = ins.operands
    types = [kind] * len(sources)
    if carried:
        sources.append(_CARRY)
        types.append("u32")
    result = Elementwise(_with_carry(operation, product, carried, 0), d, kind, tuple(sources), tuple(types))
    if not sets:
        return [result]
    carry = Elementwise(_with_carry(operation, product, carried, 1), _NEXT, "u32", tuple(sources), tuple(types))
    return [carry, result, Elementwise(copy_row, _CARRY, "u32", (_NEXT,), ("u32",))]
