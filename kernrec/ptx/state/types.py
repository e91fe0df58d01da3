"""PTX types as NumPy types: the width of a register, the element type of its row, the bits of a literal."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.ptx.ir.operand import Immediate
from kernrec.ptx.ir.types import BITS
from kernrec.ptx.state.errors import EmulationError

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "pred": "?",
        **{f"{k}{w}": f"{'i' if k == 's' else 'u'}{w // 8}" for k in "bus" for w in (8, 16, 32, 64)},
        "u16x2": "u2",
        "s16x2": "i2",
        "f16": "f2",
        "f16x2": "f2",
        "bf16": "u2",
        "bf16x2": "u2",
        "tf32": "u4",
        "f32": "f4",
        "f32x2": "f4",
        "f64": "f8",
    }.items()
}
"""By PTX type: the NumPy type of an element; of a packed type, of each of its halves."""

WIDTHS: dict[str, int] = {name: BITS[name] for name in DTYPES}
"""By PTX type: bits of a register that holds one value."""


def register_width(kind: str) -> int:
    """Bits of a register of PTX type `kind` (1 for predicates).

    Raises:
        EmulationError: the emulator has no registers of this type.
    """
    width = WIDTHS.get(kind)
    if width is None:
        raise EmulationError(f"registers of type .{kind} are not supported")
    return width


def literal_bits(operand: Immediate, kind: str) -> int:
    """The bits of a literal that stands for a value of PTX type `kind`."""
    value = operand.value
    width = WIDTHS[kind]
    is_bits = operand.kind == "int" and kind in ("f16", "f16x2")  # PTX writes halves as their bits
    if not is_bits and (kind[0] == "f" or kind in ("b32", "b64", "b16")):
        number: float | None = None
        if operand.kind == "f32":
            number = float(np.uint32(value).view(np.float32))
        elif operand.kind == "f64":
            number = float(np.uint64(value).view(np.float64))
        elif operand.kind == "float" or kind[0] == "f":
            number = float(value)
        if number is not None:
            if (operand.kind == "f32" and width == 32) or (operand.kind == "f64" and width == 64):
                return int(value)
            if "x2" in kind:
                raise EmulationError(f"a literal of type .{kind} is not supported")
            return int(np.array([number], f"f{width // 8}").view(f"u{width // 8}")[0])
    if kind == "pred":
        return int(value != 0)
    return int(value) & ((1 << width) - 1)
