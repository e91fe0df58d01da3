"""bfloat16 and tf32 in NumPy, which has neither: a bfloat16 as its 16 bits, a tf32 in the bits of a float32."""

import numpy as np


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to the nearest bfloat16, ties to even; NaN becomes 0x7fff."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)


def tf32_bits(values: np.ndarray, mode: str) -> np.ndarray:
    """Return float32 values rounded to tf32: `rn` to nearest with ties to even, `rna` away from 0, `rz` towards 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    if mode != "rz":
        bits = bits + (np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + (bits >> np.uint32(13) & 1))
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), bits & np.uint32(0xFFFFE000))
