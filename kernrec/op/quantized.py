"""Define the scales of quantized matmuls (`kernrec.op.dtype.FORMATS`), distributions of values, and dequantization.

Weights and activations have the shape (rows, k). The elements of a group share a scale. A group is a run of elements
along k, in one or several rows.
"""

from typing import TYPE_CHECKING

from kernrec.op.dtype import FORMATS, Format
from kernrec.op.problem import SPREAD_8BIT, Names, Normal

if TYPE_CHECKING:
    import numpy as np

_NUMBERS = {dtype: number for number, dtype in enumerate(FORMATS, 1)}
_BY_NUMBER = dict(enumerate(FORMATS.values(), 1))

_SPREAD = {"f8e4m3": SPREAD_8BIT, "i8": SPREAD_8BIT, "i4": 3.0, "f4e2m1": 2.0}
"""Standard deviation of random elements, keyed by dtype (otherwise 1), chosen so that few elements saturate."""


def format_number(dtype: str) -> dict[str, int]:
    """If the dtype is one of `FORMATS`, return the derived dimension `format`, the format's number. Otherwise, return
    an empty dictionary."""
    return {"format": _NUMBERS[dtype]} if dtype in _NUMBERS else {}


def format_of(d: Names) -> Format | None:
    """Return the quantization format of a problem with these dimensions, or None if its dtype is not one of
    `FORMATS`."""
    return _BY_NUMBER.get(d.get("format", 0))


def weight_scales(quantized: Format, rows: int, k: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of the scales of weights (rows, k), keyed by the suffix of the scales' tensor."""
    if not quantized.group:
        return {"_scale": (rows, 1)}
    return {"_scale": (-(-rows // quantized.rows), -(-k // quantized.group))}


def activation_scales(quantized: Format, rows: int, k: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of the scales of activations (rows, k), keyed by the suffix of the scales' tensor. The result is
    empty for bf16 activations."""
    if quantized.activation_group:
        return {"_scale": (rows, -(-k // quantized.activation_group))}
    return {} if quantized.activations == "bf16" else {"_scale": (1, 1)}


def operand_values(quantized: Format, activations: str, weights: str, wide: float) -> dict[str, Normal]:
    """Return mean and standard deviation of both operands and their scales, keyed by tensor name. After scaling,
    activations have standard deviation 1, and weights have standard deviation `wide`."""
    spread = {name: _SPREAD.get(kind, 1.0) for name, kind in _types(quantized, activations, weights)}
    scale = {activations: 1 / spread[activations], weights: wide / spread[weights]}
    if quantized.weights == quantized.activations == "f4e2m1":  # An 8-bit scale cannot represent `wide`.
        scale[weights] = 1 / spread[weights]
    values: dict[str, Normal] = {name: (0, deviation) for name, deviation in spread.items()}
    values |= {f"{name}_scale": (value, value / 8) for name, value in scale.items()}
    return values | {f"{activations}{weights}_scale": (wide, wide / 8)}


def _types(quantized: Format, activations: str, weights: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (activations, quantized.activations), (weights, quantized.weights)


def dequantized(values: "np.ndarray", scale: "np.ndarray | None", group: int, rows: int) -> "np.ndarray":
    """Return quantized elements multiplied by their scales. If `scale` is None, return the elements unchanged. Elements
    have the shape (..., rows, k), and scales the shape (..., row groups, groups). `group` elements along k in `rows`
    rows share a scale. If `group` is 0, `scale` is broadcast to the shape of the elements."""
    if scale is None:
        return values
    count, k = values.shape[-2:]
    if group:
        scale = scale.repeat(rows, axis=-2)[..., :count, :].repeat(group, axis=-1)[..., :k]
    scaled: np.ndarray = values * scale
    return scaled
