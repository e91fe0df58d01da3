"""Run launches in the compiled engine (`engine/`), to which a decoded kernel is passed as flat arrays."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.analysis.dependence import spins
from kernrec.ptx.execution.watched import BlockAccesses, EmulationOptions, block_accesses
from kernrec.ptx.ir.operand import Address, Immediate, Negated, Operand, Pair, Register, Symbol, Texel, Vector
from kernrec.ptx.ir.program import BasicBlock, Function, ends_block, is_warp_synchronous
from kernrec.ptx.state.descriptors import ADDRESSES
from kernrec.ptx.state.launch_layout import LaunchLayout
from kernrec.ptx.state.results import BudgetError, Counts, EmulationError, location, register_width
from kernrec.ptx.state.special_registers import FIXED, is_special, registers_at_launch, special_width, warps_of
from kernrec.util.engine import module

# Kinds of operands, in the order of `OperandKind` in engine/program.h.
_NONE, _REGISTER, _INTEGER, _F32, _F64, _DECIMAL, _SYMBOL, _SPECIAL, _ADDRESS, _VECTOR, _PAIR, _NEGATED = range(12)
_LABEL, _TEXEL, _OTHER = 12, 13, 14
_LITERALS = {"int": _INTEGER, "f32": _F32, "f64": _F64}
_UNSUPPORTED, _BUDGET = 1, 2  # kinds of faults that the engine reports
_NAMED = re.compile("\x01([0-9]+)\x01")
"""Matches the place in an engine message that stands for an instruction. It contains the instruction's index in the
function."""


class Shape(NamedTuple):
    """Shape of a launch. All extents are x first."""

    grid: tuple[int, int, int]
    """Number of thread blocks in the grid."""
    block: tuple[int, int, int]
    """Number of threads per block."""
    cluster: tuple[int, int, int]
    """Number of thread blocks per cluster."""
    together: int
    """Number of thread blocks that are emulated at the same time."""


class SiteCounts(NamedTuple):
    """Data that the accesses of one instruction have moved."""

    requests: int
    lanes: int
    bytes: int
    moved: int
    """Number of sectors of global memory, or of wavefronts of shared memory."""
    ideal: int
    """Number of wavefronts that would be needed without bank conflicts."""
    atomics: int


class RawFinding(NamedTuple):
    """Finding of the engine's checks, as the engine reports it (engine/checks.h)."""

    kind: str
    source: int
    """Index, in the function, of the instruction that the finding is about."""
    other: int
    """Index of the instruction of the other access, or -1 if the finding is about one access."""
    block: str
    thread: str
    other_block: str
    other_thread: str
    memory: str
    offset: int
    bytes: int


class _Code(NamedTuple):
    """Function in the form of the engine's flat arrays. All launches of the function share it."""

    names: list[str]
    """Opcodes with their modifiers."""
    instructions: np.ndarray[Any, Any]
    """For each instruction: (index of the name, number of operands, guard register, whether the guard is negated). The
    guard register is -1 if the instruction has no guard."""
    operands: np.ndarray[Any, Any]
    """For each operand in preorder: (kind, number, value). The number is the index of a register or symbol, or how many
    parts a compound operand has."""
    blocks: np.ndarray[Any, Any]
    """For each basic block: its first instruction, its number of instructions, and four flags. The flags say whether
    the block's last instruction transfers control, whether the lanes of a warp run its first instruction together,
    whether threads wait in the block, and whether the block continues the previous block's piece of machine code."""
    widths: list[int]
    """Size of each register in bits."""
    specials: list[str]
    symbols: list[str]


def known_opcodes() -> frozenset[str]:
    """Return the opcodes that the engine supports, except for control flow. Some include their first modifier."""
    return frozenset(module().opcodes())


class EngineLaunch:
    """Launch whose thread blocks the engine can run a few at a time."""

    def __init__(
        self,
        function: Function,
        layout: LaunchLayout,
        shape: Shape,
        special_values: Mapping[str, int],
        options: EmulationOptions,
        goes_on: Collection[int],
    ) -> None:
        """Decode the kernel, and prepare the launch.

        Args:
            function: the kernel.
            layout: memory of the kernel.
            shape: extents of the launch.
            special_values: values of the special registers that depend on the launch.
            options: options for running blocks.
            goes_on: indices of the basic blocks that the assembler merges with the previous basic block.
        """
        code = _code(function)
        values = FIXED | dict(special_values)
        blocks = code.blocks.reshape(-1, 6).copy()
        blocks[list(goes_on), 5] = True
        self.function = function
        self.warps = np.zeros(len(function.blocks), np.int64)
        """Number of warps that have run each basic block."""
        self.lanes = np.zeros(len(function.blocks), np.int64)
        """Number of active lanes of the warps that have run each basic block."""
        self.by_warp = np.zeros((len(function.blocks), warps_of(shape.block)), np.int64)
        """Number of executions of each basic block by each warp, summed over thread blocks. All numbers are zero if no
        thread block is watched."""
        self.barriers = 0
        """Number of barriers that thread blocks have passed."""
        self.counts = Counts()
        """Counts of memory accesses and tensor-core operations."""
        self._budget = options.budget
        self._kernel: Any = module().Kernel(
            code.names, code.instructions, code.operands, blocks.reshape(-1), code.widths, code.specials,
            [values.get(name, -1) for name in code.specials],
            [_signed(layout.symbols.get(name, 0)) for name in code.symbols],
            shape.grid, shape.block, shape.together, [layout.shared_bytes, layout.local_bytes, layout.argument_bytes],
            layout.constants, layout.parameters, options.budget, options.count, options.check_races,
            shape.cluster, registers_at_launch(function.directives) or 0, list(options.watched),
        )  # fmt: skip
        self._buffers, self._sizes = list(layout.buffers), [data.size for data in layout.buffers.values()]
        for name, data in layout.buffers.items():
            self._kernel.add_buffer(name, data, bool(data.flags.writeable))
        numbers = {name: i for i, name in enumerate(layout.buffers)}
        for handle, image in layout.images.items():
            sampler = image.sampler
            self._kernel.add_image(
                handle, numbers[image.buffer], list(image.extents), image.element.replace("i", "s"),
                [image.channels, image.layers, image.levels],
                [sampler.filter == "linear", ADDRESSES.index(sampler.address), sampler.normalized, sampler.unit_range],
            )  # fmt: skip

    def check(
        self, arrays: Sequence[tuple[str, int, int]], uninitialized: Sequence[str], shared: bool, races: bool
    ) -> None:
        """Turn on checks of memory accesses for all thread blocks that run from now on.

        Args:
            arrays: Variables in shared memory, each with its name, start and size in bytes.
            uninitialized: Buffers that nothing has written before the launch.
            shared: Whether to check accesses to shared memory.
            races: Whether to report thread blocks that access the same global memory if one of them writes it.
        """
        names, starts, sizes = ([array[field] for array in arrays] for field in range(3))
        numbers = [number for number, name in enumerate(self._buffers) if name in uninitialized]
        self._kernel.check(names, starts, sizes, numbers, shared, races)

    @property
    def findings(self) -> list[RawFinding]:
        """Return the errors in memory accesses that the checks have found so far."""
        return [RawFinding(*finding) for finding in self._kernel.findings()]

    @property
    def sites(self) -> list[SiteCounts]:
        """Return the data that the accesses of each instruction have moved so far. The list is empty if memory accesses
        are not checked."""
        return [SiteCounts(*counts) for counts in self._kernel.sites()]

    def set_parameters(self, parameters: bytes) -> None:
        """Replace the bytes of parameter space."""
        self._kernel.set_parameters(parameters)

    def run(self, block_numbers: Sequence[int]) -> None:
        """Run the thread blocks with these linear numbers.

        Raises:
            EmulationError: as `kernrec.ptx.execution.emulator.emulate` does.
        """
        numbers = np.ascontiguousarray(block_numbers, np.int64)
        fault, counts, warps, lanes, barriers, by_warp = self._kernel.run(numbers, _threads())
        if fault is not None:
            raise self._error(*fault)
        for name, value in counts.items():
            self.counts.bump(name, value)
        self.warps += np.array(warps, np.int64)
        self.lanes += np.array(lanes, np.int64)
        self.barriers += barriers
        if by_warp:
            self.by_warp += np.array(by_warp, np.int64).reshape(self.by_warp.shape)

    def unsupported(self) -> list[str]:
        """Return the names of the instructions that the engine does not support, in text order."""
        return [self.function.instructions[place].name for place, _ in self._kernel.unsupported]

    def watched(self) -> dict[int, BlockAccesses]:
        """Return the accesses of the watched thread blocks to global memory."""
        blocks = self._kernel.watches()
        return {block: block_accesses(watched, self._buffers, self._sizes) for block, watched in blocks.items()}

    def _error(self, kind: int, source: int, text: str) -> EmulationError:
        if source < 0:
            return EmulationError(f"{self.function.name}: {text}")
        ins = self.function.instructions[source]
        text = _NAMED.sub(self._name, text)
        if kind == _UNSUPPORTED:
            text = f"the emulator does not support {ins.name}{': ' + text if text else ''}"
        if kind == _BUDGET:
            return BudgetError(
                f"{self.function.name}: more than {self._budget} instructions executed; this looks like an endless "
                f"loop near PTX line {ins.line}"
            )
        return EmulationError(f"{location(self.function, ins)}: {text}")

    def _name(self, place: re.Match[str]) -> str:
        ins = self.function.instructions[int(place[1])]
        return f"{ins.name} in PTX line {ins.line}"


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def issue_of(block: BasicBlock) -> dict[str, int]:
    """Return the machine instructions of a basic block by class. Each PTX instruction is converted separately."""
    issue: dict[str, int] = {}
    for ins in block.instructions:
        for name, cost in issue_cost.classify(ins):
            issue[name] = issue.get(name, 0) + cost
    return issue


def _code(function: Function) -> _Code:
    code: _Code | None = function.memo.get(_Code)
    if code is None:
        code = function.memo[_Code] = _Encoder(function).code()
    return code


class _Encoder:
    """Encoder of a function as the flat arrays that the engine reads."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._names: dict[str, int] = {}
        self._registers: dict[str, int] = {}
        self._specials: dict[str, int] = {}
        self._symbols: dict[str, int] = {}
        self._operands: list[tuple[int, int, int]] = []

    def code(self) -> _Code:
        function = self._function
        instructions = []
        for ins in function.instructions:
            guard = -1 if ins.predicate is None else self._register(ins.predicate[0])
            instructions.append(
                (
                    self._names.setdefault(ins.name, len(self._names)),
                    len(ins.operands),
                    guard,
                    int(ins.predicate is not None and ins.predicate[1]),
                )
            )
            branches = ins.opcode in ("bra", "brx")
            for operand in ins.operands:
                self._operand(operand, branches)
        blocks, first = [], 0
        for block in function.blocks:
            head, last = block.instructions[0], block.instructions[-1]
            count = len(block.instructions)
            flags = (ends_block(last), is_warp_synchronous(head), spins(block), False)
            blocks.append((first, count, *map(int, flags)))
            first += count
        widths = [register_width(function.register_type(name) or "b32") for name in self._registers]
        return _Code(
            list(self._names),
            _flat(instructions),
            _flat(self._operands),
            _flat(blocks),
            widths,
            list(self._specials),
            list(self._symbols),
        )

    def _register(self, name: str) -> int:
        return self._registers.setdefault(name, len(self._registers))

    def _operand(self, operand: Operand, branches: bool) -> None:
        add = self._operands.append
        if isinstance(operand, Register):
            if operand.name == "_":
                add((_NONE, 0, 0))
            elif self._function.register_type(operand.name) is not None:
                add((_REGISTER, self._register(operand.name), 0))
            elif is_special(operand.name):
                number = self._specials.setdefault(operand.name, len(self._specials))
                add((_SPECIAL, number, special_width(operand.name)))
            else:
                add((_OTHER, 0, 0))
        elif isinstance(operand, Immediate):
            if operand.kind in _LITERALS:
                add((_LITERALS[operand.kind], 0, _signed(int(operand.value))))
            else:
                add((_DECIMAL, 0, int(np.float64(operand.value).view(np.int64))))
        elif isinstance(operand, Symbol):
            self._symbol(operand, branches)
        elif isinstance(operand, Address):
            add((_ADDRESS, 1, _signed(operand.offset)))
            self._operand(operand.base, False)
        elif isinstance(operand, Vector):
            self._parts(_VECTOR, operand.items)
        elif isinstance(operand, Pair):
            self._parts(_PAIR, (operand.first, operand.second))
        elif isinstance(operand, Negated):
            self._parts(_NEGATED, (operand.register,))
        elif isinstance(operand, Texel):
            self._parts(_TEXEL, (operand.image, *operand.coordinates))
        else:
            add((_OTHER, 0, 0))

    def _parts(self, kind: int, parts: Sequence[Operand]) -> None:
        self._operands.append((kind, len(parts), 0))
        for part in parts:
            self._operand(part, False)

    def _symbol(self, symbol: Symbol, branches: bool) -> None:
        index, tables = self._function.block_index, self._function.tables
        if branches and symbol.name in tables:
            self._operands.append((_VECTOR, len(tables[symbol.name]), 0))
            self._operands.extend((_LABEL, 0, index[label]) for label in tables[symbol.name])
        elif branches and symbol.name in index:
            self._operands.append((_LABEL, 0, index[symbol.name]))
        else:
            number = self._symbols.setdefault(symbol.name, len(self._symbols))
            self._operands.append((_SYMBOL, number, _signed(symbol.offset)))


def _flat(rows: Sequence[tuple[int, ...]]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64).reshape(-1)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
