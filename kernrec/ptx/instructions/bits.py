"""Operations on bits: shifts, bit fields, counting, permutation of bytes, logic of three operands.

Shifts by the width or more give 0 (or the sign), as the PTX ISA manual says (sections 9.7.1 and 9.7.8).
"""

from functools import lru_cache

import numpy as np

from kernrec.ptx.instructions.registry import (
    Compute,
    Elementwise,
    UnsupportedFormError,
    elementwise,
    lanewise,
    same_type,
)
from kernrec.ptx.ir.operand import Immediate
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import WIDTHS, Array


@lru_cache(None)
def _clamped_shift(shift: np.ufunc) -> Compute:
    return lambda a, b, out: shift(a, np.minimum(b, 64).astype(a.dtype), out)


@elementwise("shl", "shr")
def _shift(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    shift = np.left_shift if ins.opcode == "shl" else np.right_shift
    if WIDTHS[kind] == 32:
        # NumPy defines shifts by the width or more; an amount above 2**31 is such a shift in either signedness.
        return lanewise(ins, shift, kind, kind, "s32" if kind[0] == "s" else "u32")
    return lanewise(ins, _clamped_shift(shift), kind, kind, "u32")


def _amount(count: Array, wrap: bool) -> Array:
    """The number of bits, 0 to 32, that an operand of a `.wrap` or `.clamp` instruction stands for."""
    return (count & np.uint32(31) if wrap else np.minimum(count, np.uint32(32))).astype(np.uint64)


@lru_cache(None)
def _funnel(left: bool, wrap: bool) -> Compute:
    def shift(a: Array, b: Array, c: Array, out: Array) -> None:
        amount = _amount(c, wrap)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        shifted = (both << amount) >> np.uint64(32) if left else both >> amount
        np.copyto(out, shifted, casting="unsafe")

    return shift


@elementwise("shf")
def _shf(ins: Instruction) -> Elementwise:
    return lanewise(ins, _funnel("l" in ins.modifiers, "wrap" in ins.modifiers), "u32")


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
    position: Array = result + (value != 0)
    return position


def _clz(a: Array, out: Array) -> None:
    np.copyto(out, a.dtype.itemsize * 8 - 1 - _significant(a), casting="unsafe")


def _brev(a: Array, out: Array) -> None:
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, -1)
    bits = np.unpackbits(octets, axis=-1)[..., ::-1]
    # Reversing the bit string of the bytes (each most significant first) reverses bytes and bits at once.
    reversed_bytes = np.packbits(bits, axis=-1)
    np.copyto(out, np.ascontiguousarray(reversed_bytes).view(a.dtype)[..., 0])


same_type({"brev": _brev})


@lru_cache(None)
def _bfind(amount: bool) -> Compute:
    def find(a: Array, out: Array) -> None:
        bits = a.dtype.itemsize * 8
        value = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
        position = _significant(value.view(f"u{a.dtype.itemsize}"))
        if amount:
            position = np.where(position < 0, -1, bits - 1 - position)
        np.copyto(out, position, casting="unsafe")

    return find


@elementwise("popc", "clz", "bfind")
def _bits(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    if ins.opcode == "bfind":
        return lanewise(ins, _bfind("shiftamt" in ins.modifiers), "u32", kind)
    return lanewise(ins, _popc if ins.opcode == "popc" else _clz, "u32", f"u{kind[1:]}")


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
    bit = np.uint64(1)
    ones = np.where(length >= 64, ~np.uint64(0), (bit << np.minimum(length, 63).astype(np.uint64)) - bit)
    shift = np.minimum(start, 63).astype(np.uint64)
    mask = np.where(start >= bits, np.uint64(0), ones << shift)
    moved = a.astype(np.uint64) << shift
    np.copyto(out, (b.astype(np.uint64) & ~mask) | (moved & mask), casting="unsafe")


@elementwise("bfe", "bfi")
def _field(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    if ins.opcode == "bfe":
        return lanewise(ins, _bfe, kind, kind, "u32", "u32")
    return lanewise(ins, _bfi, kind, kind, kind, "u32", "u32")


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
        raise UnsupportedFormError
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
        raise UnsupportedFormError("a special mode of prmt")
    return lanewise(ins, _prmt, "u32")


@lru_cache(None)
def _szext(wrap: bool) -> Compute:
    def extend(a: Array, b: Array, out: Array) -> None:
        unused = np.uint64(64) - _amount(b, wrap)
        value = a.astype(np.int64) if a.dtype.kind == "i" else a.astype(np.uint64)
        # a shift by 64, of a field of no bits, is 0 in NumPy
        np.copyto(out, (value << unused.astype(value.dtype)) >> unused.astype(value.dtype), casting="unsafe")

    return extend


@lru_cache(None)
def _bmsk(wrap: bool) -> Compute:
    def mask(a: Array, b: Array, out: Array) -> None:
        start, length, bit = _amount(a, wrap), _amount(b, wrap), np.uint64(1)
        end = np.minimum(start + length, np.uint64(32))
        np.copyto(out, ((bit << end) - bit) & ~((bit << start) - bit), casting="unsafe")

    return mask


@elementwise("szext", "bmsk")
def _widths(ins: Instruction) -> Elementwise:
    mode, kind = ins.modifiers
    if ins.opcode == "szext":
        return lanewise(ins, _szext(mode == "wrap"), kind, kind, "u32")
    return lanewise(ins, _bmsk(mode == "wrap"), "u32")
