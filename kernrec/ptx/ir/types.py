"""Define the PTX types of declarations and instructions (PTX ISA, section 5.2), and which types are compatible."""

from functools import cache

BITS: dict[str, int] = {
    "pred": 1,
    **{f"{kind}{width}": width for kind in "bus" for width in (8, 16, 32, 64)},
    "b128": 128,
    "u16x2": 32,
    "s16x2": 32,
    "f16": 16,
    "f16x2": 32,
    "bf16": 16,
    "bf16x2": 32,
    "tf32": 32,
    "f32": 32,
    "f32x2": 64,
    "f64": 64,
    **dict.fromkeys(("e4m3x2", "e5m2x2"), 16),
}
"""Bits of a value by type."""

REGISTER_TYPES = frozenset(name for name in BITS if name not in ("tf32", "e4m3x2", "e5m2x2"))
"""Types of register declarations."""


def words(kind: str) -> int:
    """Return the number of 32-bit registers of a value: none for a predicate, one for an unknown type."""
    return 0 if kind == "pred" else -(-BITS.get(kind, 32) // 32)


def size_of(kind: str) -> int:
    """Return the bytes of a value in memory; a texture, sampler or surface takes 4."""
    return max(BITS.get(kind, 32) // 8, 1)


@cache
def agrees(register: str, wanted: str, wider: bool = False) -> bool:
    """Return whether a register of one type may be an operand of another (PTX ISA, section 9.4.1).

    A `b` type agrees with every type of its size. Otherwise integers agree with integers, floating-point numbers with
    floating-point numbers, and predicates with predicates.

    Args:
        register: declared type of the register.
        wanted: type that the instruction names.
        wider: whether the register may have more bits than the type, as in loads, stores and conversions.
    """
    have, need = BITS[register], BITS[wanted]
    if (have == 1) != (need == 1) or have < need or (have > need and not wider):
        return False
    return _family(register) in ("b", _family(wanted)) or _family(wanted) == "b"


def _family(name: str) -> str:
    """Return `b` (bits), `i` (integers) or `f` (floating-point numbers); `b` for predicates."""
    if name in ("pred", "tf32", "bf16", "bf16x2", "e4m3x2", "e5m2x2") or (name[0] == "b" and name[1:].isdigit()):
        return "b"
    return "f" if name[0] == "f" else "i"
