"""Convert between numbers and their codes (uint8) in floating-point formats of 8 and 4 bits.

`f8e4m3` has no infinity, and its largest number is 448. An `f8e5m2` code is the upper byte of an f16. `f4e2m1` and
`e8m0` are defined in the "OCP Microscaling Formats (MX) Specification", version 1.0. A 4-bit code takes a byte here.
"""

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NAN = 0x7F
_BIAS = 127
"""Exponent bias of e8m0."""


@lru_cache(None)
def _magnitudes(kind: str) -> Array:
    """Return the non-negative numbers (float32) of a format in the order of their codes."""
    if kind == "f4e2m1":
        return np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
    codes = np.arange(128)
    if kind == "f8e5m2":
        return (codes << 8).astype(np.uint16).view(np.float16).astype(np.float32)
    exponent, mantissa = codes >> 3, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(codes == _NAN, np.nan, value).astype(np.float32)


def small_values(kind: str, codes: Array) -> Array:
    """Decode codes (uint8) of the format `kind`: `f8e4m3`, `f8e5m2`, `f4e2m1` or `e8m0`."""
    if kind == "e8m0":
        return np.asarray(np.exp2(codes.astype(np.float64) - _BIAS))
    sign = len(_magnitudes(kind))
    values = _magnitudes(kind)[codes & (sign - 1)]
    return np.asarray(np.where(codes & sign, -values, values))


def small_codes(kind: str, values: Array) -> Array:
    """Encode numbers as codes (uint8) of the format `kind` (see `small_values`), rounding to nearest.

    Ties round to the even code. Numbers out of range become the largest number. NaN stays NaN in 8-bit formats. `e8m0`
    rounds the base-2 logarithm of the absolute value.
    """
    with np.errstate(invalid="ignore"):
        size = np.abs(values.astype(np.float64))
    if kind == "e8m0":
        exponents = np.rint(np.log2(np.maximum(size, 2.0**-_BIAS)))
        return np.asarray(np.clip(exponents + _BIAS, 0, 254).astype(np.uint8))
    finite = _magnitudes(kind)[np.isfinite(_magnitudes(kind))].astype(np.float64)
    above = np.minimum(np.searchsorted(finite, size), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = finite[above] - size, size - finite[below]
    nearest = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, below)
    codes = np.where(np.isnan(size), _NAN, nearest) | np.where(np.signbit(values), len(_magnitudes(kind)), 0)
    return np.asarray(codes.astype(np.uint8))
