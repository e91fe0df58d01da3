"""Define scales, value distributions and dequantization of quantized matmuls (`kernrec.op.dtype.FORMATS`).

Weights and activations have the shape (rows, k). Neighboring elements along k share a scale, in one or several rows.
"""

from typing import TYPE_CHECKING

from kernrec.op.dtype import FORMATS, Format
from kernrec.op.problem import SPREAD_8BIT, Names, Normal

if TYPE_CHECKING:
    import numpy as np

_NUMBERS = {dtype: number for number, dtype in enumerate(FORMATS, 1)}
_BY_NUMBER = dict(enumerate(FORMATS.values(), 1))

_SPREAD = {"f8e4m3": SPREAD_8BIT, "i8": SPREAD_8BIT, "i4": 3.0, "f4e2m1": 2.0}
"""Standard deviation of random elements, keyed by dtype (1 for other dtypes), so that few elements saturate."""


def format_number(dtype: str) -> dict[str, int]:
    """Return {"format": number that identifies the dtype} for a quantized dtype, or {} for all other dtypes."""
    return {"format": _NUMBERS[dtype]} if dtype in _NUMBERS else {}


def format_of(d: Names) -> Format | None:
    """Return the quantization format for a problem's dimensions, or None if the problem is not quantized."""
    return _BY_NUMBER.get(d.get("format", 0))


def weight_scales(quantized: Format, rows: int, k: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of the scales of weights with the shape (rows, k), keyed by the suffix of the scales' name."""
    if not quantized.group:
        return {"_scale": (rows, 1)}
    return {"_scale": (-(-rows // quantized.rows), -(-k // quantized.group))}


def activation_scales(quantized: Format, rows: int, k: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of the scales of activations with the shape (rows, k), keyed by the suffix of the scales' name.
    Return an empty dictionary for bf16 activations."""
    if quantized.activation_group:
        return {"_scale": (rows, -(-k // quantized.activation_group))}
    return {} if quantized.activations == "bf16" else {"_scale": (1, 1)}


def operand_values(quantized: Format, activations: str, weights: str, wide: float) -> dict[str, Normal]:
    """Return the mean and standard deviation of both operands and their scales.

    After scaling, activations have the standard deviation 1, and weights have the standard deviation `wide`.
    """
    types = {activations: quantized.activations, weights: quantized.weights}
    spread = {name: _SPREAD.get(kind, 1.0) for name, kind in types.items()}
    scale = {activations: 1 / spread[activations], weights: wide / spread[weights]}
    if quantized.weights == quantized.activations == "f4e2m1":  # `wide` does not fit in an 8-bit scale.
        scale[weights] = 1 / spread[weights]
    values: dict[str, Normal] = {name: (0, deviation) for name, deviation in spread.items()}
    values |= {f"{name}_scale": (value, value / 8) for name, value in scale.items()}
    return values | {f"{activations}{weights}_scale": (wide, wide / 8)}


def dequantized(values: "np.ndarray", scale: "np.ndarray | None", group: int, rows: int) -> "np.ndarray":
    """Multiply quantized elements by their scales.

    Args:
        values: elements, (..., rows, k).
        scale: scales, (..., row groups, groups). None leaves the elements unchanged.
        group: elements along k that share a scale. If 0, NumPy broadcasts `scale` to the elements.
        rows: rows that share a scale.
    """
    if scale is None:
        return values
    count, k = values.shape[-2:]
    if group:
        scale = scale.repeat(rows, axis=-2)[..., :count, :].repeat(group, axis=-1)[..., :k]
    scaled: np.ndarray = values * scale
    return scaled
