"""The tensors of quantized products (`kernrec.op.dtype.FORMATS`): shapes and values of scales, and what they stand for.

Weights are (rows, k), activations (rows, k); a scale holds for a group of elements along k, of one row or several.
"""

from typing import TYPE_CHECKING

from kernrec.op.dtype import FORMATS, Format
from kernrec.op.problem import SPREAD_8BIT, Names, Normal

if TYPE_CHECKING:
    import numpy as np

_NUMBERS = {dtype: number for number, dtype in enumerate(FORMATS, 1)}
_BY_NUMBER = dict(enumerate(FORMATS.values(), 1))

_SPREAD = {"f8e4m3": SPREAD_8BIT, "i8": SPREAD_8BIT, "i4": 3.0, "f4e2m1": 2.0}
"""Standard deviation of elements: few saturate. Those of bf16 have 1."""


def format_number(dtype: str) -> dict[str, int]:
    """The derived dimension `format` of a problem whose dtype is one of `FORMATS`; none for others."""
    return {"format": _NUMBERS[dtype]} if dtype in _NUMBERS else {}


def format_of(d: Names) -> Format | None:
    """The format of a problem with these dimensions; None for a plain data type."""
    return _BY_NUMBER.get(d.get("format", 0))


def weight_scales(quantized: Format, rows: int, k: int) -> dict[str, tuple[int, ...]]:
    """The shape of the scales of weights (rows, k), under the ending of their tensor's name."""
    if not quantized.group:
        return {"_scale": (rows, 1)}
    return {"_scale": (-(-rows // quantized.rows), -(-k // quantized.group))}


def activation_scales(quantized: Format, rows: int, k: int) -> dict[str, tuple[int, ...]]:
    """The shape of the scales of activations (rows, k), under the ending of their tensor's name; none for bf16."""
    if quantized.activation_group:
        return {"_scale": (rows, -(-k // quantized.activation_group))}
    return {} if quantized.activations == "bf16" else {"_scale": (1, 1)}


def operand_values(quantized: Format, activations: str, weights: str, wide: float) -> dict[str, Normal]:
    """Values of the operands, with scales by which activations have a deviation of 1, and weights of `wide`."""
    spread = {name: _SPREAD.get(kind, 1.0) for name, kind in _types(quantized, activations, weights)}
    scale = {activations: 1 / spread[activations], weights: wide / spread[weights]}
    if quantized.weights == quantized.activations == "f4e2m1":  # 8 bits of a scale do not reach down to `wide`
        scale[weights] = 1 / spread[weights]
    values: dict[str, Normal] = {name: (0, deviation) for name, deviation in spread.items()}
    values |= {f"{name}_scale": (value, value / 8) for name, value in scale.items()}
    return values | {f"{activations}{weights}_scale": (wide, wide / 8)}


def _types(quantized: Format, activations: str, weights: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (activations, quantized.activations), (weights, quantized.weights)


def dequantized(values: "np.ndarray", scale: "np.ndarray | None", group: int, rows: int) -> "np.ndarray":
    """Elements (..., rows, k) times their scales (..., row groups, groups); `group` 0: one scale for all of a row."""
    if scale is None:
        return values
    count, k = values.shape[-2:]
    if group:
        scale = scale.repeat(rows, axis=-2)[..., :count, :].repeat(group, axis=-1)[..., :k]
    scaled: np.ndarray = values * scale
    return scaled
