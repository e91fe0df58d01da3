"""Convert numbers of 4-bit formats: e2m1 elements, and the powers of two (e8m0) that scale a block of elements.

Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0. An e2m1 code takes a byte
here, but half a byte in a GPU's memory.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=np.float32)
_BIAS = 127


def e2m1_values(codes: Array) -> Array:
    """Decode e2m1 codes (uint8, sign in bit 3) to float32."""
    return np.asarray(np.where(codes & 8, -1.0, 1.0).astype(np.float32) * _MAGNITUDES[codes & 7])


def e2m1_codes(values: Array) -> Array:
    """Round values to e2m1 codes (uint8): to nearest, ties to even, saturating at 6."""
    size = np.minimum(np.abs(values.astype(np.float64)), 6.0)
    above = np.searchsorted(_MAGNITUDES, size)
    below = np.maximum(above - 1, 0)
    to_above, to_below = _MAGNITUDES[above] - size, size - _MAGNITUDES[below]
    nearest = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, below)
    return (nearest | np.where(np.signbit(values), 8, 0)).astype(np.uint8)


def e8m0_values(codes: Array) -> Array:
    """Decode e8m0 codes (uint8) to float64, 2^(code - 127)."""
    return np.exp2(codes.astype(np.float64) - _BIAS)


def e8m0_codes(values: Array) -> Array:
    """Return the e8m0 codes (uint8) of the powers of two that are nearest to |values| on a log scale."""
    exponents = np.rint(np.log2(np.maximum(np.abs(values.astype(np.float64)), 2.0**-_BIAS)))
    return np.asarray(np.clip(exponents + _BIAS, 0, 254).astype(np.uint8))
