"""Types of registers that the emulator supports."""

from typing import Any

from numpy.typing import NDArray

from kernrec.ptx.ir.types import BITS
from kernrec.ptx.state.errors import EmulationError

Array = NDArray[Any]

_TYPES = frozenset(
    {
        *("pred", "u16x2", "s16x2", "f16", "f16x2", "bf16", "bf16x2", "tf32", "f32", "f32x2", "f64"),
        *(f"{kind}{width}" for kind in "bus" for width in (8, 16, 32, 64)),
    }
)


def register_width(kind: str) -> int:
    """Return the bits of a register of PTX type `kind` (1 for predicates).

    Raises:
        EmulationError: the emulator has no registers of this type.
    """
    if kind not in _TYPES:
        raise EmulationError(f"registers of type .{kind} are not supported")
    return BITS[kind]
