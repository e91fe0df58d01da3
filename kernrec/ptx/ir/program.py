"""What a PTX text says, as data: modules, functions, variables, instructions, operands, basic blocks."""

import re
from dataclasses import dataclass, field
from functools import cached_property

_SIZES = {"pred": 1, "b128": 16, "f16x2": 4, "bf16x2": 4}


def size_of(type_name: str) -> int:
    """Bytes of one element of a PTX type."""
    known = _SIZES.get(type_name)
    return known if known is not None else int(re.sub(r"\D", "", type_name) or 32) // 8


@dataclass(frozen=True, slots=True)
class Register:
    """A virtual or special register, with its `%` (a special one keeps its dimension: `%tid.x`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. `kind` is `int`, `f32` or `f64` (the value is then the bit pattern), or `float` (decimal)."""

    value: int | float
    kind: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, function or label, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; the offset is in bytes."""

    base: "Register | Symbol | Immediate"
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`; a discarded element is `Register("_")`."""

    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`p|q`, the two destinations of `setp` and `shfl.sync`."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`, a predicate source taken negated."""

    register: Register


Operand = Register | Immediate | Symbol | Address | Vector | Pair | Negated


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `predicate` is (register name, negated) or None; `line` counts from 1."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    predicate: tuple[str, bool] | None
    line: int
    text: str

    @property
    def name(self) -> str:
        """The opcode with all its modifiers: `ld.shared.v4.b32`."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of state space `space` (global, const, shared, local, param).

    `size` is in bytes, 0 for the unsized `extern .shared` array; `data` is its initial content, or None;
    `pointers` are (byte offset, symbol, byte offset into it) of initialisers that are addresses.
    """

    name: str
    space: str
    type: str
    align: int
    size: int
    data: bytes | None = None
    external: bool = False
    pointers: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class BasicBlock:
    """A basic block: instructions that run one after the other, entered only at the first."""

    index: int
    instructions: tuple[Instruction, ...]
    labels: tuple[str, ...]


_ENDS_BLOCK = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})
_WARP_SYNCHRONOUS = frozenset({"shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "movmatrix"})


def ends_block(ins: Instruction) -> bool:
    """Whether control may go elsewhere, or wait, after an instruction: a basic block ends behind it."""
    return ins.opcode in _ENDS_BLOCK and ins.modifiers[:1] != ("warp",)


def is_warp_synchronous(ins: Instruction) -> bool:
    """Whether the threads of a warp run an instruction together: they gather where a basic block begins with it."""
    return ins.opcode in _WARP_SYNCHRONOUS or (ins.opcode == "bar" and ins.modifiers[:1] == ("warp",))


_ALL_LANES = Immediate(0xFFFFFFFF, "int")


def lane_mask(ins: Instruction) -> Operand:
    """The mask of the lanes that run an instruction of `gathers` together."""
    mask = ins.operands[-1] if ins.operands else _ALL_LANES
    whole = "aligned" in ins.modifiers or not isinstance(mask, Register | Immediate)
    return _ALL_LANES if whole else mask


def _names_all_lanes(ins: Instruction) -> bool:
    mask = lane_mask(ins)
    return isinstance(mask, Immediate) and int(mask.value) & 0xFFFFFFFF == 0xFFFFFFFF


@dataclass(frozen=True)
class Function:
    """An entry or device function: parameters, register types, variables, instructions, labels.

    returns: what a device function's results are called in it.
    """

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    line: int
    registers: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    immediates: set[Immediate] = field(default_factory=set)
    returns: tuple[Variable, ...] = ()

    def register_type(self, name: str) -> str | None:
        """The declared type of a register (`b32`, `pred`, ...), or None when it was never declared."""
        found = self.registers.get(name)
        if found is not None:
            return found
        many = self.ranges.get(name.rstrip("0123456789"))
        return many[0] if many else None

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """The basic blocks in the order of the text."""
        starts = {0, *self.labels.values()}
        together = False  # whether the lanes of each warp are known to be together
        for i, ins in enumerate(self.instructions):
            together = together and i not in starts
            if ends_block(ins):
                starts.add(i + 1)
            if is_warp_synchronous(ins) and not together:
                starts.add(i)
                together = _names_all_lanes(ins)
        named: dict[int, list[str]] = {}
        for label, at in self.labels.items():
            named.setdefault(at, []).append(label)
        order = sorted(s for s in starts if s < len(self.instructions))
        stops = [*order[1:], len(self.instructions)]
        return tuple(
            BasicBlock(i, tuple(self.instructions[a:b]), tuple(named.get(a, ())))
            for i, (a, b) in enumerate(zip(order, stops, strict=True))
        )

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of variables, parameters and labels that the instructions mention."""
        names: set[str] = set()
        for ins in self.instructions:
            for operand in ins.operands:
                for one in operand.items if isinstance(operand, Vector) else (operand,):
                    inner = one.base if isinstance(one, Address) else one
                    if isinstance(inner, Symbol):
                        names.add(inner.name)
        return frozenset(names)

    @cached_property
    def block_index(self) -> dict[str, int]:
        """Label -> index of its basic block; the index past the last block for a label at the very end."""
        at = {label: block.index for block in self.blocks for label in block.labels}
        return {label: at.get(label, len(self.blocks)) for label in self.labels}


@dataclass(frozen=True)
class Module:
    """A parsed PTX module: `.version`, `.target` (`sm_86`), functions by name, module-scope variables by name."""

    version: str
    target: str
    functions: dict[str, Function]
    variables: dict[str, Variable]

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the kernels."""
        return tuple(name for name, function in self.functions.items() if function.entry)
