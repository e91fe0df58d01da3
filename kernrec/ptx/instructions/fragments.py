"""Fragments of matrices in the registers of a warp: where each element lies, and what its bits stand for.

Layouts are those of the PTX ISA manual, section "Warp-level matrix fragments"; `kernrec.ptx.instructions.matrix` states
them. A warp of a warpgroup has 16 of its 64 rows, in the same layouts (`kernrec.ptx.instructions.wgmma`).

Numbers of 4 and 6 bits, and scale factors of 8 bits: PTX ISA, section "Alternate Floating-Point Data Formats". e2m1
(bias 1), e2m3 (bias 1) and e3m2 (bias 3) have neither infinity nor NaN; ue8m0 is a power of two, its highest code NaN;
ue4m3 is an e4m3 without a sign.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import UnsupportedFormError
from kernrec.ptx.instructions.rounding import bf16_values, tf32_of
from kernrec.ptx.ir.operand import Operand, elements
from kernrec.ptx.state.access_cost import Counts
from kernrec.ptx.state.types import Array
from kernrec.util.float8 import fp8_values

Rows = tuple[int, ...]
"""The rows of the register files that hold a fragment."""

Warps = Array | slice
"""Numbers of warps of the batch; `slice(None)`: all."""


_FORMATS = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}  # bits of exponent and mantissa, bias
NARROW_BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
"""Bits of a number that is no element of `ELEMENT_TYPES`."""


@lru_cache(None)
def _narrow_table(kind: str) -> Array:
    exponent_bits, mantissa_bits, bias = _FORMATS[kind]
    codes = np.arange(1 << NARROW_BITS[kind])
    mantissa = codes & (1 << mantissa_bits) - 1
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    scale = np.exp2(np.maximum(exponent, 1) - bias - mantissa_bits)
    value = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits)) * scale
    numbers: Array = np.where(codes >> NARROW_BITS[kind] - 1, -value, value).astype(np.float32)
    return numbers


def narrow_values(kind: str, codes: Array) -> Array:
    """Codes (uint8) of `e2m1`, `e2m3` or `e3m2` as float32; bits above the number are ignored."""
    numbers: Array = _narrow_table(kind)[codes & (1 << NARROW_BITS[kind]) - 1]
    return numbers


def scale_values(kind: str, codes: Array) -> Array:
    """Scale factors (uint8) of `ue8m0` or `ue4m3` as float64."""
    if kind == "ue4m3":
        return fp8_values("e4m3", codes & 0x7F).astype(np.float64)
    return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))


def nibbles(rows: Array) -> Array:
    """The 4-bit codes of bytes (..., n), the lower one first; (..., 2 n)."""
    return np.stack([rows & 15, rows >> 4], axis=-1).reshape(*rows.shape[:-1], -1)


class ElementType(NamedTuple):
    """An operand type: how its registers are read, and as what its operations are counted."""

    bits: int
    """Bits of an element."""

    dtype: str
    """NumPy type of what a register is split into: an element, or a byte of several."""

    values: Callable[[Array], Array]
    """From these to numbers."""

    counted: str
    """The type that its operations are counted as."""

    share: float = 1.0
    """Time of an operation over that of what it is counted as."""

    @property
    def width(self) -> int:
        """Bits of a register."""
        return max(self.bits, 32)

    @property
    def per_register(self) -> int:
        """Elements in a register."""
        return self.width // self.bits

    @property
    def bytes(self) -> int:
        """Bytes of the NumPy type."""
        return np.dtype(self.dtype).itemsize

    def count_operations(self, counts: Counts | None, operations: int, *units: str) -> None:
        """Counts operations as `mma.<type>`, and once more for each other unit that is named."""
        if counts is not None:
            for unit in ("mma", *units):
                counts.bump(f"{unit}.{self.counted}", int(operations * self.share))


def _same(a: Array) -> Array:
    return a


def _signed_nibbles(a: Array) -> Array:
    low = nibbles(a).astype(np.int8)
    return np.where(low > 7, low - 16, low)


ELEMENT_TYPES = {
    "f16": ElementType(16, "f2", _same, "f16"),
    "bf16": ElementType(16, "u2", bf16_values, "bf16"),
    "tf32": ElementType(32, "u4", lambda a: tf32_of(a).view(np.float32), "tf32"),
    "e4m3": ElementType(8, "u1", partial(fp8_values, "e4m3"), "f16", 0.5),
    "e5m2": ElementType(8, "u1", partial(fp8_values, "e5m2"), "f16", 0.5),
    "s8": ElementType(8, "i1", _same, "i8"),
    "u8": ElementType(8, "u1", _same, "i8"),
    "s4": ElementType(4, "u1", _signed_nibbles, "i8", 0.5),
    "u4": ElementType(4, "u1", nibbles, "i8", 0.5),
    "b1": ElementType(1, "u1", lambda a: np.unpackbits(a, axis=-1, bitorder="little"), "i8", 0.125),
    "f64": ElementType(64, "f8", _same, "f64"),
    "f32": ElementType(32, "f4", _same, "f32"),
    "s32": ElementType(32, "i4", _same, "i32"),
}
ALIKE = ({"e4m3", "e5m2"}, {"s8", "u8"}, {"s4", "u4"})
"""Types of A and B that may differ."""


def register_values(file: Array, fragments: Sequence[Rows], kind: str, warps: Warps) -> Array:
    """Numbers in the registers of fragments, shape (fragments, registers, warps, 8, 4, elements).

    Args:
        file: the registers of the type's width, (rows, lanes).
        fragments: which rows hold each.
        kind: PTX type of an element.
        warps: which warps.
    """
    element = ELEMENT_TYPES[kind]
    rows = file[np.array(fragments)]
    rows = rows.reshape(*rows.shape[:2], -1, 32)
    if not isinstance(warps, slice):
        rows = rows[:, :, warps]
    return element.values(rows.view(element.dtype)).reshape(*rows.shape[:3], 8, 4, -1)


def a_matrices(values: Array, m: int) -> Array:
    """A matrices as float64 (warps, fragments, m, k), from `register_values`."""
    count, registers, number, _, _, p = values.shape
    high = m // 8
    parts = values.reshape(count, registers // high, high, number, 8, 4, p).transpose(3, 0, 2, 4, 1, 5, 6)
    return parts.astype(np.float64, order="C").reshape(number, count, m, -1)


def b_matrices(values: Array) -> Array:
    """B matrices, transposed, as float64 (warps, fragments, 8, k), from `register_values`."""
    count, _, number, *_ = values.shape
    parts = values.transpose(2, 0, 3, 1, 4, 5)
    return parts.astype(np.float64, order="C").reshape(number, count, 8, -1)


def c_matrices(values: Array) -> Array:
    """C matrices as (fragments, warps, m, 8), in their own type, from `register_values`."""
    count, registers, number, _, _, p = values.shape
    parts = values.reshape(count, registers * p // 2, 2 // p, number, 8, 4, p).transpose(0, 3, 1, 4, 5, 2, 6)
    return parts.reshape(count, number, -1, 8)


def write_d(file: Array, fragments: Sequence[Rows], warps: Warps, product: Array, kind: str) -> None:
    """Rounds float64 matrices (fragments, warps, m, 8) into the registers of D; integers wrap."""
    element = ELEMENT_TYPES[kind]
    dtype = np.dtype(element.dtype)
    rounded = (product.astype(np.int64) if dtype.kind == "i" else product).astype(dtype)
    count, number, m, _ = product.shape
    p = 2 if element.width > 8 * dtype.itemsize else 1
    parts = rounded.reshape(count, number, m // 8, 8, 4, 2 // p, p).transpose(0, 2, 5, 1, 3, 4, 6)
    registers = np.ascontiguousarray(parts).view(f"u{element.width // 8}").reshape(-1, number, 32)
    rows = np.array(fragments).reshape(-1)
    if isinstance(warps, slice):
        file[rows] = registers.reshape(len(rows), -1)
    else:
        file.reshape(len(file), -1, 32)[rows[:, None], warps] = registers


def saturated(product: Array) -> Array:
    """Sums that saturate at the ends of s32 (`.satfinite`)."""
    return np.clip(product, -(1 << 31), (1 << 31) - 1)


def register_rows(decoder: BlockDecoder, operand: Operand, kind: str, registers: int) -> Rows:
    """The rows of the registers of a fragment.

    Raises:
        UnsupportedFormError: not so many registers of the type's width.
    """
    items = elements(operand)
    width = ELEMENT_TYPES[kind].width
    refs = [decoder.ref(item, f"b{width}") for item in items]
    if len(refs) != registers or any(ref[0] != width for ref in refs):
        raise UnsupportedFormError(f"a fragment of .{kind} takes {registers} registers of {width} bits")
    return tuple(row for _, row in refs)
