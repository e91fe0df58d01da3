"""Define the data classes of a parsed PTX program."""

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import field, fields
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

from kernrec.errors import KernrecError
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Symbol, Texel
from kernrec.util.cached_property import cached_property
from kernrec.util.light_dataclass import dataclass

R = TypeVar("R")
_WIDEST = 16


@dataclass(frozen=True)
class Instruction:
    """Instruction of a function, with its operands and guard."""

    opcode: str
    modifiers: tuple[str, ...]
    """Modifiers in order, including types: `shared`, `v4`, `b32`."""
    operands: tuple[Operand, ...]
    """Operands, usually with the destination first."""
    predicate: tuple[str, bool] | None
    """Predicate register of the guard, and whether it is negated. None if there is no guard."""
    line: int
    """Line in the PTX, counted from 1."""
    text: str

    @cached_property
    def results(self) -> frozenset[str]:
        return frozenset(self.operands[0].registers) if has_result(self) else frozenset()

    @cached_property
    def sources(self) -> frozenset[str]:
        """Return the registers that the instruction reads, including its predicate."""
        read = self.operands[1:] if self.results and not accumulates(self) else self.operands
        names = [name for operand in read for name in operand.registers]
        return frozenset(names if self.predicate is None else [*names, self.predicate[0]])

    @cached_property
    def addresses(self) -> frozenset[str]:
        """Return the registers that form addresses."""
        places = (operand for operand in self.operands if isinstance(operand, _PLACES))
        return frozenset([name for place in places for name in place.registers])

    @cached_property
    def name(self) -> str:
        """Return the opcode with all modifiers: `ld.shared.v4.b32`."""
        return ".".join((self.opcode, *self.modifiers))

    def at(self, line: int) -> "Instruction":
        """Return a copy with another line number. The copy keeps the cached properties."""
        copy = object.__new__(Instruction)
        fields = copy.__dict__
        fields.update(self.__dict__)
        fields["line"] = line
        return copy


@dataclass(frozen=True)
class Variable:
    """Variable or parameter of a module or function."""

    name: str
    space: str
    """State space: `global`, `const`, `shared`, `local` or `param`."""
    type: str
    align: int
    """Alignment in bytes."""
    size: int
    """Size in bytes, or 0 for the unsized `extern .shared` array."""
    data: bytes | None = None
    external: bool = False
    """Whether the declaration has `.extern`."""
    pointers: tuple[tuple[int, str, int], ...] = ()
    """Addresses among the initial values: byte offset in the variable, symbol, and offset from the symbol."""

    @property
    def placed_align(self) -> int:
        """Return the alignment of the variable in shared memory.

        It exceeds the declared alignment if this allows wide accesses and takes no extra space.
        """
        return max(self.align, 1 if self.size % _WIDEST else _WIDEST)


@dataclass(frozen=True)
class BasicBlock:
    """Instructions that run in sequence. Branches lead only to the first instruction."""

    index: int
    instructions: tuple[Instruction, ...]
    labels: tuple[str, ...]


def accumulates(ins: Instruction) -> bool:
    """Return whether an instruction both reads and writes its first operand."""
    return ins.opcode == "wgmma" and ins.modifiers[:1] == ("mma_async",)


_PLACES = (Address, Texel)
_NO_RESULT = frozenset(
    {"st", "bra", "brx", "exit", "ret", "bar", "barrier", "cp", "red", "sust", "sured", "trap", "membar", "fence"}
)


def has_result(ins: Instruction) -> bool:
    """Return whether an instruction writes its first operand."""
    # Brackets mark an address, which the instruction only reads.
    if ins.opcode in _NO_RESULT or not ins.operands or isinstance(ins.operands[0], _PLACES):
        return False
    return not ins.modifiers or ins.modifiers[0] not in ("store", "dealloc")


_ENDS_BLOCK = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier", "call"})
_WARP_SYNCHRONOUS = frozenset(
    {"shfl", "vote", "match", "redux", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "elect"}
)


_MAY_SPLIT = _ENDS_BLOCK | _WARP_SYNCHRONOUS | {"mbarrier", "tcgen05", "wgmma"}
"""Opcodes before or after which a basic block may end."""


def ends_block(ins: Instruction) -> bool:
    """Return whether an instruction ends its basic block, because it may branch or make threads wait."""
    return ins.opcode in _ENDS_BLOCK and ins.modifiers[:1] != ("warp",)


def is_warp_synchronous(ins: Instruction) -> bool:
    """Return whether the threads of a warp wait for each other at an instruction, which then starts a basic block."""
    alone = ins.opcode in _WARP_SYNCHRONOUS or (ins.opcode == "bar" and ins.modifiers[:1] == ("warp",))
    alone = alone or (ins.opcode == "tcgen05" and "sync" in ins.modifiers)
    return alone or is_warpgroup_synchronous(ins)


def is_warpgroup_synchronous(ins: Instruction) -> bool:
    """Return whether the threads of a warpgroup execute an instruction together."""
    return ins.opcode == "wgmma"


def _names_all_lanes(ins: Instruction) -> bool:
    mask = ins.operands[-1] if ins.operands else None
    if "aligned" in ins.modifiers or not isinstance(mask, Register | Immediate):
        return True
    return isinstance(mask, Immediate) and int(mask.value) & 0xFFFFFFFF == 0xFFFFFFFF


@dataclass(frozen=True)
class Function:
    """Kernel or device function."""

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    line: int
    """Line of the header in the PTX, counted from 1."""
    registers: dict[str, str] = field(default_factory=dict)
    """Type of each register that is declared by name."""
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Type and number of the registers in each declared range such as `%r<20>`, keyed by prefix."""
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Index of the instruction that follows each label."""
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels in each `.branchtargets` table."""
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Arguments of each performance directive, such as `maxntid`."""
    returns: tuple[Variable, ...] = ()
    """Variables that receive a device function's results."""

    @cached_property
    def memo(self) -> dict[object, Any]:
        """Return the results of analyses that were cached for this function."""
        return {}

    @cached_property
    def form_memo(self) -> dict[object, Any]:
        """Return cached results that functions share if they differ only in literals (see `cached_by_form`)."""
        return {}

    def __getstate__(self) -> dict[str, Any]:  # Pickle only the fields.
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def register_type(self, name: str) -> str | None:
        """Return the type of a register, or None if it is not declared."""
        prefix, number = _numbered(name)
        kind, count = self.ranges.get(prefix, ("", 0))
        return self.registers.get(name) or (kind if number < count else None)

    @cached_property
    def blocks(self) -> tuple[BasicBlock, ...]:
        """Return the basic blocks in text order."""
        starts = {0, *self.labels.values()}
        together = False  # Whether all lanes of a warp are certain to be at this instruction.
        groups_together = False  # Whether all lanes of a warpgroup are certain to be at this instruction.
        for i, ins in enumerate(self.instructions):
            if i in starts:
                together = groups_together = False
            if ins.opcode not in _MAY_SPLIT:
                continue
            if ends_block(ins):
                starts.add(i + 1)
            if ins.opcode == "mbarrier" and ins.modifiers[:1] in (("test_wait",), ("try_wait",)):
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

    @property
    def symbols(self) -> frozenset[str]:
        """Return the variables, parameters and labels that the instructions use."""
        return _symbols(self)

    @cached_property
    def block_index(self) -> dict[str, int]:
        """Return the index of the basic block that follows each label."""
        index = {label: block.index for block in self.blocks for label in block.labels}
        return {label: index.get(label, len(self.blocks)) for label in self.labels}


@lru_cache(maxsize=1 << 14)
def _numbered(name: str) -> tuple[str, float]:
    """Return a register's prefix and its number in a range such as `%r<20>`, or infinity if it has no number."""
    prefix = name.rstrip("0123456789")
    number = name[len(prefix) :]
    return prefix, int(number) if 0 < len(number) < 10 and (number[0] != "0" or number == "0") else math.inf


def cached_analysis(analysis: Callable[[Function], R]) -> Callable[[Function], R]:
    """Decorate an analysis so that it runs only once for each PTX function."""
    return _cached(analysis, "memo")


def cached_by_form(analysis: Callable[[Function], R]) -> Callable[[Function], R]:
    """Decorate an analysis so that it runs only once for PTX functions whose code differs only in literals.

    The analysis may depend on the literals 0, 1 and -1, on literals with more than nine digits, and on whether factors
    of wide products are equal. It must not depend on other literals. Its result must not contain instructions, lines or
    literals.
    """
    return _cached(analysis, "form_memo")


def _cached(analysis: Callable[[Function], R], name: str) -> Callable[[Function], R]:
    @wraps(analysis)
    def cached(function: Function) -> R:
        memo = getattr(function, name)
        if analysis not in memo:
            memo[analysis] = analysis(function)
        result: R = memo[analysis]
        return result

    return cached


@cached_by_form
def _symbols(function: Function) -> frozenset[str]:
    operands = [o for ins in function.instructions for o in ins.operands if not isinstance(o, Register)]
    return frozenset([leaf.name for o in operands for leaf in o.leaves if isinstance(leaf, Symbol)])


@cached_by_form
def has_calls(function: Function) -> bool:
    return any(ins.opcode == "call" for ins in function.instructions)


@dataclass(frozen=True)
class Module:
    """Kernels, device functions and variables of a PTX text."""

    version: str
    """Version of the PTX ISA, such as `8.0`."""
    target: str
    """Target architecture, such as `sm_86`."""
    functions: dict[str, Function]
    variables: dict[str, Variable]

    @property
    def entries(self) -> tuple[str, ...]:
        """Return the names of the module's kernels."""
        return tuple(name for name, function in self.functions.items() if function.entry)

    def bytes_of(self, function: Function, space: str) -> int:
        """Return the size in bytes of the variables that a function uses in a state space, without `extern` arrays."""
        used = [variable for variable in self.variables.values() if variable.name in function.symbols]
        variables = (*used, *function.variables.values())
        return sum(v.size for v in variables if v.space == space and not v.external)


_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_LOCATION = re.compile(r"[ \t]*\.loc[ \t]+(\d+[ \t]+\d+[ \t]+\d+)(?:.*inlined_at[ \t]+(\d+[ \t]+\d+[ \t]+\d+))?")
_TOOLKIT_PATH = re.compile(r"/(?:nvidia|cuda[^/]*|cccl)/(?:.*/)?include/")


class Place(NamedTuple):
    """A line of a source file."""

    file: str
    line: int


class SourceLines:
    """Source lines of a PTX module.

    Code from CUDA's own headers belongs to the line that calls it.
    """

    def __init__(self, ptx: str) -> None:
        files = {int(number): name for number, name in _FILE.findall(ptx)}
        of_toolkit = {number for number, name in files.items() if _TOOLKIT_PATH.search(name)}
        callers: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._starts: list[int] = []
        self._places: list[Place | None] = []
        for number, text in enumerate(ptx.splitlines(), 1):
            if location := _LOCATION.match(text):
                place = _numbers(location[1])
                callers.pop(place, None)
                if location[2]:
                    callers[place] = _numbers(location[2])
                passed = {place}
                while place[0] in of_toolkit and callers.get(place, place) not in passed:
                    passed.add(place := callers[place])
                line = place[1]
                self._add(number, Place(files.get(place[0], ""), line) if line else None)
            elif text.startswith("}"):
                self._add(number, None)

    def _add(self, number: int, place: Place | None) -> None:
        self._starts.append(number)
        self._places.append(place)

    def of(self, line: int) -> Place | None:
        """Return the source line of a PTX line, or None if it is unknown."""
        position = bisect_right(self._starts, line) - 1
        return self._places[position] if position >= 0 else None


def _numbers(text: str) -> tuple[int, int, int]:
    file, line, column = map(int, text.split())
    return file, line, column


class ParseError(KernrecError):
    """Error for a text that is not valid PTX. `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message, self.line = message, line

    def __reduce__(self) -> tuple[type["ParseError"], tuple[str, int]]:
        return type(self), (self.message, self.line)
