"""Makes steps for one launch of the plans of basic blocks: callables without arguments that close over their rows."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from kernrec.ptx.instructions.block_plan import PLANNING_ERRORS, BlockPlan, Deferred, Packed, Single, operand_row
from kernrec.ptx.instructions.needed_values import NeededValues
from kernrec.ptx.instructions.registry import Compute, Step, UnsupportedInstructionError
from kernrec.ptx.ir.operand import Address, Immediate, Negated, Operand, Register, Symbol
from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import location
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.registers import RegisterFiles, RowRef
from kernrec.ptx.state.selection import SharedSelection
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array

_ZERO = Immediate(0, "int")


class DecodedBlock:
    """A basic block as the steps of a launch, and how often it ran."""

    __slots__ = (
        "_deferred", "_masked", "_plan", "_registers", "block", "end", "full", "issue", "lane_mask", "lanes",
        "phase_test", "warps"
    )  # fmt: skip

    def __init__(
        self, plan: BlockPlan, registers: RegisterFiles, full: list[Step], deferred: list[Step | None]
    ) -> None:
        """A block with its steps.

        Args:
            plan: how it is executed.
            registers: of the launch.
            full: steps that run the block for all live lanes.
            deferred: of these, those whose plan is `Deferred`, one for each such plan; None: the step before has it.
        """
        self._plan = plan
        self._registers = registers
        self._deferred = deferred
        self._masked: list[Step] | None = None
        self.block = plan.block
        self.end = plan.end
        """Its last instruction, where that decides where control goes."""
        self.full = full
        self.lane_mask = None if plan.mask is None else registers.row(plan.mask, "u32")
        """Where the lanes of a warp run the first instruction together: the mask of these, in each lane."""
        self.issue: Mapping[str, int] = {}
        """Machine instructions that one warp issues, by class."""
        self.phase_test: Any = None
        """Where the first instruction tests a phase of a barrier in memory: its `mbarrier.PhaseTest`."""
        self.warps = 0
        """Warps that executed it, summed over all runs."""
        self.lanes = 0
        """Active lanes of these."""

    @property
    def masked(self) -> list[Step]:
        """Steps that run the block for `lanes.partial`; made when lanes diverge there for the first time."""
        if self._masked is None:
            self._masked = []
            deferred = iter(self._deferred)
            for planned in self._plan.steps:
                if isinstance(planned, Deferred):
                    step = next(deferred)
                    if step is None:
                        continue
                elif isinstance(planned, Single):
                    step = _single_step(self._registers, planned, True)
                else:
                    step = _packed_step(self._registers, planned, True)
                self._masked.append(step)
        return self._masked


class OperandResolver:
    """Finds the rows that hold operands."""

    def __init__(self, registers: RegisterFiles, symbols: dict[str, int], needed: NeededValues | None = None) -> None:
        """`symbols`: addresses of variables and parameters; `needed`: values that are needed, None: all."""
        self.registers = registers
        self.symbols = symbols
        self.needed = needed

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
        ref = operand_row(self.registers.rows, operand, kind, self.symbols)
        self.registers.fill()
        return ref

    def row(self, operand: Operand, kind: str) -> Array:
        """The lanes of an operand as PTX type `kind`."""
        return self.registers.row(self.ref(operand, kind), kind)

    def flag(self, operand: Operand) -> tuple[Array, bool]:
        """The lanes of a predicate, which may be negated, and whether it is."""
        if isinstance(operand, Negated):
            return self.row(operand.register, "pred"), True
        return self.row(operand, "pred"), False


class BlockDecoder(OperandResolver):
    """Makes the steps of one basic block for one launch."""

    def __init__(self, operands: OperandResolver, memory: Memory) -> None:
        super().__init__(operands.registers, operands.symbols, operands.needed)
        self.memory = memory
        self._steps: list[Step] = []
        self._versions: dict[RowRef, int] = {}  # how often the block wrote a row before the instruction
        self._selections: dict[tuple[object, ...], SharedSelection] = {}

    def decode(self, plan: BlockPlan) -> DecodedBlock:
        """The steps of a basic block; to be called once.

        Raises:
            UnsupportedInstructionError: naming the instruction and its line.
        """
        registers = self.registers
        registers.fill()
        deferred: list[Step | None] = []
        for planned in plan.steps:
            if isinstance(planned, Single):
                self._steps.append(_single_step(registers, planned, False))
            elif isinstance(planned, Packed):
                self._steps.append(_packed_step(registers, planned, False))
            else:
                self._versions = planned.versions
                try:
                    step = planned.build(self, planned.instruction)
                except PLANNING_ERRORS as error:
                    raise self._refusal(planned.instruction, error) from error
                deferred.append(step)
                if step is not None:
                    self._steps.append(step)
        if plan.error is not None:
            raise self._refusal(*plan.error) from plan.error[1]
        return DecodedBlock(plan, registers, self._steps, deferred)

    def _refusal(self, ins: Instruction, error: Exception) -> UnsupportedInstructionError:
        return error if isinstance(error, UnsupportedInstructionError) else unsupported(self.function, ins, str(error))

    # For builders of steps

    def computes(self, ins: Instruction) -> bool:
        """Whether the result of an instruction is needed; else it is counted, and need not be computed."""
        return self.needed is None or self.needed.computes(ins)

    def stores(self, ins: Instruction) -> bool:
        """Whether what an instruction writes to memory is needed."""
        return self.needed is None or self.needed.stores(ins)

    @property
    def last_step(self) -> Step | None:
        """The step that runs right before the next one, if the basic block has one already."""
        return self._steps[-1] if self._steps else None

    def predicate(self, ins: Instruction) -> tuple[Array | None, bool]:
        """The guard of an instruction: (row or None, negated)."""
        if ins.predicate is None:
            return None, False
        return self.row(Register(ins.predicate[0]), "pred"), ins.predicate[1]

    def selection(self, ins: Instruction, address: Address, per_warp: int = WARP) -> tuple[SharedSelection, int]:
        """The shared selection of an access through `address`, and the byte offset to add to it.

        Only the first `per_warp` lanes of each warp take part.
        """
        ref, offset = self._base(address)
        guard: RowRef | None = None
        negated = False
        if ins.predicate is not None:
            guard, negated = self.registers.rows.register(ins.predicate[0]), ins.predicate[1]
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

    def address(self, address: Address) -> tuple[Array, int]:
        """The row of an address, and the byte offset to add to it."""
        (width, row), offset = self._base(address)
        return self.registers.files[width][row], offset

    def _base(self, address: Address) -> tuple[RowRef, int]:
        base, offset = address.base, address.offset
        if isinstance(base, Register):
            return self.ref(base, "b64"), offset
        if isinstance(base, Symbol):
            return self.ref(Symbol(base.name), "b64"), offset + base.offset
        return self.ref(_ZERO, "b64"), offset + int(base.value)

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

    def running_numbers(self, ins: Instruction) -> Callable[[], Array]:
        """The same, with the numbers of all lanes where it runs for all."""
        running, everyone = self.running_lanes(ins), self.lanes.shape.numbers

        def numbers() -> Array:
            lanes = running()
            return everyone if lanes is None else lanes

        return numbers

    def warps_with_lanes(self, ins: Instruction) -> Callable[[], Array]:
        """A function that gives the numbers of the warps of which a lane runs an instruction."""
        running = self.running_numbers(ins)
        return lambda: np.unique(running() // WARP)


def unsupported(function: Function, ins: Instruction, detail: str = "") -> UnsupportedInstructionError:
    """The error for an instruction that the emulator does not support; `detail`: what of it."""
    return UnsupportedInstructionError(
        f"{location(function, ins)}: the emulator does not support {ins.name}{': ' + detail if detail else ''}"
    )


# Steps of elementwise instructions: one or many at a time, for all live lanes, under a guard or a mask


def _single_step(registers: RegisterFiles, planned: Single, masked: bool) -> Step:
    """The step of one instruction; `masked`: for the lanes of `lanes.partial` instead of all live lanes."""
    function, kind, source_kinds = planned.key
    row = registers.row
    rows = [*map(row, planned.sources, source_kinds)]
    out = row(planned.destination, kind)
    if planned.guard is None and not masked:
        return partial(function, *rows, out)
    guard = None if planned.guard is None else row(planned.guard, "pred")
    run = _run_masked if masked else _run_guarded
    return partial(run, registers, function, rows, out, guard, planned.inverted)


def _run_guarded(
    registers: RegisterFiles, function: Compute, sources: list[Array], row: Array, guard: Array | None, inverted: bool
) -> None:
    assert guard is not None
    new = registers.scratch(row)
    function(*sources, new)
    _write(row, new, ~guard if inverted else guard)


def _run_masked(
    registers: RegisterFiles, function: Compute, sources: list[Array], row: Array, guard: Array | None, inverted: bool
) -> None:
    mask = registers.lanes.partial
    assert mask is not None
    if guard is not None:
        mask = mask & ~guard if inverted else mask & guard
    new = registers.scratch(row)
    function(*sources, new)
    _write(row, new, mask)


def _write(row: Array, new: Array, mask: Array) -> None:
    if len(row) != len(mask):
        mask = mask.repeat(len(row) // len(mask))
    np.copyto(row, new, where=mask)


def _packed_step(registers: RegisterFiles, planned: Packed, masked: bool) -> Step:
    """The step of several instructions; `masked` as for one."""
    function, kind, source_kinds = planned.key
    view = registers.view(WIDTHS[kind], DTYPES[kind])
    sources = [
        _gather(registers.view(WIDTHS[source_kind], DTYPES[source_kind]), rows)
        for source_kind, rows in zip(source_kinds, planned.sources, strict=True)
    ]
    rows = planned.destinations
    if masked:
        per_lane = view.shape[1] // registers.lanes.shape.lanes
        return partial(_run_packed_masked, registers, function, sources, view, np.array(rows), per_lane)
    if _contiguous(rows):
        return partial(_run_packed, function, sources, view[rows[0] : rows[0] + len(rows)])
    out = np.empty((len(rows), view.shape[1]), view.dtype)
    return partial(_run_packed_scattered, function, sources, out, view, np.array(rows))


def _contiguous(rows: list[int]) -> bool:
    return rows == list(range(rows[0], rows[0] + len(rows)))


def _gather(view: Array, rows: list[int]) -> Callable[[], Array]:
    """A function that gathers rows of a register file: a view where they lie together, else a copy."""
    if all(r == rows[0] for r in rows):
        row = view[rows[0] : rows[0] + 1]
        return lambda: row
    if _contiguous(rows):
        block = view[rows[0] : rows[0] + len(rows)]
        return lambda: block
    index = np.array(rows)
    buffer = np.empty((len(rows), view.shape[1]), view.dtype)
    return partial(np.take, view, index, 0, buffer, "clip")


def _run_packed(function: Compute, sources: list[Callable[[], Array]], out: Array) -> None:
    function(*[source() for source in sources], out)


def _run_packed_scattered(
    function: Compute, sources: list[Callable[[], Array]], out: Array, view: Array, rows: Array
) -> None:
    function(*[source() for source in sources], out)
    view[rows] = out


def _run_packed_masked(
    registers: RegisterFiles,
    function: Compute,
    sources: list[Callable[[], Array]],
    view: Array,
    rows: Array,
    per_lane: int,
) -> None:
    """`per_lane`: elements of the view for each lane."""
    out = view[rows]
    new = np.empty_like(out)
    function(*[source() for source in sources], new)
    mask = registers.lanes.partial
    assert mask is not None
    np.copyto(out, new, where=mask if per_lane == 1 else mask.repeat(per_lane))
    view[rows] = out
