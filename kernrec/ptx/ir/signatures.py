"""Define the operands of instructions with a fixed operand list: their number, types and use (PTX ISA, section 9.7).

The code that executes tensor-core, texture, vote and similar instructions checks their operands itself.
"""

import re
from functools import cache

from kernrec.ptx.ir.operand import BITS
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Slot:
    """Position in the operand list of an instruction."""

    role: str
    """Use of the operand: `write`, `read`, `address`, `tensor` (map and coordinates in brackets) or `label`."""
    type: str = "b32"
    wider: bool = False
    vector: int = 1
    """Number of elements of a vector. 0 allows any number that fits, as in `mov.b64 %rd1, {%r1, %r2}`."""
    optional: bool = False
    """Whether the instruction may omit this operand and all operands after it."""


Slots = tuple[Slot, ...]

_ADDRESS, _TENSOR = Slot("address"), Slot("tensor")
_U32, _POLICY, _MASK = Slot("read", "u32"), Slot("read", "b64"), Slot("read", "u16")

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


@cache
def signature(opcode: str, modifiers: tuple[str, ...]) -> Slots | None:
    """Return the operands of an instruction, or None if this module has no entry for the opcode. Raise `ValueError` if
    the modifiers contain several types instead of one, or do not end with a type.
    """
    if (slots := _async_signature(opcode, modifiers)) is not None:
        return slots
    types = [name for name in modifiers if name in BITS]
    kind = types[-1] if types else None
    if opcode in ("ret", "exit", "trap"):
        return ()
    if opcode == "bra":
        return (Slot("label"),)
    if opcode in ("bar", "barrier"):
        return _barrier(opcode, tuple(mark for mark in modifiers if mark not in ("cta", "aligned")) or ("sync",))
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
    if types[:-1] == ["f32"] and opcode in ("add", "sub", "fma"):  # The last source is an f32, unlike the others.
        half, single = Slot("read", kind), Slot("read", "f32")
        return (Slot("write", "f32"), half, *((half,) if opcode == "fma" else ()), single)
    slots = _same_type(opcode, modifiers, kind)
    if slots is not None and len(types) > 1:
        raise ValueError(f"{len(types)} types, but {opcode} has one type")
    return slots


def _same_type(opcode: str, modifiers: tuple[str, ...], kind: str) -> Slots | None:
    """Return the operands of an instruction whose single type suffix applies to every operand."""
    wide = "wide" in modifiers
    if wide and not (opcode in ("mul", "mad") and kind in ("u16", "s16", "u32", "s32")):
        raise ValueError(f"{opcode}.wide has no type .{kind}; mul and mad have it for .u16, .s16, .u32 and .s32")
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
        return (result, source, _U32)
    if opcode in ("popc", "clz", "bfind"):
        return (Slot("write", "u32"), source)
    if opcode == "bfe":
        return (result, source, _U32, _U32)
    if opcode == "bfi":
        return (result, source, source, _U32, _U32)
    if opcode in ("shf", "prmt"):
        return (result, source, source, Slot("read", "b32"))
    return None


def _barrier(opcode: str, marks: tuple[str, ...]) -> Slots | None:
    """Return the operands of a block-wide barrier, or None if it is a reduction. The second operand is optional."""
    if marks == ("warp", "sync"):
        return (_U32,)
    if marks in (("sync",), ("arrive",)):
        return (_U32, Slot("read", "u32", optional=marks == ("sync",)))
    if marks[0] == "red" and marks[1:] in (("popc", "u32"), ("and", "pred"), ("or", "pred")):
        return None
    raise ValueError(f"{opcode}.{'.'.join(marks)} is none of sync, arrive, red.popc.u32, red.and.pred and red.or.pred")


def _conversion(types: list[str]) -> Slots | None:
    if len(types) != 2:
        return None
    packed = "x2" in types[0] and types[1] == "f32"
    source = Slot("read", types[1], wider=True)
    return (Slot("write", types[0], wider=True), source, *((source,) if packed else ()))


def _access(opcode: str, modifiers: tuple[str, ...], kind: str) -> Slots | None:
    if any(name.startswith(("L2::cache_hint", "cache_hint")) for name in modifiers):
        return None
    elements = next((int(name[1:]) for name in modifiers if name in ("v2", "v4", "v8")), 1)
    if not re.fullmatch(r"[busf]\d+|bf16", kind) or kind == "f8":
        raise ValueError(f"{opcode} has no type .{kind}")
    value = Slot("read" if opcode == "st" else "write", kind, wider=True, vector=elements)
    return (Slot("address"), value) if opcode == "st" else (value, Slot("address"))


def _two_types(opcode: str, types: list[str]) -> Slots | None:
    if len(types) != 2:
        return None
    first, second = Slot("read", types[0]), Slot("read", types[1])
    if opcode == "slct":
        return (Slot("write", types[0]), first, first, second)
    return (Slot("write", types[0]), second, second, Slot("read", "pred", optional=True))


def _async_signature(opcode: str, modifiers: tuple[str, ...]) -> Slots | None:
    first = modifiers[0] if modifiers else ""
    if opcode == "mbarrier":
        return _mbarrier(first, "parity" in modifiers)
    if opcode == "cp" and "bulk" in modifiers:
        return _bulk(modifiers)
    if opcode in ("st", "red") and first == "async":
        vector = next((int(mark[1:]) for mark in modifiers if mark in ("v2", "v4")), 1)
        return (_ADDRESS, Slot("read", modifiers[-1], vector=vector), _ADDRESS) if modifiers[-1] in BITS else None
    if opcode == "tensormap" and first == "replace" and len(modifiers) > 3 and modifiers[-1] in BITS:
        ordinal = modifiers[2] in ("box_dim", "global_dim", "global_stride", "element_stride")
        return (_ADDRESS, *((_U32,) if ordinal else ()), Slot("read", modifiers[-1]))
    if opcode == "tensormap" and first == "cp_fenceproxy":
        return (_ADDRESS, _ADDRESS, _U32)
    if opcode == "mapa" and modifiers[-1:] in (("u32",), ("u64",)):
        return (Slot("write", modifiers[-1]), Slot("read", modifiers[-1]), _U32)
    if opcode == "getctarank" and modifiers[-1:] in (("u32",), ("u64",)):
        return (Slot("write", "u32"), Slot("read", modifiers[-1]))
    if opcode == "setmaxnreg":
        return (_U32,)
    return () if opcode == "griddepcontrol" or (opcode == "barrier" and first == "cluster") else None


def _mbarrier(action: str, parity: bool) -> Slots | None:
    if action in ("init", "expect_tx", "complete_tx"):
        return (_ADDRESS, _U32)
    if action == "inval":
        return (_ADDRESS,)
    if action in ("arrive", "arrive_drop"):
        return (Slot("write", "b64"), _ADDRESS, Slot("read", "u32", optional=True))
    if action in ("test_wait", "try_wait"):
        phase = _U32 if parity else Slot("read", "b64")
        return (Slot("write", "pred"), _ADDRESS, phase, Slot("read", "u32", optional=True))
    return (Slot("write", "u32"), Slot("read", "b64")) if action == "pending_count" else None


def _bulk(modifiers: tuple[str, ...]) -> Slots | None:
    marks = {*modifiers}
    if "commit_group" in marks:
        return ()
    if "wait_group" in marks:
        return (_U32,)
    if marks & {"im2col", "cp_mask", "ignore_oob"}:
        return None
    tail = ((_MASK,) if "multicast" in marks else ()) + ((_POLICY,) if "cache_hint" in marks else ())
    barrier = (_ADDRESS,) if "mbarrier" in marks else ()
    if "prefetch" in marks:
        return (_TENSOR, *tail) if "tensor" in marks else (_ADDRESS, _U32, *tail)
    if "tensor" in marks:
        return (_ADDRESS, _TENSOR, *barrier, *tail) if barrier else (_TENSOR, _ADDRESS, *tail)
    return (_ADDRESS, _ADDRESS, _U32, *barrier, *tail)
