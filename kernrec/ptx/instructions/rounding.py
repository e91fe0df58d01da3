"""Rounding to narrow formats: directed modes, flushing to zero, bfloat16 and tf32.

NumPy has no bfloat16 and no tf32. A bfloat16 is its 16 bits (`uint16`), a tf32 the `float32` bits it lives in
(`uint32`). A value that is exact as a float64 plus a remainder is first rounded to odd, which keeps enough of the
remainder for the rounding that follows to be correct (S. Boldo and G. Melquiond, "When double rounding is odd", 2005).
"""

from functools import lru_cache

import numpy as np

from kernrec.ptx.instructions.registry import Compute
from kernrec.ptx.state.types import Array

_TINY = {
    np.dtype("f4"): np.float32(2.0**-126),
    np.dtype("f2"): np.float16(2.0**-14),
    np.dtype("f8"): np.float64(2.0**-1022),
}
_TF32_LOST = 13  # bits of a float32 that tf32 does not have


def is_subnormal(a: Array) -> Array:
    """Whether a number is smaller in magnitude than the smallest normal number; true for zeros."""
    below: Array = np.abs(a) < _TINY[a.dtype]
    return below


def flush(a: Array) -> Array:
    """Subnormal numbers become zeros of their sign (`.ftz`)."""
    return np.where(is_subnormal(a), np.copysign(a.dtype.type(0), a), a)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum, and its rounding error."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product of float64 numbers, and its rounding error."""

    def split(x: Array) -> tuple[Array, Array]:
        scaled = x * 134217729.0
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    a1, a0 = split(a)
    b1, b0 = split(b)
    return product, ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0


def directed(exact: Array, lost: Array | float, mode: str, dtype: np.dtype[np.generic]) -> Array:
    """`exact + lost` (float64, |lost| below half a unit of `exact`) rounded to `dtype` towards 0, -inf or +inf."""
    near = exact.astype(dtype)
    back = near.astype(np.float64)
    above = (back > exact) | ((back == exact) & (np.asarray(lost) < 0))
    below = (back < exact) | ((back == exact) & (np.asarray(lost) > 0))
    down = mode == "rm", mode == "rp"
    if mode == "rz":
        positive = (exact > 0) | ((exact == 0) & (np.asarray(lost) > 0))
        lower, upper = above & positive, below & ~positive
    else:
        lower, upper = above & down[0], below & down[1]
    infinity = near.dtype.type(np.inf)
    near = np.where(lower, np.nextafter(near, -infinity), near)
    return np.where(upper, np.nextafter(near, infinity), near)


def odd_f32(exact: Array, lost: Array | float = 0.0) -> Array:
    """The bits of `exact + lost` rounded to odd in float32: towards 0, with the last bit set where inexact."""
    rest = np.isfinite(exact) & (np.asarray(lost) != 0)
    toward = (np.asarray(lost) < 0) != np.signbit(exact)
    bits = exact.view(np.int64)
    exact = np.where(rest, (bits - toward) | 1, bits).view(np.float64)
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    narrow = near.view(np.int32)
    inexact = np.isfinite(exact) & (back != exact)
    return np.where(inexact, (narrow - (np.abs(back) > np.abs(exact))) | 1, narrow).astype(np.int32).view(np.uint32)


def bf16_values(a: Array) -> Array:
    """The float32 values of bfloat16 bits."""
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(a: Array, mode: str = "rn") -> Array:
    """float32 values rounded to bfloat16: to nearest even (`rn`), towards 0 (`rz`), -inf (`rm`), +inf (`rp`).

    NaN becomes 0x7fff, the canonical one.
    """
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    high = bits >> np.uint32(16)
    if mode == "rn":
        rounded = (bits + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16)
    elif mode == "rz":
        rounded = high
    else:
        away = (bits >> np.uint32(31)) == (mode == "rm")
        rounded = high + (away & ((bits & np.uint32(0xFFFF)) != 0))
    return np.where(np.isnan(a), np.uint32(0x7FFF), rounded).astype(np.uint16)


def exact_to_bf16(exact: Array, lost: Array | float = 0.0, mode: str = "rn") -> Array:
    """`exact + lost` in float64 rounded once to bfloat16."""
    return bf16_bits(odd_f32(exact, lost).view(np.float32), mode)


def tf32_bits(a: Array, mode: str) -> Array:
    """float32 values rounded to tf32: to nearest, ties to even (`rn`) or away from 0 (`rna`), or towards 0 (`rz`)."""
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    half = np.uint32(1 << _TF32_LOST - 1)
    if mode == "rna":
        bits = bits + half
    elif mode == "rn":
        bits = bits + (half - np.uint32(1)) + ((bits >> np.uint32(_TF32_LOST)) & np.uint32(1))
    return np.where(np.isnan(a), np.uint32(0x7FFFFFFF), tf32_of(bits))


def tf32_of(bits: Array) -> Array:
    """The bits of a register that a tensor core reads: the last 13 are ignored."""
    return bits & np.uint32((1 << 32) - (1 << _TF32_LOST))


@lru_cache(None)
def widened(base: Compute) -> Compute:
    """A computation of f32 whose sources but the last are f16, or bfloat16 as its bits (PTX ISA: mixed precision)."""

    def run(*rows: Array) -> None:
        *halves, last, out = rows
        base(*(bf16_values(h) if h.dtype == np.uint16 else h.astype(np.float32) for h in halves), last, out)

    return run
