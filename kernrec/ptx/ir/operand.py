"""Represent operands of PTX instructions and their types (PTX ISA, section 5.2)."""

from collections.abc import Callable
from functools import cache

from kernrec.util.cached_property import cached_property
from kernrec.util.light_dataclass import dataclass


class _Compound:
    @cached_property
    def leaves(self) -> "tuple[Register | Immediate | Symbol, ...]":
        """Return the registers, literals and symbols of an operand, in order."""
        assert isinstance(self, Address | Vector | Pair | Negated | Texel)
        return tuple([leaf for part in parts_of(self) for leaf in part.leaves])

    @cached_property
    def registers(self) -> tuple[str, ...]:
        """Return the names of the registers in an operand, in order. A discarded element is `_`."""
        return tuple([name for leaf in self.leaves for name in leaf.registers])


class _Leaf:
    registers: "tuple[str, ...]" = ()

    @property
    def leaves(self) -> "tuple[Register | Immediate | Symbol, ...]":
        # This is not cached: a leaf that refers to itself is only freed by the garbage collector.
        assert isinstance(self, Register | Immediate | Symbol)
        return (self,)


@dataclass(frozen=True)
class Register(_Leaf):
    """Virtual register or special register."""

    name: str
    """Name with `%`, and with the dimension of a special register: `%tid.x`."""

    @cached_property
    def registers(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)


@dataclass(frozen=True)
class Immediate(_Leaf):
    """Literal operand."""

    value: int | float
    """Value of the literal. A literal of kind `f32` or `f64` is stored as bits."""
    kind: str
    """Notation: `int`, `f32` or `f64` (bits), or `float` (decimal number)."""


@dataclass(frozen=True)
class Symbol(_Leaf):
    """Address of a variable, parameter, function or label."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address(_Compound):
    """Address operand `[base + offset]`."""

    base: "Register | Symbol | Immediate"
    offset: int


@dataclass(frozen=True)
class Vector(_Compound):
    """Vector operand `{a, b, ...}`."""

    items: tuple["Operand", ...]
    """Elements. A discarded element is `Register("_")`."""


@dataclass(frozen=True)
class Pair(_Compound):
    """Pair of operands `p|q`: the two destinations of `setp` or `shfl.sync`."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True)
class Negated(_Compound):
    """Negated predicate operand `!p`."""

    register: Register


@dataclass(frozen=True)
class Texel(_Compound):
    """Position in a texture or surface: `[texture, {x, y}]`."""

    image: "Register | Symbol"
    """Texture or surface: a register with a handle, or a variable."""
    coordinates: tuple["Operand", ...]
    """Coordinates, after the layer if there is one."""
    sampler: "Register | Symbol | None" = None
    """Sampler, or None if the instruction does not name one."""


Operand = Register | Immediate | Symbol | Address | Vector | Pair | Negated | Texel


def elements(operand: Operand) -> tuple[Operand, ...]:
    """Return the elements of a vector operand, or a tuple of the operand itself."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def with_leaves(operand: Operand, new: Callable[[Register | Symbol], Register | Symbol]) -> Operand:
    """Replace each register and symbol in an operand by the result of `new`."""
    if isinstance(operand, Register | Symbol):
        return new(operand)
    if isinstance(operand, Address):
        return operand if isinstance(operand.base, Immediate) else Address(new(operand.base), operand.offset)
    if isinstance(operand, Vector):
        return Vector(tuple(with_leaves(item, new) for item in operand.items))
    if isinstance(operand, Pair):
        return Pair(with_leaves(operand.first, new), with_leaves(operand.second, new))
    if isinstance(operand, Negated):
        register = new(operand.register)
        assert isinstance(register, Register)
        return Negated(register)
    if isinstance(operand, Texel):
        coordinates = tuple(with_leaves(item, new) for item in operand.coordinates)
        return Texel(new(operand.image), coordinates, operand.sampler)
    return operand


def parts_of(operand: Address | Vector | Pair | Negated | Texel) -> tuple[Operand, ...]:
    """Return the operands that a compound operand contains, in order."""
    if isinstance(operand, Address):
        return (operand.base,)
    if isinstance(operand, Vector):
        return operand.items
    if isinstance(operand, Pair):
        return (operand.first, operand.second)
    if isinstance(operand, Negated):
        return (operand.register,)
    return (operand.image, *operand.coordinates)


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
"""Size of each type in bits."""

REGISTER_TYPES = frozenset(name for name in BITS if name not in ("tf32", "e4m3x2", "e5m2x2"))
"""Types of declared registers."""


def words(kind: str) -> int:
    """Return the number of 32-bit registers for a value of a PTX type. A predicate needs 0."""
    return 0 if kind == "pred" else -(-BITS.get(kind, 32) // 32)


def size_of(kind: str) -> int:
    """Return the size of a value in memory in bytes."""
    return max(BITS.get(kind, 32) // 8, 1)


@cache
def agrees(register: str, wanted: str, wider: bool = False) -> bool:
    """Return whether an instruction accepts a register of another type (PTX ISA, section 9.4.1).

    A `b` type agrees with every type of its size. Two other types agree if both are integers or both are floats.

    Args:
        register: type of the register.
        wanted: type that the instruction requires.
        wider: whether the register may be wider, as in loads, stores and conversions.
    """
    have, need = BITS[register], BITS[wanted]
    if (have == 1) != (need == 1) or have < need or (have > need and not wider):
        return False
    return _family(register) in ("b", _family(wanted)) or _family(wanted) == "b"


def _family(name: str) -> str:
    if name in ("pred", "tf32", "bf16", "bf16x2", "e4m3x2", "e5m2x2") or (name[0] == "b" and name[1:].isdigit()):
        return "b"
    return "f" if name[0] == "f" else "i"
