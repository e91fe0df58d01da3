"""Check the declarations, operand counts and operand types of parsed PTX before emulation.

Instructions without an entry in `signatures` are only checked for undeclared registers.
"""

import re
from dataclasses import replace

from kernrec.ptx.ir.operand import (
    BITS,
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Texel,
    Vector,
    agrees,
)
from kernrec.ptx.ir.program import Function, Instruction, Module, ParseError
from kernrec.ptx.ir.signatures import Slot, signature
from kernrec.ptx.ir.special_registers import is_special, special_width

_NOT_EMULATED = {
    "%current_graph_exec": "u64",
    **dict.fromkeys(("%globaltimer_lo", "%globaltimer_hi", "%aggr_smem_size"), "u32"),
}
"""Types of special registers that the emulator lacks."""
_NUMBERED = re.compile(r"%(?:envreg\d+|pm\d+(?:_64)?|\w+\.w)")


def verify(module: Module, checked: Module | None = None) -> None:
    """Check every function of a module. Raise a `ParseError` with the line if an instruction is wrong.

    Args:
        checked: valid module that differs only in literals. Skip instructions that both modules share.
    """
    valid = {id(ins) for function in checked.functions.values() for ins in function.instructions} if checked else ()
    for function in module.functions.values():
        check = _FunctionCheck(module, function)
        for ins in function.instructions:
            try:
                if id(ins) not in valid:
                    check.check(ins)
            except ValueError as error:
                raise ParseError(f"{ins.name}: {error}", ins.line) from None


class _RegisterTypes(dict[str, str]):
    """Type of each register that a function uses, or an empty string if the register is not declared."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __missing__(self, name: str) -> str:
        kind = self[name] = self._function.register_type(name) or _special(name) or ""
        return kind


class _FunctionCheck:
    """Checks of one function. They raise `ValueError`."""

    def __init__(self, module: Module, function: Function) -> None:
        parameters = (v.name for v in (*function.parameters, *function.returns))
        self._symbols = {*module.variables, *module.functions, *function.variables, *parameters}
        declared = replace(function, instructions=[])  # All functions of a form keep these types, but not the code.
        self._types: _RegisterTypes = function.form_memo.setdefault(_RegisterTypes, _RegisterTypes(declared))

    def check(self, ins: Instruction) -> None:
        if ins.predicate is not None and self._type(ins.predicate[0]) != "pred":
            raise ValueError(f"the guard {ins.predicate[0]} is not a predicate")
        slots = signature(ins.opcode, ins.modifiers)
        if slots is None:
            for register in (name for operand in ins.operands for name in operand.registers if name != "_"):
                self._type(register)
            return
        if len(ins.operands) != len(slots):
            fewest = sum(not slot.optional for slot in slots)
            if not fewest <= len(ins.operands) <= len(slots):
                expected = fewest if fewest == len(slots) else f"{fewest} to {len(slots)}"
                raise ValueError(f"{len(ins.operands)} operands; expected {expected}")
        for slot, operand in zip(slots, ins.operands, strict=False):
            # Skip most operands: they are registers of an accepted type.
            if not (isinstance(operand, Register) and self._types[operand.name] in slot.register_types):
                self._operand(slot, operand)

    def _operand(self, slot: Slot, operand: Operand) -> None:
        if isinstance(operand, Register) and slot.role in ("read", "write") and slot.vector <= 1:
            self._register(slot, operand.name)
        elif slot.role == "label":
            if not isinstance(operand, Symbol):
                raise ValueError("expected a label")
        elif slot.role == "address":
            self._address(operand)
        elif slot.role == "tensor":
            self._tensor(operand)
        elif isinstance(operand, Vector):
            self._vector(slot, operand)
        elif slot.vector > 1:
            raise ValueError(f"expected a vector of {slot.vector} elements")
        elif isinstance(operand, Pair):
            if slot != Slot("write", "pred"):
                raise ValueError("expected one operand, not a pair")
            self._operand(slot, operand.first)
            self._operand(slot, operand.second)
        elif isinstance(operand, Negated):
            if slot.role != "read" or slot.type != "pred":
                raise ValueError(f"!{operand.register.name} is a predicate, which this operand cannot be")
            self._register(slot, operand.register.name)
        elif slot.role == "write":
            raise ValueError("the destination is not a register")
        elif isinstance(operand, Immediate):
            _check_literal(operand, slot.type)
        elif isinstance(operand, Symbol):
            self._symbol(operand)
        elif not (isinstance(operand, Address) and isinstance(operand.base, Register)):
            raise ValueError("expected a register, literal or symbol")

    def _vector(self, slot: Slot, vector: Vector) -> None:
        count = len(vector.items)
        if slot.vector > 1 or (slot.vector == 1 and count != 1):
            if count != slot.vector:
                raise ValueError(f"a vector of {count} elements; expected {slot.vector}")
            element = slot.type
        else:
            bits = BITS[slot.type]
            element = slot.type if count < 2 else f"b{bits // count}"
            if count not in (1, 2, 4) or bits % count or element not in BITS:
                raise ValueError(f".{slot.type} cannot be a vector of {count} elements")
        for item in vector.items:
            if isinstance(item, Vector | Pair | Negated | Address):
                raise ValueError("expected only registers and literals in a vector")
            self._operand(Slot(slot.role, element, slot.wider), item)

    def _register(self, slot: Slot, name: str) -> None:
        if name == "_":
            if slot.role != "write":
                raise ValueError("_ can only be a destination")
            return
        kind = self._type(name)
        if not agrees(kind, slot.type, slot.wider):
            raise ValueError(f"{name} is .{kind}, not .{slot.type}")

    def _address(self, operand: Operand) -> None:
        if not isinstance(operand, Address):
            raise ValueError("expected an address in brackets")
        if isinstance(operand.base, Register):
            kind = self._type(operand.base.name)
            if not (agrees(kind, "b64") or agrees(kind, "b32")) or kind[0] == "f":
                raise ValueError(f"{operand.base.name} is .{kind}, which cannot be an address")
        elif isinstance(operand.base, Symbol):
            self._symbol(operand.base)
        elif isinstance(operand.base, Immediate) and operand.base.kind != "int":
            raise ValueError("an address must be an integer")

    def _tensor(self, operand: Operand) -> None:
        if not isinstance(operand, Texel):
            raise ValueError("expected a tensor map and coordinates in brackets")
        self._address(Address(operand.image, 0))
        for coordinate in operand.coordinates:
            self._operand(Slot("read", "s32"), coordinate)

    def _symbol(self, symbol: Symbol) -> None:
        if symbol.name not in self._symbols:
            raise ValueError(f"{symbol.name!r} is not declared")

    def _type(self, name: str) -> str:
        if not (kind := self._types[name]):
            raise ValueError(f"register {name} is not declared")
        return kind


def _special(name: str) -> str | None:
    if is_special(name) and not name.startswith("%carry"):
        return {1: "pred", 32: "u32", 64: "u64"}[special_width(name)]
    if _NUMBERED.fullmatch(name) and (not name.endswith(".w") or is_special(f"{name[:-1]}x")):
        return "u32"
    return _NOT_EMULATED.get(name)


def _check_literal(literal: Immediate, kind: str) -> None:
    bits = BITS[kind]
    is_float = kind in ("f32", "f64", "f32x2", "tf32")
    if literal.kind == "int":
        if is_float:
            raise ValueError(f"expected a .{kind}, not the integer {literal.value}")
        # Triton 3.8 writes negative numbers with 64 bits. ptxas drops the upper bits.
        value = literal.value - (1 << 64 if bits < 64 and literal.value >= (1 << 64) - (1 << bits - 1) else 0)
        if bits > 1 and not -(1 << bits - 1) <= value < 1 << bits:
            raise ValueError(f"the literal {literal.value} does not fit .{kind}")
    elif kind[0] in "us" or kind == "pred":
        raise ValueError(f"expected a .{kind}, not a floating-point literal")
    elif kind[0] == "b" and literal.kind in ("f32", "f64") and bits != BITS[literal.kind]:
        raise ValueError(f"expected a .{kind}, not a .{literal.kind} literal")
