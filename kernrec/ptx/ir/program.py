"""PTX as data: modules, functions, variables, instructions, basic blocks; operands are in `operand`."""

from dataclasses import field, fields
from typing import Any

from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Symbol, Texel, leaves, registers_of
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

_WIDEST = 16  # bytes of an access


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    opcode: str

    modifiers: tuple[str, ...]
    """In order, types among them: `shared`, `v4`, `b32`."""

    operands: tuple[Operand, ...]
    """In order; mostly the destination first."""

    predicate: tuple[str, bool] | None
    """Name of the predicate register that guards the instruction, and whether it is negated."""

    line: int
    """Line in the PTX, from 1."""

    text: str
    """Of the source."""

    @cached_property
    def results(self) -> frozenset[str]:
        """The registers that it writes."""
        return frozenset(registers_of(self.operands[0])) if has_result(self) else frozenset()

    @cached_property
    def sources(self) -> frozenset[str]:
        """The registers that it reads, its predicate among them."""
        read = self.operands[1:] if has_result(self) and not accumulates(self) else self.operands
        names = [name for operand in read for name in registers_of(operand)]
        return frozenset(names if self.predicate is None else [*names, self.predicate[0]])

    @cached_property
    def addresses(self) -> frozenset[str]:
        """The registers in its addresses."""
        places = (operand for operand in self.operands if isinstance(operand, Address | Texel))
        return frozenset([name for place in places for name in registers_of(place)])

    @property
    def name(self) -> str:
        """The opcode with all its modifiers: `ld.shared.v4.b32`."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A variable or parameter."""

    name: str

    space: str
    """State space: `global`, `const`, `shared`, `local` or `param`."""

    type: str
    """PTX type of an element."""

    align: int
    """In bytes."""

    size: int
    """Bytes; 0 for the unsized `extern .shared` array."""

    data: bytes | None = None

    external: bool = False
    """Whether it is declared `.extern`."""

    pointers: tuple[tuple[int, str, int], ...] = ()
    """Initial values that are addresses: (byte offset, symbol, bytes to add to its address)."""

    @property
    def placed_align(self) -> int:
        """The alignment of its place in shared memory: wide accesses reach arrays, unless that takes more room."""
        return max(self.align, 1 if self.size % _WIDEST else _WIDEST)


@dataclass(frozen=True)
class BasicBlock:
    """Instructions that run one after the other, entered only at the first."""

    index: int
    """Position in the function."""

    instructions: tuple[Instruction, ...]

    labels: tuple[str, ...]
    """Labels in front of the first instruction."""


def accumulates(ins: Instruction) -> bool:
    """Whether an instruction reads its first operand and writes it, too."""
    return ins.opcode == "wgmma" and ins.modifiers[:1] == ("mma_async",)


_NO_RESULT = frozenset(
    {"st", "bra", "brx", "exit", "ret", "bar", "barrier", "cp", "red", "sust", "sured", "trap", "membar", "fence"}
)


def has_result(ins: Instruction) -> bool:
    """Whether an instruction writes its first operand."""
    if ins.opcode in _NO_RESULT or not ins.operands or ins.modifiers[:1] in (("store",), ("dealloc",)):
        return False
    return not isinstance(ins.operands[0], Address | Texel)  # what is in brackets is read


_ENDS_BLOCK = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})
_WARP_SYNCHRONOUS = frozenset(
    {"shfl", "vote", "match", "redux", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "elect"}
)


def ends_block(ins: Instruction) -> bool:
    """Whether a basic block ends with an instruction: control may go elsewhere, or wait, after it."""
    return ins.opcode in _ENDS_BLOCK and ins.modifiers[:1] != ("warp",)


def is_warp_synchronous(ins: Instruction) -> bool:
    """Whether the threads of a warp run an instruction together: a basic block begins with it, and they wait there."""
    alone = ins.opcode in _WARP_SYNCHRONOUS or (ins.opcode == "bar" and ins.modifiers[:1] == ("warp",))
    alone = alone or (ins.opcode == "tcgen05" and "sync" in ins.modifiers)
    return alone or is_warpgroup_synchronous(ins)


def is_warpgroup_synchronous(ins: Instruction) -> bool:
    """Whether the threads of a warpgroup run an instruction together."""
    return ins.opcode == "wgmma"


def waits_for_phase(ins: Instruction) -> bool:
    """Whether threads may wait at an instruction for a phase of a barrier in memory: a basic block begins with it."""
    return ins.opcode == "mbarrier" and ins.modifiers[:1] in (("test_wait",), ("try_wait",))


_ALL_LANES = Immediate(0xFFFFFFFF, "int")


def lane_mask(ins: Instruction) -> Operand:
    """The mask of the lanes that run a warp-synchronous instruction together."""
    mask = ins.operands[-1] if ins.operands else _ALL_LANES
    whole = "aligned" in ins.modifiers or not isinstance(mask, Register | Immediate)
    return _ALL_LANES if whole else mask


def _names_all_lanes(ins: Instruction) -> bool:
    mask = lane_mask(ins)
    return isinstance(mask, Immediate) and int(mask.value) & 0xFFFFFFFF == 0xFFFFFFFF


@dataclass(frozen=True)
class Function:
    """An entry or device function."""

    name: str

    entry: bool
    """Whether it is a kernel."""

    parameters: tuple[Variable, ...]

    line: int
    """Line of its header, from 1."""

    registers: dict[str, str] = field(default_factory=dict)
    """PTX type by name, of registers that are declared one by one."""

    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By prefix: PTX type and count, of registers that are declared as a range (`%r<20>`)."""

    variables: dict[str, Variable] = field(default_factory=dict)
    """Variables of the body by name."""

    instructions: list[Instruction] = field(default_factory=list)

    labels: dict[str, int] = field(default_factory=dict)
    """By label: position of the instruction behind it."""

    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By name: labels of a `.branchtargets` table."""

    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Performance directives such as `maxntid`, with their numbers."""

    immediates: set[Immediate] = field(default_factory=set)
    """Literals among the operands."""

    returns: tuple[Variable, ...] = ()
    """Results of a device function, as it names them."""

    @cached_property
    def memo(self) -> dict[object, Any]:
        """Results of analyses of the function, each by a key of its own."""
        return {}

    def __getstate__(self) -> dict[str, Any]:  # what follows from the rest is not pickled
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def register_type(self, name: str) -> str | None:
        """The declared type of a register (`b32`, `pred`, ...), or None when it was never declared."""
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
        """The types of registers of ranges that were asked for."""
        return {}

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """The basic blocks in the order of the text."""
        starts = {0, *self.labels.values()}
        together = False  # whether the lanes of each warp are known to be together
        groups_together = False  # whether those of each warpgroup are
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
        """Names of variables, parameters and labels that the instructions mention."""
        operands = (operand for ins in self.instructions for operand in ins.operands)
        return frozenset(leaf.name for operand in operands for leaf in leaves(operand) if isinstance(leaf, Symbol))

    @cached_property
    def block_index(self) -> dict[str, int]:
        """Label -> index of its basic block; the index past the last block for a label at the very end."""
        index = {label: block.index for block in self.blocks for label in block.labels}
        return {label: index.get(label, len(self.blocks)) for label in self.labels}


@dataclass(frozen=True)
class Module:
    """A parsed PTX module."""

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
