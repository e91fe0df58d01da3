"""The operands that instructions take: how many, of which type, read or written (PTX ISA, section 9.7).

Only instructions with one fixed list of operands are here, which are those that most text consists of. What is missing
(tensor cores, textures, votes, ...) is checked by the code that gives it its meaning.
"""

from functools import cache

from kernrec.ptx.ir.async_signatures import async_signature
from kernrec.ptx.ir.slot import Slot
from kernrec.ptx.ir.types import BITS

_BINARY = frozenset(
    ["add", "sub", "addc", "subc", "mul", "div", "rem", "min", "max", "and", "or", "xor", "copysign", "mul24"]
)
_TERNARY = frozenset(["mad", "madc", "fma", "sad", "mad24"])
_UNARY = frozenset(
    ["abs", "neg", "not", "cnot", "sqrt", "rsqrt", "rcp", "sin", "cos", "lg2", "ex2", "tanh", "brev", "cvta"]
)
_MOVES = frozenset(["ld", "ldu", "st", "mov"])
_CHOICES = frozenset(["set", "setp", "slct", "selp", "testp"])
_BIT_FIELDS = frozenset(["shl", "shr", "shf", "popc", "clz", "bfind", "bfe", "bfi"])
_END_WITH_TYPE = _BINARY | _TERNARY | _UNARY | _MOVES | _CHOICES | _BIT_FIELDS
_PREDICATE = Slot("read", "pred")
_SHIFT = Slot("read", "u32")


@cache
def signature(opcode: str, modifiers: tuple[str, ...]) -> tuple[Slot, ...] | None:
    """The operands of an instruction; None for one that this module does not know.

    Raises:
        ValueError: it names several types where it has one, or does not end with a type where it has to.
    """
    if (slots := async_signature(opcode, modifiers)) is not None:
        return slots
    types = [name for name in modifiers if name in BITS]
    kind = types[-1] if types else None
    if opcode in ("ret", "exit", "trap"):
        return ()
    if opcode == "bra":
        return (Slot("label"),)
    if opcode == "cvt":
        return _conversion(types)
    if opcode in _END_WITH_TYPE and modifiers[-1:] != (kind,):
        raise ValueError(f".{modifiers[-1]} is not a type" if modifiers else f"{opcode} without a type")
    if kind is None:
        return None
    if opcode in ("ld", "ldu", "st"):
        return _access(opcode, modifiers, kind)
    if opcode in ("set", "slct"):
        return _two_types(opcode, types)
    if types[:-1] == ["f32"] and opcode in ("add", "sub", "fma"):  # mixed precision: sources but the last are halves
        half, single = Slot("read", kind), Slot("read", "f32")
        return (Slot("write", "f32"), half, *((half,) if opcode == "fma" else ()), single)
    slots = _same_type(opcode, modifiers, kind)
    if slots is not None and len(types) > 1:
        raise ValueError(f"{len(types)} types, where {opcode} has one")
    return slots


def _same_type(opcode: str, modifiers: tuple[str, ...], kind: str) -> tuple[Slot, ...] | None:
    """Instructions that name one type."""
    wide = "wide" in modifiers
    result = Slot("write", f"{kind[0]}{2 * BITS[kind]}" if wide else kind)
    source = Slot("read", kind)
    if opcode in _BINARY:
        third = (Slot("read", kind, optional=True),) if opcode in ("min", "max") and kind == "f32" else ()
        return (result, source, source, *third)
    if opcode in _TERNARY:
        return (result, source, source, Slot("read", result.type))
    if opcode in _UNARY:
        return (result, source)
    if opcode == "setp":
        more = any(name in ("and", "or", "xor") for name in modifiers)
        return (Slot("write", "pred"), source, source, *((_PREDICATE,) if more else ()))
    if opcode in ("testp", "isspacep"):
        return (Slot("write", "pred"), source)
    if opcode == "mov":
        return (Slot("write", kind, vector=0), Slot("read", kind, vector=0))
    if opcode == "selp":
        return (result, source, source, _PREDICATE)
    if opcode in ("shl", "shr"):
        return (result, source, _SHIFT)
    if opcode in ("popc", "clz", "bfind"):
        return (Slot("write", "u32"), source)
    if opcode == "bfe":
        return (result, source, _SHIFT, _SHIFT)
    if opcode == "bfi":
        return (result, source, source, _SHIFT, _SHIFT)
    if opcode in ("shf", "prmt"):
        return (result, source, source, Slot("read", "b32"))
    return None


def _conversion(types: list[str]) -> tuple[Slot, ...] | None:
    if len(types) != 2:
        return None
    packed = "x2" in types[0] and types[1] == "f32"
    source = Slot("read", types[1], wider=True)
    return (Slot("write", types[0], wider=True), source, *((source,) if packed else ()))


def _access(opcode: str, modifiers: tuple[str, ...], kind: str) -> tuple[Slot, ...] | None:
    if any(name.startswith(("L2::cache_hint", "cache_hint")) for name in modifiers):
        return None
    elements = next((int(name[1:]) for name in modifiers if name in ("v2", "v4", "v8")), 1)
    value = Slot("read" if opcode == "st" else "write", kind, wider=True, vector=elements)
    return (Slot("address"), value) if opcode == "st" else (value, Slot("address"))


def _two_types(opcode: str, types: list[str]) -> tuple[Slot, ...] | None:
    if len(types) != 2:
        return None
    first, second = Slot("read", types[0]), Slot("read", types[1])
    if opcode == "slct":
        return (Slot("write", types[0]), first, first, second)
    return (Slot("write", types[0]), second, second, Slot("read", "pred", optional=True))
