"""One operand of an instruction, as signatures state it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand of an instruction."""

    role: str
    """`write`, `read`, `address`, `tensor` (a map and coordinates in brackets), or `label`."""

    type: str = "b32"
    """PTX type of the value."""

    wider: bool = False
    """Whether a register may have more bits than the type."""

    vector: int = 1
    """Elements of the operand `{a, b, ...}`; 0: a vector of as many as fit, as in `mov.b64 %rd1, {%r1, %r2}`."""

    optional: bool = False
    """Whether the operand may be absent, with all that follow."""
