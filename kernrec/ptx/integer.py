"""Integer, logic and bit-field instructions.

Arithmetic wraps, shifts by the width or more give 0 (or the sign), as the PTX ISA manual says (section 9.7.1 and on).
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from kernrec.ptx.decode import Compute, Elementwise, UnknownVariantError, elementwise
from kernrec.ptx.program import Immediate, Instruction
from kernrec.ptx.state import DTYPES, WIDTHS, Array

INTEGERS = frozenset(k + w for k in "us" for w in ("8", "16", "32", "64"))


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
        raise UnknownVariantError("")
    if ins.opcode in ("mul24", "mad24"):
        if "hi" in ins.modifiers:
            raise UnknownVariantError("")
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
    """Truncating division; a zero divisor gives all ones, as the hardware does."""
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
    """The lesser; NaN where one is NaN."""
    np.minimum(a, b, out=out)


def maximum(a: Array, b: Array, out: Array) -> None:
    """The greater; NaN where one is NaN."""
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
    if "sat" in ins.modifiers:
        function = _SATURATING[ins.opcode]
    elif len(ins.modifiers) > 1:
        raise UnknownVariantError("")
    return Elementwise(function, ins.operands[0], kind, ins.operands[1:], (kind,) * (len(ins.operands) - 1))


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


def _shift_left(a: Array, b: Array, out: Array) -> None:
    np.left_shift(a, np.minimum(b, 64).astype(a.dtype), out)


def _shift_right(a: Array, b: Array, out: Array) -> None:
    np.right_shift(a, np.minimum(b, 64).astype(a.dtype), out)


@elementwise("shl", "shr")
def _shift(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    amount = ins.operands[2]
    if WIDTHS[kind] == 32:
        # NumPy defines shifts by the width or more; an amount above 2**31 is such a shift in either signedness.
        same = "s32" if kind[0] == "s" else "u32"
        ufunc: Compute = np.left_shift if ins.opcode == "shl" else np.right_shift
        return Elementwise(ufunc, ins.operands[0], kind, (ins.operands[1], amount), (kind, same))
    function = _shift_left if ins.opcode == "shl" else _shift_right
    return Elementwise(function, ins.operands[0], kind, (ins.operands[1], amount), (kind, "u32"))


def _funnel(left: bool, wrap: bool) -> Compute:
    def shift(a: Array, b: Array, c: Array, out: Array) -> None:
        amount = c & np.uint32(31) if wrap else np.minimum(c, np.uint32(32))
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        shifted = (both << amount) >> np.uint64(32) if left else both >> amount
        np.copyto(out, shifted, casting="unsafe")

    return shift


_FUNNELS = {(left, wrap): _funnel(left, wrap) for left in (False, True) for wrap in (False, True)}


@elementwise("shf")
def _shf(ins: Instruction) -> Elementwise:
    function = _FUNNELS["l" in ins.modifiers, "wrap" in ins.modifiers]
    return Elementwise(function, ins.operands[0], "u32", ins.operands[1:], ("u32",) * 3)


def _popc(a: Array, out: Array) -> None:
    bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, -1), axis=-1)
    np.copyto(out, bits.sum(axis=-1), casting="unsafe")


def _significant(a: Array) -> Array:
    """Position of the highest set bit, -1 for 0."""
    result = np.full(a.shape, -1, np.int64)
    value = a.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        high = value >> np.uint64(step)
        up = high != 0
        result += np.where(up, step, 0)
        value = np.where(up, high, value)
    return result + (value != 0)


def _clz(a: Array, out: Array) -> None:
    np.copyto(out, a.dtype.itemsize * 8 - 1 - _significant(a), casting="unsafe")


def _brev(a: Array, out: Array) -> None:
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, -1)
    bits = np.unpackbits(octets, axis=-1)[..., ::-1]
    # Reversing the bit string of the bytes (each most significant first) reverses bytes and bits at once.
    reversed_bytes = np.packbits(bits, axis=-1)
    np.copyto(out, np.ascontiguousarray(reversed_bytes).view(a.dtype)[..., 0])


def _bfind(amount: bool) -> Compute:
    def find(a: Array, out: Array) -> None:
        bits = a.dtype.itemsize * 8
        value = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
        position = _significant(value.view(f"u{a.dtype.itemsize}"))
        if amount:
            position = np.where(position < 0, -1, bits - 1 - position)
        np.copyto(out, position, casting="unsafe")

    return find


_BFIND = {amount: _bfind(amount) for amount in (False, True)}


@elementwise("popc", "clz", "brev", "bfind")
def _bits(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    if ins.opcode == "brev":
        return Elementwise(_brev, ins.operands[0], kind, ins.operands[1:], (kind,))
    if ins.opcode == "bfind":
        return Elementwise(_BFIND["shiftamt" in ins.modifiers], ins.operands[0], "u32", ins.operands[1:], (kind,))
    unsigned = f"u{kind[1:]}"
    return Elementwise(_popc if ins.opcode == "popc" else _clz, ins.operands[0], "u32", ins.operands[1:], (unsigned,))


def _bfe(a: Array, b: Array, c: Array, out: Array) -> None:
    bits = a.dtype.itemsize * 8
    start = (b & 0xFF).astype(np.int64)
    length = (c & 0xFF).astype(np.int64)
    unsigned = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    field = np.where(start < bits, unsigned >> np.minimum(start, 63).astype(np.uint64), np.uint64(0))
    keep = np.minimum(length, bits)
    mask = np.where(keep >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(keep, 63).astype(np.uint64)) - np.uint64(1))
    field = field & mask
    if a.dtype.kind == "i":
        last = np.minimum(start + length - 1, bits - 1)
        sign = (unsigned >> np.maximum(last, 0).astype(np.uint64)) & np.uint64(1)
        inside = np.minimum(np.maximum(bits - start, 0), keep)
        above = np.where(
            inside >= 64, np.uint64(0), ~((np.uint64(1) << np.minimum(inside, 63).astype(np.uint64)) - np.uint64(1))
        )
        field = np.where((sign != 0) & (length > 0), field | above, field)
    np.copyto(out, field.astype(f"u{a.dtype.itemsize}").view(out.dtype))


def _bfi(a: Array, b: Array, c: Array, d: Array, out: Array) -> None:
    bits = a.dtype.itemsize * 8
    start = np.minimum((c & 0xFF).astype(np.int64), 64)
    length = np.minimum((d & 0xFF).astype(np.int64), 64)
    one = np.uint64(1)
    ones = np.where(length >= 64, ~np.uint64(0), (one << np.minimum(length, 63).astype(np.uint64)) - one)
    shift = np.minimum(start, 63).astype(np.uint64)
    mask = np.where(start >= bits, np.uint64(0), ones << shift)
    moved = a.astype(np.uint64) << shift
    np.copyto(out, (b.astype(np.uint64) & ~mask) | (moved & mask), casting="unsafe")


@elementwise("bfe", "bfi")
def _field(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    if ins.opcode == "bfe":
        return Elementwise(_bfe, ins.operands[0], kind, ins.operands[1:], (kind, "u32", "u32"))
    return Elementwise(_bfi, ins.operands[0], kind, ins.operands[1:], (kind, kind, "u32", "u32"))


@lru_cache(None)
def _lop3(table: int) -> Compute:
    def logic(a: Array, b: Array, c: Array, out: Array) -> None:
        result = np.zeros_like(a)
        for i in range(8):
            if table >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        np.copyto(out, result)

    return logic


@elementwise("lop3")
def _lop3_(ins: Instruction) -> Elementwise:
    table = ins.operands[4]
    if not isinstance(table, Immediate) or len(ins.modifiers) > 1:
        raise UnknownVariantError("")
    return Elementwise(_lop3(int(table.value)), ins.operands[0], "b32", ins.operands[1:4], ("b32",) * 3)


def _prmt(a: Array, b: Array, c: Array, out: Array) -> None:
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.zeros(a.shape, np.uint64)
    for i in range(4):
        selector = (c >> np.uint32(4 * i)) & np.uint32(15)
        octet = (both >> ((selector & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)
        sign = np.where(octet & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        result |= np.where(selector & np.uint32(8), sign, octet) << np.uint64(8 * i)
    np.copyto(out, result, casting="unsafe")


@elementwise("prmt")
def _prmt_(ins: Instruction) -> Elementwise:
    if len(ins.modifiers) > 1:
        raise UnknownVariantError("a special mode of prmt")
    return Elementwise(_prmt, ins.operands[0], "u32", ins.operands[1:], ("u32",) * 3)


def _dp4a(a: Array, b: Array, c: Array, out: Array) -> None:
    kinds = ("i1" if a.dtype.kind == "i" else "u1", "i1" if b.dtype.kind == "i" else "u1")
    total = c.astype(np.int64)
    for i in range(4):
        total = total + a.view(kinds[0])[..., i::4].astype(np.int64) * b.view(kinds[1])[..., i::4]
    np.copyto(out, total, casting="unsafe")


@elementwise("dp4a")
def _dp4a_(ins: Instruction) -> Elementwise:
    one, other = ins.modifiers[-2:]
    kind = "s32" if "s32" in (one, other) else "u32"
    return Elementwise(_dp4a, ins.operands[0], kind, ins.operands[1:], (one, other, kind))
