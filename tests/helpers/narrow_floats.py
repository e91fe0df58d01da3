"""bfloat16 and tf32 for NumPy, which lacks both: bfloat16 is stored as 16 bits, tf32 as a rounded float32."""

import numpy as np


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Round float32 values to the nearest bfloat16, with ties to even. NaN becomes 0x7fff."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)


def tf32_bits(values: np.ndarray, mode: str) -> np.ndarray:
    """Round float32 values to tf32: to nearest with ties to even (`rn`) or away from 0 (`rna`), or towards 0 (`rz`)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    if mode != "rz":
        bits = bits + (np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + (bits >> np.uint32(13) & 1))
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), bits & np.uint32(0xFFFFE000))
