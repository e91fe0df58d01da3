"""Convert 8-bit floating-point numbers: e4m3 (maximum 448, no infinity) and e5m2 (the upper byte of an f16)."""

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NAN = 0x7F


@lru_cache(None)
def _table(kind: str) -> Array:
    """Return the values of all 256 codes."""
    codes = np.arange(256)
    if kind == "e5m2":
        return (codes << 8).astype(np.uint16).view(np.float16).astype(np.float32)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value = np.where((codes & 0x7F) == _NAN, np.nan, value)
    return np.where(codes > 127, -value, value).astype(np.float32)


def fp8_values(kind: str, codes: Array) -> Array:
    """Decode codes (uint8) of `e4m3` or `e5m2` to float32."""
    return _table(kind)[codes]


def fp8_codes(kind: str, values: Array) -> Array:
    """Round values to codes (uint8) of `e4m3` or `e5m2`, with saturation; NaN stays NaN."""
    positive = _table(kind)[:127]
    finite = positive[np.isfinite(positive)].astype(np.float64)
    with np.errstate(invalid="ignore"):
        size = np.abs(values.astype(np.float64))
    above = np.minimum(np.searchsorted(finite, size), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    to_above, to_below = finite[above] - size, size - finite[below]
    nearest = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, below)
    codes = np.where(np.isnan(size), _NAN, nearest) | np.where(np.signbit(values), 128, 0)
    return codes.astype(np.uint8)
