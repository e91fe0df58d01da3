"""Floating-point numbers of 4 and 6 bits, and scale factors of 8 bits, as block-scaled matrices hold them.

PTX ISA, section "Alternate Floating-Point Data Formats": e2m1 (bias 1), e2m3 (bias 1) and e3m2 (bias 3) have neither
infinity nor NaN; ue8m0 is a power of two, its highest code NaN; ue4m3 is an e4m3 without a sign.
"""

from functools import lru_cache

import numpy as np

from kernrec.ptx.state.types import Array
from kernrec.util.float8 import fp8_values

_FORMATS = {"e2m1": (2, 1, 1), "e2m3": (2, 3, 1), "e3m2": (3, 2, 3)}  # bits of exponent and mantissa, bias
BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
"""Bits of a number."""


@lru_cache(None)
def _table(kind: str) -> Array:
    exponent_bits, mantissa_bits, bias = _FORMATS[kind]
    codes = np.arange(1 << BITS[kind])
    mantissa = codes & (1 << mantissa_bits) - 1
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    scale = np.exp2(np.maximum(exponent, 1) - bias - mantissa_bits)
    value = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits)) * scale
    return np.where(codes >> BITS[kind] - 1, -value, value).astype(np.float32)


def narrow_values(kind: str, codes: Array) -> Array:
    """Codes (uint8) of `e2m1`, `e2m3` or `e3m2` as float32; bits above the number are ignored."""
    return _table(kind)[codes & (1 << BITS[kind]) - 1]


def scale_values(kind: str, codes: Array) -> Array:
    """Scale factors (uint8) of `ue8m0` or `ue4m3` as float64."""
    if kind == "ue4m3":
        return fp8_values("e4m3", codes & 0x7F).astype(np.float64)
    return np.where(codes == 255, np.nan, np.exp2(codes.astype(np.float64) - 127))


def nibbles(rows: Array) -> Array:
    """The 4-bit codes of bytes (..., n), the lower one first; (..., 2 n)."""
    return np.stack([rows & 15, rows >> 4], axis=-1).reshape(*rows.shape[:-1], -1)


def padded_codes(kind: str, rows: Array) -> Array:
    """The codes of rows of 16-byte pieces, each with 16 numbers of 4 or 6 bits and padding behind; (..., n) of each."""
    pieces = rows.reshape(*rows.shape[:-1], -1, 16)
    if kind == "e2m1":
        return nibbles(pieces[..., :8]).reshape(rows.shape)
    bits = np.unpackbits(pieces[..., :12], axis=-1, bitorder="little").reshape(*pieces.shape[:-1], 16, 6)
    return (bits << np.arange(6, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8).reshape(rows.shape)
