"""Basic blocks into closures: operands resolved to rows, elementwise work of many instructions packed together.

An instruction becomes one or more steps, callables without arguments that close over the rows they work on. Most
instructions are *elementwise*: a NumPy function of rows into a row (see `packing`).

The semantics of instructions are in other modules, which register here with `@elementwise(opcodes...)` or
`@steps(opcodes...)`. A module that adds instructions needs no change in this one.
"""

from collections.abc import Callable, Iterator

import numpy as np

from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.instructions.packing import PACKED_OPCODES, Elementwise, Step, StepList, extended
from kernrec.ptx.ir.program import (
    Address,
    BasicBlock,
    Function,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    ends_block,
    is_warp_synchronous,
    lane_mask,
    registers_of,
)
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.registers import RegisterFiles, RowRef
from kernrec.ptx.state.selection import SharedSelection
from kernrec.ptx.state.types import WIDTHS, Array, literal_bits

ElementwiseBuilder = Callable[[Instruction], "Elementwise | list[Elementwise]"]
StepBuilder = Callable[["BlockDecoder", Instruction], "Step | None"]
"""Makes the step of an instruction; None when the step before took it in (`BlockDecoder.last_step`)."""
_ELEMENTWISE: dict[str, ElementwiseBuilder] = {}
_STEPS: dict[str, StepBuilder] = {}


class UnsupportedInstructionError(EmulationError):
    """The emulator does not support this instruction, or this form of it."""


class UnsupportedFormError(Exception):
    """Raised by a builder for a form of an instruction that it does not support; the text says what of it."""


def elementwise(*opcodes: str) -> Callable[[ElementwiseBuilder], ElementwiseBuilder]:
    """Registers a builder for opcodes that compute lane by lane."""

    def register(builder: ElementwiseBuilder) -> ElementwiseBuilder:
        _ELEMENTWISE.update(dict.fromkeys(opcodes, builder))
        return builder

    return register


def steps(*opcodes: str) -> Callable[[StepBuilder], StepBuilder]:
    """Registers a builder for opcodes that look across lanes or at memory."""

    def register(builder: StepBuilder) -> StepBuilder:
        _STEPS.update(dict.fromkeys(opcodes, builder))
        return builder

    return register


def known_opcodes() -> frozenset[str]:
    """Opcodes with registered semantics; control flow is executed by the emulator itself."""
    return frozenset(_ELEMENTWISE) | frozenset(_STEPS)


def copy_row(a: Array, out: Array) -> None:
    """`out = a`."""
    np.copyto(out, a)


class DecodedBlock:
    """A decoded basic block, and how often it ran."""

    __slots__ = ("block", "end", "full", "issue", "lane_mask", "lanes", "masked", "warps")

    def __init__(
        self, block: BasicBlock, full: list[Step], masked: list[Step], end: Instruction | None, lane_mask: Array | None
    ) -> None:
        """A block with its steps.

        Args:
            block: the instructions.
            full: steps that run the block for all live lanes.
            masked: steps that run it for `lanes.partial`.
            end: its last instruction, where that decides where control goes.
            lane_mask: where the lanes of a warp run the first instruction together: the mask of these, in each lane.
        """
        self.block = block
        self.full = full
        self.masked = masked
        self.end = end
        self.lane_mask = lane_mask
        self.issue: dict[str, int] = {}  # machine instructions that one warp issues, by class
        for ins in block.instructions:
            for name, cost in issue_cost.classify(ins):
                self.issue[name] = self.issue.get(name, 0) + cost
        self.warps = 0  # warps that executed it, and their active lanes, summed over all runs
        self.lanes = 0


class OperandResolver:
    """Finds the rows that hold operands."""

    def __init__(self, registers: RegisterFiles, symbols: dict[str, int]) -> None:
        """`symbols`: addresses of variables and parameters."""
        self.registers = registers
        self.symbols = symbols

    @property
    def function(self) -> Function:
        """The function that is executed."""
        return self.registers.function

    @property
    def lanes(self) -> Lanes:
        """The lanes of the batch."""
        return self.registers.lanes

    def ref(self, operand: Operand, kind: str) -> RowRef:
        """The row that holds an operand of PTX type `kind`."""
        if isinstance(operand, Register):
            try:
                return self.registers.register(operand.name)
            except KeyError:
                raise UnsupportedFormError(f"register {operand.name}") from None
        if isinstance(operand, Immediate):
            return self.registers.constant(WIDTHS[kind], literal_bits(operand, kind))
        if isinstance(operand, Symbol):
            if operand.name not in self.symbols:
                raise UnsupportedFormError(f"symbol {operand.name!r}")
            value = self.symbols[operand.name] + operand.offset
            return self.registers.constant(WIDTHS[kind], value & (1 << WIDTHS[kind]) - 1)
        raise UnsupportedFormError(f"operand {operand}")

    def row(self, operand: Operand, kind: str) -> Array:
        """The lanes of an operand as PTX type `kind`."""
        return self.registers.row(self.ref(operand, kind), kind)


class BlockDecoder(OperandResolver):
    """Decodes one basic block for one batch of lanes."""

    def __init__(self, operands: OperandResolver, memory: Memory) -> None:
        super().__init__(operands.registers, operands.symbols)
        self.memory = memory
        self._steps = StepList(operands.registers)
        self._versions: dict[RowRef, int] = {}  # how often the block wrote a row so far
        self._selections: dict[tuple[object, ...], SharedSelection] = {}

    def decode(self, block: BasicBlock) -> DecodedBlock:
        """The closures of a basic block; to be called once.

        Raises:
            UnsupportedInstructionError: naming the instruction and its line.
        """
        end: Instruction | None = None
        for ins in block.instructions:
            if ends_block(ins):
                end = ins
                continue
            try:
                self._instruction(ins)
            except UnsupportedFormError as error:
                raise unsupported(self.function, ins, str(error)) from None
            except (EmulationError, IndexError, ValueError, TypeError, KeyError) as error:
                if isinstance(error, UnsupportedInstructionError):
                    raise
                raise unsupported(self.function, ins, f"{error}") from error
        self._steps.flush()
        first = block.instructions[0]
        mask = self.row(lane_mask(first), "u32") if is_warp_synchronous(first) else None
        return DecodedBlock(block, self._steps.full, self._steps.masked, end, mask)

    # For builders of steps

    @property
    def last_step(self) -> Step | None:
        """The step that runs right before the next one, if the basic block has one already."""
        return self._steps.last

    def predicate(self, ins: Instruction) -> tuple[Array | None, bool]:
        """The guard of an instruction: (row or None, negated)."""
        if ins.predicate is None:
            return None, False
        return self.row(Register(ins.predicate[0]), "pred"), ins.predicate[1]

    def selection(self, ins: Instruction, address: Address, per_warp: int = WARP) -> tuple[SharedSelection, int]:
        """The shared selection of an access through `address`, and the byte offset to add to it.

        Only the first `per_warp` lanes of each warp take part.
        """
        offset = address.offset
        base = address.base
        if isinstance(base, Register):
            ref = self.ref(base, "b64")
        elif isinstance(base, Symbol):
            ref, offset = self.ref(Symbol(base.name), "b64"), offset + base.offset
        else:
            ref, offset = self.registers.constant(64, 0), offset + int(base.value)
        guard: RowRef | None = None
        negated = False
        if ins.predicate is not None:
            guard, negated = self.registers.register(ins.predicate[0]), ins.predicate[1]
        version = self._versions.get
        key = (ref, version(ref, 0), guard, version(guard, 0) if guard else 0, negated, per_warp)
        shared = self._selections.get(key)
        if shared is None:
            files = self.registers.files
            row = files[ref[0]][ref[1]]
            predicate = files[1][guard[1]] if guard else None
            shared = self._selections[key] = SharedSelection(
                self.lanes, self.memory.select, row, predicate, negated, per_warp
            )
        return shared, offset

    def running_lanes(self, ins: Instruction) -> Callable[[], Array | None]:
        """A function that gives the numbers of the lanes that an instruction runs for, or None for all of the batch."""
        lanes = self.lanes
        guard, negated = self.predicate(ins)
        if guard is None:
            return lanes.active_numbers

        def numbers() -> Array | None:
            running = lanes.active_numbers()
            flags = ~guard if negated else guard
            return np.flatnonzero(flags) if running is None else running[flags[running]]

        return numbers

    # Instructions

    def _instruction(self, ins: Instruction) -> None:
        build = _ELEMENTWISE.get(ins.opcode)
        if build is not None:
            built = build(ins)
            for work in [built] if isinstance(built, Elementwise) else built:
                self._elementwise(ins, work)
            return
        build_step = _STEPS.get(ins.opcode)
        if build_step is None:
            raise UnsupportedFormError
        rows = set(self._rows_of(ins))
        self._steps.flush_conflicting(rows, rows)
        step = build_step(self, ins)
        if step is not None:
            self._steps.append(step)
        for ref in self._written(ins):
            self._versions[ref] = self._versions.get(ref, 0) + 1

    def _elementwise(self, ins: Instruction, work: Elementwise) -> None:
        function, result, kind, operands, kinds = work
        destination = self.ref(result, kind)
        sources = tuple(map(self.ref, operands, kinds))
        if WIDTHS[kind] < destination[0]:
            function, kind = extended(function, kind), f"u{destination[0]}"
        key = (function, kind, kinds)
        fits = ins.predicate is None and ins.opcode in PACKED_OPCODES and WIDTHS[kind] == destination[0]
        if fits and all(WIDTHS[t] == r[0] for t, r in zip(kinds, sources, strict=True)):
            self._steps.add_packed(key, destination, sources)
        elif ins.predicate is None:
            self._steps.flush_conflicting(sources, (destination,))
            self._steps.add_single(key, destination, sources)
        else:
            guard, inverted = self.predicate(ins)
            reads = (*sources, self.registers.register(ins.predicate[0]))
            self._steps.flush_conflicting(reads, (destination,))
            self._steps.add_single(key, destination, sources, guard, inverted)
        self._versions[destination] = self._versions.get(destination, 0) + 1

    def _rows_of(self, ins: Instruction) -> Iterator[RowRef]:
        """The rows that an instruction reads or writes."""
        if ins.predicate is not None:
            yield self.registers.register(ins.predicate[0])
        for operand in ins.operands:
            yield from self._registers_of(operand)

    def _registers_of(self, operand: Operand) -> Iterator[RowRef]:
        return (self.registers.register(name) for name in registers_of(operand) if name != "_")

    def _written(self, ins: Instruction) -> Iterator[RowRef]:
        if (
            ins.operands
            and ins.opcode not in ("st", "red", "cp", "stmatrix", "sust", "sured")
            and ins.modifiers[:1] != ("store",)
        ):
            yield from self._registers_of(ins.operands[0])


def unsupported(function: Function, ins: Instruction, detail: str = "") -> UnsupportedInstructionError:
    """The error for an instruction that the emulator does not support; `detail`: what of it."""
    return UnsupportedInstructionError(
        f"{location(function, ins)}: the emulator does not support {ins.name}{': ' + detail if detail else ''}"
    )
