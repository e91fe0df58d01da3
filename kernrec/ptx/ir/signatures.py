"""Define the operands of instructions with a fixed operand list: their number, types and use (PTX ISA, section 9.7).

Tensor-core, texture, vote and similar instructions are checked when they are executed.
"""

import re
from collections.abc import Mapping
from functools import cache

from kernrec.ptx.ir.operand import BITS, agrees
from kernrec.util.cached_property import cached_property
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Slot:
    """Description of one operand of an instruction."""

    role: str
    """Use of the operand: `write`, `read`, `address`, `tensor` (map and coordinates in brackets) or `label`."""
    type: str = "b32"
    wider: bool = False
    vector: int = 1
    """Number of elements of a vector. 0 allows any number that fits, as in `mov.b64 %rd1, {%r1, %r2}`."""
    optional: bool = False
    """Whether this operand and all later operands may be omitted."""

    @cached_property
    def register_types(self) -> frozenset[str]:
        """Return the types of single registers that this operand accepts."""
        takes_register = self.role in ("read", "write") and self.vector <= 1
        return frozenset(name for name in BITS if takes_register and agrees(name, self.type, self.wider))


Slots = tuple[Slot, ...]
_Form = tuple[list[str], list[str] | None]
"""Required modifiers and the operands of an instruction. The operands are None if only the emulator checks them."""


def _read(table: str) -> dict[str, list[_Form]]:
    forms: dict[str, list[_Form]] = {}
    for line in table.strip().splitlines():
        names, _, operands = line.partition("=")
        for name in names.split():
            opcode, *needed = name.split(".")
            forms.setdefault(opcode, []).append((needed, None if "unchecked" in operands else operands.split()))
    return forms


# Each line lists instructions with required modifiers, then `=` and the operands. The first matching line applies.
# An operand is an address, a tensor, a label, or a register that is read (r:TYPE) or written (w:TYPE). Variable types:
#     T  the last type in the instruction's name
#     F  the first of two types in the name
#     W  the type T, but twice as wide for an instruction with `.wide`
# Suffixes of an operand:
#     +  the register may be wider
#     *  the operand may be a vector of any length
#     v  the operand is a vector if the name contains v2, v4 or v8
#     ?  the operand is optional
_TYPED = _read("""
add.f32.f16 add.f32.bf16 sub.f32.f16 sub.f32.bf16 = w:F r:T r:F
fma.f32.f16 fma.f32.bf16 = w:F r:T r:T r:F
min.f32 max.f32 = w:T r:T r:T r:T?
add sub addc subc mul div rem min max and or xor copysign mul24 = w:W r:T r:T
mad madc fma sad mad24 = w:W r:T r:T r:W
abs neg not cnot sqrt rsqrt rcp sin cos lg2 ex2 tanh brev cvta = w:T r:T
setp.and setp.or setp.xor = w:pred r:T r:T r:pred
setp = w:pred r:T r:T
testp = w:pred r:T
set = w:F r:T r:T r:pred?
slct = w:F r:F r:F r:T
selp = w:T r:T r:T r:pred
mov = w:T* r:T*
ld.cache_hint ldu.cache_hint = w:T+v address r:b64?
st.cache_hint = address r:T+v r:b64?
st.async = address r:Tv address
ld ldu = w:T+v address
st = address r:T+v
shl shr = w:T r:T r:u32
shf = w:T r:T r:T r:b32
popc clz bfind = w:u32 r:T
bfe = w:T r:T r:u32 r:u32
bfi = w:T r:T r:T r:u32 r:u32
""")
"""Forms of instructions whose last modifier is a type."""
_OTHER = _read("""
prmt = w:T r:T r:T r:b32
isspacep = w:pred r:T
cvt.f16x2.f32 cvt.bf16x2.f32 cvt.e4m3x2.f32 cvt.e5m2x2.f32 = w:F+ r:T+ r:T+
cvt = w:F+ r:T+
ret exit trap griddepcontrol =
bra = label
barrier.cluster =
bar.warp.sync barrier.warp.sync setmaxnreg = r:u32
bar.red barrier.red = unchecked
bar.arrive barrier.arrive = r:u32 r:u32
bar barrier = r:u32 r:u32?
red.async = address r:Tv address
mbarrier.arrive mbarrier.arrive_drop = w:b64 address r:u32?
mbarrier.init mbarrier.expect_tx mbarrier.complete_tx = address r:u32
mbarrier.inval = address
mbarrier.test_wait.parity mbarrier.try_wait.parity = w:pred address r:u32 r:u32?
mbarrier.test_wait mbarrier.try_wait = w:pred address r:b64 r:u32?
mbarrier.pending_count = w:u32 r:b64
cp.bulk.commit_group =
cp.bulk.wait_group = r:u32
cp.bulk.im2col cp.bulk.cp_mask cp.bulk.ignore_oob = unchecked
cp.bulk.prefetch.tensor = tensor
cp.bulk.prefetch = address r:u32
cp.bulk.tensor.mbarrier = address tensor address
cp.bulk.tensor = tensor address
cp.bulk.mbarrier = address address r:u32 address
cp.bulk = address address r:u32
tensormap.replace.box_dim tensormap.replace.global_dim = address r:u32 r:T
tensormap.replace.global_stride tensormap.replace.element_stride = address r:u32 r:T
tensormap.replace = address r:T
tensormap.cp_fenceproxy = address address r:u32
mapa.u32 mapa.u64 = w:T r:T r:u32
getctarank.u32 getctarank.u64 = w:u32 r:T
""")
_ROLES = {"w": "write", "r": "read"}
_BARRIERS = ("sync", "arrive", "warp.sync", "red.popc.u32", "red.and.pred", "red.or.pred")
_ACCESSIBLE = re.compile(r"[busf]\d+|bf16")


@cache
def signature(opcode: str, modifiers: tuple[str, ...]) -> Slots | None:
    """Return the operands of an instruction, or None if only the emulator checks them.

    Raises:
        ValueError: the modifiers contain too many types, or do not end with a type.
    """
    types = [name for name in modifiers if name in BITS]
    kind, is_typed = types[-1] if types else "", opcode in _TYPED
    if is_typed and modifiers[-1:] != (kind,):
        raise ValueError(f".{modifiers[-1]} is not a type" if modifiers else f"{opcode} without a type")
    if opcode in ("bar", "barrier") and "cluster" not in modifiers:
        _check_barrier(opcode, modifiers)
    forms = _TYPED.get(opcode) or _OTHER.get(opcode, [])
    operands = next((each for needed, each in forms if [m for m in modifiers if m in needed] == needed), None)
    if operands is None:
        return None
    named = {operand.partition(":")[2][:1] for operand in operands}
    if ("F" in named and len(types) != 2) or ("T" in named and not types):
        return None
    if is_typed and "wide" in modifiers and not (opcode in ("mul", "mad") and kind in ("u16", "s16", "u32", "s32")):
        raise ValueError(f"{opcode}.wide has no type .{kind}; mul and mad have it for .u16, .s16, .u32 and .s32")
    if is_typed and "F" not in named and len(types) > 1:
        raise ValueError(f"{len(types)} types, but {opcode} has one type")
    if opcode in ("ld", "ldu", "st") and not _ACCESSIBLE.fullmatch(kind):
        raise ValueError(f"{opcode} has no type .{kind}")
    if opcode == "cp":
        more = {"multicast": "r:u16", "cache_hint": "r:b64"}
        operands = [*operands, *(operand for name, operand in more.items() if name in modifiers)]
    wide = f"{kind[:1]}{2 * BITS[kind]}" if is_typed and "wide" in modifiers else kind
    elements = next((int(name[1:]) for name in modifiers if name in ("v2", "v4", "v8")), 1)
    return tuple(
        _slot(operand, {"F": types[0] if types else "", "T": kind, "W": wide}, elements) for operand in operands
    )


def _slot(operand: str, types: Mapping[str, str], elements: int) -> Slot:
    role, _, described = operand.partition(":")
    name = described.rstrip("+v*?")
    vector = 0 if "*" in described else elements if described.endswith("v") else 1
    return Slot(
        _ROLES.get(role, role), types.get(name, name) or "b32", "+" in described, vector, described.endswith("?")
    )


def _check_barrier(opcode: str, modifiers: tuple[str, ...]) -> None:
    action = ".".join(name for name in modifiers if name not in ("cta", "aligned")) or "sync"
    if action not in _BARRIERS:
        raise ValueError(f"{opcode}.{action} is none of sync, arrive, red.popc.u32, red.and.pred and red.or.pred")
