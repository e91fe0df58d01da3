"""Check parsed PTX before emulation, in linear time: declarations, operand counts and operand types.

Like the assembler, this module rejects undeclared registers, a wrong number of operands, an integer register in f32
arithmetic, a literal with more bits than its type, and an unknown symbol. The error states the line. It also rejects a
register that is read but never written. There is one exception: if some parts of a packed value (`mov.b64 %rd1, {%r1,
%r2}`) are written, others need not be, because compilers leave a half undefined if nothing unpacks it. For instructions
without an entry in `signatures`, it only checks that registers are declared, and assumes that the instruction may write
all its registers.
"""

from collections.abc import Iterable, Iterator

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
    registers_of,
)
from kernrec.ptx.ir.program import Function, Instruction, Module, ParseError
from kernrec.ptx.ir.signatures import Slot, signature

_WIDE_SPECIAL = frozenset({"%clock64", "%globaltimer", "%current_graph_exec"})
_SPECIAL = frozenset(
    (
        *("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "clock", "clock_hi", "clock64"),
        *("globaltimer", "globaltimer_lo", "globaltimer_hi", "current_graph_exec"),
        *("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt"),
        *("dynamic_smem_size", "total_smem_size", "aggr_smem_size"),
        *(f"reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1")),
        *("cluster_ctarank", "cluster_nctarank"),
    )
)
_COORDINATES = frozenset(
    ["tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"]
)  # special registers that have a dimension, such as `.x`


def verify(module: Module, undefined: frozenset[str] | None = frozenset()) -> None:
    """Check every function of a module.

    Args:
        module: the parsed module.
        undefined: registers that may be read although nothing writes them, or None to allow any. LLVM leaves a register
            undefined if its value does not matter. It does not always mark such registers, and the assembler accepts
            them.

    Raises:
        ParseError: an instruction is wrong; the error names its line.
    """
    for function in module.functions.values():
        _FunctionCheck(module, function).run(undefined)


class _FunctionCheck:
    """Checks of one function. A check raises `ValueError`, to which `run` adds the line."""

    def __init__(self, module: Module, function: Function) -> None:
        self._function = function
        parameters = (v.name for v in (*function.parameters, *function.returns))
        self._symbols = {*module.variables, *module.functions, *function.variables, *parameters}
        self._types: dict[str, str] = {}  # register -> type
        self._written: set[str] = set()
        self._reads: dict[str, Instruction] = {}  # register -> first instruction that reads it
        self._packs: list[tuple[frozenset[str], Instruction]] = []  # groups of registers that are packed into one value

    def run(self, undefined: frozenset[str] | None) -> None:
        """Check the instructions in order. Then check that every register that is read is also written."""
        for ins in self._function.instructions:
            try:
                self._check(ins)
            except ValueError as error:
                raise ParseError(f"{ins.name}: {error}", ins.line) from None
        if undefined is None:
            return
        for name, ins in self._reads.items():
            if name not in self._written and name not in undefined and _special(name) is None:
                raise ParseError(f"{ins.name}: register {name} is read but never written", ins.line)
        for parts, ins in self._packs:
            if parts and parts.isdisjoint(self._written) and parts.isdisjoint(undefined):
                name = min(parts)
                raise ParseError(f"{ins.name}: register {name} is read but never written", ins.line)

    def _check(self, ins: Instruction) -> None:
        if ins.predicate is not None:
            if self._type(ins.predicate[0]) != "pred":
                raise ValueError(f"the guard {ins.predicate[0]} is not a predicate")
            self._reads.setdefault(ins.predicate[0], ins)
        slots = signature(ins.opcode, ins.modifiers)
        if slots is None:
            for register in _registers(ins.operands):
                self._type(register)
                self._written.add(register)
            return
        if len(ins.operands) != len(slots):
            fewest = sum(not slot.optional for slot in slots)
            if not fewest <= len(ins.operands) <= len(slots):
                expected = fewest if fewest == len(slots) else f"{fewest} to {len(slots)}"
                raise ValueError(f"{len(ins.operands)} operands; expected {expected}")
        types = self._types
        for slot, operand in zip(slots, ins.operands, strict=False):
            if isinstance(operand, Register) and slot.vector == 1 and slot.role in ("read", "write"):
                # This is the most frequent case: a register that is declared with the right type.
                name = operand.name
                if name in types and agrees(types[name], slot.type, slot.wider):
                    if slot.role == "write":
                        self._written.add(name)
                    elif name not in self._reads:
                        self._reads[name] = ins
                    continue
            self._operand(slot, operand)
            if slot.role == "write":
                self._written.update(_registers((operand,)))
            elif ins.opcode == "mov" and isinstance(operand, Vector):
                self._packs.append((frozenset(_registers((operand,))), ins))
            else:
                for register in _registers((operand,)):
                    self._reads.setdefault(register, ins)

    def _operand(self, slot: Slot, operand: Operand) -> None:
        if slot.role == "label":
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
        elif isinstance(operand, Register):
            self._register(slot, operand.name)
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
            if count not in (1, 2, 4) or bits % count:
                raise ValueError(f".{slot.type} cannot be a vector of {count} elements")
            element = slot.type if count == 1 else f"b{bits // count}"
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
        kind = self._types.get(name)
        if kind is None:
            kind = self._function.register_type(name) or _special(name)
            if kind is None:
                raise ValueError(f"register {name} is not declared")
            self._types[name] = kind
        return kind


def _registers(operands: Iterable[Operand]) -> Iterator[str]:
    return (name for operand in operands for name in registers_of(operand) if name != "_")


def _special(name: str) -> str | None:
    base, dot, axis = name[1:].partition(".")
    if dot:
        return "u32" if base in _COORDINATES and axis in ("x", "y", "z", "w") else None
    if name == "%is_explicit_cluster":
        return "pred"
    if base.startswith(("envreg", "pm")) and base.lstrip("envrgpm").removesuffix("_64").isdigit():
        return "u32"
    return ("u64" if name in _WIDE_SPECIAL else "u32") if base in _SPECIAL else None


def _check_literal(literal: Immediate, kind: str) -> None:
    """Reject a literal that is no value of the required type. Halves are written as bits (PTX ISA, section 4.5)."""
    bits = BITS[kind]
    is_float = kind in ("f32", "f64", "f32x2", "tf32")
    if literal.kind == "int":
        if is_float:
            raise ValueError(f"expected a .{kind}, not the integer {literal.value}")
        # Triton 3.8 writes a negative number with 64 bits. ptxas uses only the lower bits.
        value = literal.value - (1 << 64 if bits < 64 and literal.value >= (1 << 64) - (1 << bits - 1) else 0)
        if bits > 1 and not -(1 << bits - 1) <= value < 1 << bits:
            raise ValueError(f"the literal {literal.value} does not fit .{kind}")
    elif kind[0] in "us" or kind == "pred":
        raise ValueError(f"expected a .{kind}, not a floating-point literal")
    elif kind[0] == "b" and literal.kind in ("f32", "f64") and bits != BITS[literal.kind]:
        raise ValueError(f"expected a .{kind}, not a .{literal.kind} literal")
