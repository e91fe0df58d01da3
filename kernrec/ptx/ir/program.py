"""Represent PTX modules, functions, variables, instructions and basic blocks, and their source lines (`.loc`).

Operands are in `operand`.
"""

import re
from bisect import bisect_right
from dataclasses import field, fields
from functools import cached_property
from typing import Any, NamedTuple

from kernrec.errors import KernrecError
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Symbol, Texel, leaves, registers_of
from kernrec.util.light_dataclass import dataclass

_WIDEST = 16  # bytes per access


@dataclass(frozen=True)
class Instruction:
    """Instruction."""

    opcode: str
    modifiers: tuple[str, ...]
    """Modifiers in order, including types: `shared`, `v4`, `b32`."""
    operands: tuple[Operand, ...]
    """Operands in order, usually destination first."""
    predicate: tuple[str, bool] | None
    """Name of the guard's predicate register, and whether it is negated."""
    line: int
    """Line in the PTX, from 1."""
    text: str
    """Text of the source."""

    @cached_property
    def results(self) -> frozenset[str]:
        """Registers that the instruction writes."""
        return frozenset(registers_of(self.operands[0])) if has_result(self) else frozenset()

    @cached_property
    def sources(self) -> frozenset[str]:
        """Registers that the instruction reads, including its predicate."""
        read = self.operands[1:] if has_result(self) and not accumulates(self) else self.operands
        names = [name for operand in read for name in registers_of(operand)]
        return frozenset(names if self.predicate is None else [*names, self.predicate[0]])

    @cached_property
    def addresses(self) -> frozenset[str]:
        """Registers in the instruction's addresses."""
        places = (operand for operand in self.operands if isinstance(operand, Address | Texel))
        return frozenset([name for place in places for name in registers_of(place)])

    @property
    def name(self) -> str:
        """Opcode with all modifiers: `ld.shared.v4.b32`."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """Variable or parameter."""

    name: str
    space: str
    """State space: `global`, `const`, `shared`, `local` or `param`."""
    type: str
    """PTX type of an element."""
    align: int
    """Alignment in bytes."""
    size: int
    """Size in bytes, or 0 for the unsized `extern .shared` array."""
    data: bytes | None = None
    external: bool = False
    """Whether the variable is declared `.extern`."""
    pointers: tuple[tuple[int, str, int], ...] = ()
    """Initial values that are addresses: (byte offset, symbol, bytes to add to its address)."""

    @property
    def placed_align(self) -> int:
        """Alignment in shared memory, raised to allow wide accesses to arrays if that takes no extra space."""
        return max(self.align, 1 if self.size % _WIDEST else _WIDEST)


@dataclass(frozen=True)
class BasicBlock:
    """Instructions that run in sequence; control enters only at the first."""

    index: int
    """Index in the function."""
    instructions: tuple[Instruction, ...]
    labels: tuple[str, ...]
    """Labels before the first instruction."""


def accumulates(ins: Instruction) -> bool:
    """Return whether an instruction both reads and writes its first operand."""
    return ins.opcode == "wgmma" and ins.modifiers[:1] == ("mma_async",)


_NO_RESULT = frozenset(
    {"st", "bra", "brx", "exit", "ret", "bar", "barrier", "cp", "red", "sust", "sured", "trap", "membar", "fence"}
)


def has_result(ins: Instruction) -> bool:
    """Return whether an instruction writes its first operand."""
    if ins.opcode in _NO_RESULT or not ins.operands or ins.modifiers[:1] in (("store",), ("dealloc",)):
        return False
    return not isinstance(ins.operands[0], Address | Texel)  # an operand in brackets is an address, which is read


_ENDS_BLOCK = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})
_WARP_SYNCHRONOUS = frozenset(
    {"shfl", "vote", "match", "redux", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "elect"}
)


def ends_block(ins: Instruction) -> bool:
    """Return whether an instruction ends a basic block, because control may branch or wait after it."""
    return ins.opcode in _ENDS_BLOCK and ins.modifiers[:1] != ("warp",)


def is_warp_synchronous(ins: Instruction) -> bool:
    """Return whether a warp's threads run an instruction together, after waiting at the start of its basic block."""
    alone = ins.opcode in _WARP_SYNCHRONOUS or (ins.opcode == "bar" and ins.modifiers[:1] == ("warp",))
    alone = alone or (ins.opcode == "tcgen05" and "sync" in ins.modifiers)
    return alone or is_warpgroup_synchronous(ins)


def is_warpgroup_synchronous(ins: Instruction) -> bool:
    """Return whether the threads of a warpgroup run an instruction together."""
    return ins.opcode == "wgmma"


def waits_for_phase(ins: Instruction) -> bool:
    """Return whether an instruction, which starts a basic block, may wait for a phase of an mbarrier."""
    return ins.opcode == "mbarrier" and ins.modifiers[:1] in (("test_wait",), ("try_wait",))


_ALL_LANES = Immediate(0xFFFFFFFF, "int")


def lane_mask(ins: Instruction) -> Operand:
    """Return the mask of the lanes that run a warp-synchronous instruction together."""
    mask = ins.operands[-1] if ins.operands else _ALL_LANES
    whole = "aligned" in ins.modifiers or not isinstance(mask, Register | Immediate)
    return _ALL_LANES if whole else mask


def _names_all_lanes(ins: Instruction) -> bool:
    mask = lane_mask(ins)
    return isinstance(mask, Immediate) and int(mask.value) & 0xFFFFFFFF == 0xFFFFFFFF


@dataclass(frozen=True)
class Function:
    """Kernel or device function."""

    name: str
    entry: bool
    """Whether the function is a kernel."""
    parameters: tuple[Variable, ...]
    line: int
    """Line of its header, from 1."""
    registers: dict[str, str] = field(default_factory=dict)
    """PTX type by name, for registers declared individually."""
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    """PTX type and count by prefix, for registers declared as a range (`%r<20>`)."""
    variables: dict[str, Variable] = field(default_factory=dict)
    """Variables of the body by name."""
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Index of the next instruction by label."""
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of `.branchtargets` tables by name."""
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Performance directives such as `maxntid`, with their numbers."""
    immediates: set[Immediate] = field(default_factory=set)
    """Literals among the operands."""
    returns: tuple[Variable, ...] = ()
    """Result variables of a device function."""

    @cached_property
    def memo(self) -> dict[object, Any]:
        """Cached results of analyses of this function, by key."""
        return {}

    def __getstate__(self) -> dict[str, Any]:  # Do not pickle derived values.
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def register_type(self, name: str) -> str | None:
        """Return the declared type of a register (`b32`, `pred`, ...), or None if it was not declared."""
        kind = self.registers.get(name) or self._of_ranges.get(name)
        if kind is not None:
            return kind
        prefix = name.rstrip("0123456789")
        kind, count = self.ranges.get(prefix, ("", 0))
        number = name[len(prefix) :]
        within = 0 < len(number) < 10 and int(number) < count and (number[0] != "0" or number == "0")
        if not within:
            return None
        self._of_ranges[name] = kind
        return kind

    @cached_property
    def _of_ranges(self) -> dict[str, str]:
        return {}

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """Basic blocks in text order."""
        starts = {0, *self.labels.values()}
        together = False  # Whether all lanes of a warp are certainly at this instruction.
        groups_together = False  # Whether all lanes of a warpgroup are certainly at this instruction.
        for i, ins in enumerate(self.instructions):
            together = together and i not in starts
            groups_together = groups_together and i not in starts
            if ends_block(ins):
                starts.add(i + 1)
            if waits_for_phase(ins):
                starts.add(i)
                together = groups_together = False
            if is_warpgroup_synchronous(ins) and not groups_together:
                starts.add(i)
                together = groups_together = True
            if is_warp_synchronous(ins) and not together:
                starts.add(i)
                together, groups_together = _names_all_lanes(ins), False
        named: dict[int, list[str]] = {}
        for label, index in self.labels.items():
            named.setdefault(index, []).append(label)
        order = sorted(s for s in starts if s < len(self.instructions))
        stops = [*order[1:], len(self.instructions)]
        return tuple(
            BasicBlock(i, tuple(self.instructions[a:b]), tuple(named.get(a, ())))
            for i, (a, b) in enumerate(zip(order, stops, strict=True))
        )

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of variables, parameters and labels that the instructions use."""
        operands = (operand for ins in self.instructions for operand in ins.operands)
        return frozenset(leaf.name for operand in operands for leaf in leaves(operand) if isinstance(leaf, Symbol))

    @cached_property
    def block_index(self) -> dict[str, int]:
        """Index of the basic block by label; a label at the end has the number of blocks."""
        index = {label: block.index for block in self.blocks for label in block.labels}
        return {label: index.get(label, len(self.blocks)) for label in self.labels}


@dataclass(frozen=True)
class Module:
    """Parsed PTX module."""

    version: str
    """PTX ISA version: `8.0`."""
    target: str
    """Architecture: `sm_86`."""
    functions: dict[str, Function]
    """Functions with a body, by name."""
    variables: dict[str, Variable]
    """Variables of module scope, by name."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the kernels."""
        return tuple(name for name, function in self.functions.items() if function.entry)


_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_LOCATION = re.compile(r"[ \t]*\.loc[ \t]+(\d+)[ \t]+(\d+)")


class Place(NamedTuple):
    """Line of a source."""

    file: str
    line: int


class SourceLines:
    """Source lines of a PTX module."""

    def __init__(self, ptx: str) -> None:
        files = dict(_FILE.findall(ptx))
        self._starts: list[int] = []
        self._places: list[Place | None] = []
        for number, text in enumerate(ptx.splitlines(), 1):
            if location := _LOCATION.match(text):
                line = int(location[2])
                self._add(number, Place(files.get(location[1], ""), line) if line else None)
            elif text.startswith("}"):
                self._add(number, None)

    def _add(self, number: int, place: Place | None) -> None:
        self._starts.append(number)
        self._places.append(place)

    def of(self, line: int) -> Place | None:
        """Return the source line of a PTX line, or None if there is none."""
        position = bisect_right(self._starts, line) - 1
        return self._places[position] if position >= 0 else None


class ParseError(KernrecError):
    """The parser cannot read the text as PTX; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message, self.line = message, line

    def __reduce__(self) -> tuple[type["ParseError"], tuple[str, int]]:
        """Support pickling: worker processes send the error to their parent."""
        return type(self), (self.message, self.line)
