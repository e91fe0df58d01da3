"""Fragments of matrices in the registers of a warp: where each element lies, and what its bits stand for.

Layouts are those of the PTX ISA manual, section "Warp-level matrix fragments"; `kernrec.ptx.instructions.matrix` states
them. A warp of a warpgroup has 16 of its 64 rows, in the same layouts (`kernrec.ptx.instructions.wgmma`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.narrow_floats import nibbles
from kernrec.ptx.instructions.registry import UnsupportedFormError
from kernrec.ptx.instructions.rounding import bf16_values, tf32_of
from kernrec.ptx.ir.operand import Operand, elements
from kernrec.ptx.state.types import Array
from kernrec.util.float8 import fp8_values

Rows = tuple[int, ...]
"""The rows of the register files that hold a fragment."""

Warps = Array | slice
"""Numbers of warps of the batch; `slice(None)`: all."""


class ElementType(NamedTuple):
    """An operand type: how its registers are read, and as what its operations are counted."""

    width: int
    """Bits of a register."""

    dtype: str
    """NumPy type of an element in a register."""

    values: Callable[[Array], Array]
    """From elements to numbers."""

    counted: str
    """What its operations are counted as."""

    share: float = 1.0
    """Time of an operation over that of what it is counted as."""


def _same(a: Array) -> Array:
    return a


def _signed_nibbles(a: Array) -> Array:
    low = nibbles(a).astype(np.int8)
    return np.where(low > 7, low - 16, low)


ELEMENT_TYPES = {
    "f16": ElementType(32, "f2", _same, "f16"),
    "bf16": ElementType(32, "u2", bf16_values, "bf16"),
    "tf32": ElementType(32, "u4", lambda a: tf32_of(a).view(np.float32), "tf32"),
    "e4m3": ElementType(32, "u1", partial(fp8_values, "e4m3"), "f16", 0.5),
    "e5m2": ElementType(32, "u1", partial(fp8_values, "e5m2"), "f16", 0.5),
    "s8": ElementType(32, "i1", _same, "i8"),
    "u8": ElementType(32, "u1", _same, "i8"),
    "s4": ElementType(32, "u1", _signed_nibbles, "i8", 0.5),
    "u4": ElementType(32, "u1", nibbles, "i8", 0.5),
    "b1": ElementType(32, "u1", lambda a: np.unpackbits(a, axis=-1, bitorder="little"), "i8", 0.125),
    "f64": ElementType(64, "f8", _same, "f64"),
    "f32": ElementType(32, "f4", _same, "f32"),
    "s32": ElementType(32, "i4", _same, "i32"),
}
"""By PTX type."""


def register_values(file: Array, fragments: Sequence[Rows], kind: str, warps: Warps) -> Array:
    """Numbers in the registers of fragments, shape (fragments, registers, warps, 8, 4, elements).

    Args:
        file: the registers of the type's width, (rows, lanes).
        fragments: which rows hold each.
        kind: PTX type of an element.
        warps: which warps.
    """
    of = ELEMENT_TYPES[kind]
    rows = file[np.array(fragments)]
    rows = rows.reshape(*rows.shape[:2], -1, 32)
    if not isinstance(warps, slice):
        rows = rows[:, :, warps]
    return of.values(rows.view(of.dtype)).reshape(*rows.shape[:3], 8, 4, -1)


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
    of = ELEMENT_TYPES[kind]
    dtype = np.dtype(of.dtype)
    rounded = (product.astype(np.int64) if dtype.kind == "i" else product).astype(dtype)
    count, number, m, _ = product.shape
    p = 2 if of.width > 8 * dtype.itemsize else 1
    parts = rounded.reshape(count, number, m // 8, 8, 4, 2 // p, p).transpose(0, 2, 5, 1, 3, 4, 6)
    registers = np.ascontiguousarray(parts).view(f"u{of.width // 8}").reshape(-1, number, 32)
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


def elements_per_register(kind: str) -> int:
    """How many elements of a type a register of a fragment holds."""
    return ELEMENT_TYPES[kind].width // (8 if kind in ("e4m3", "e5m2") else int(kind.strip("bfstu")))
