"""Basic blocks into closures: operands resolved to rows, elementwise work of many instructions packed together.

An instruction becomes one or more steps, callables without arguments that close over the rows they work on. Most
instructions are *elementwise*: a NumPy function of rows into a row. Runs of independent elementwise instructions of
the same kind (the multiply-adds of a register tile) are executed as one call on two-dimensional arrays. Packing never
moves an instruction past another that reads or writes the same registers.

Semantics live in other files, which register here with `@elementwise(opcodes...)` or `@steps(opcodes...)`. A file that
adds instructions needs no change in this one.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.ir.program import (
    Address,
    Block,
    Function,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
    ends,
)
from kernrec.ptx.state.memory import Memory, Slot
from kernrec.ptx.state.packing import (
    OPEN_GROUPS,
    PACK_ELEMENTS,
    PACKED,
    Compute,
    Group,
    Ref,
    Step,
    extended,
    packed,
    packed_masked,
    rows_of,
    target_of,
    under_guard,
    under_mask,
)
from kernrec.ptx.state.registers import DTYPES, WIDTHS, Array, EmulationError, Lanes, at


class Elementwise(NamedTuple):
    """`function(*sources, destination)`, lane by lane; types are PTX types."""

    function: Compute
    destination: Operand
    type: str
    sources: tuple[Operand, ...]
    source_types: tuple[str, ...]


ElementwiseBuilder = Callable[[Instruction], "Elementwise | list[Elementwise]"]
StepBuilder = Callable[["Decoder", Instruction], "Step | None"]
"""Makes the step of an instruction; None when it was taken into the step before (`Decoder.last`)."""
_ELEMENTWISE: dict[str, ElementwiseBuilder] = {}
_STEPS: dict[str, StepBuilder] = {}


class UnsupportedInstructionError(EmulationError):
    """The emulator does not know this instruction (or this variant of it)."""


class UnknownVariantError(Exception):
    """Raised by a builder that does not know the variant it was given; the text says what."""


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
    """Opcodes with registered semantics; control flow is the emulator's own."""
    return frozenset(_ELEMENTWISE) | frozenset(_STEPS)


def copy_row(a: Array, out: Array) -> None:
    """`out = a`."""
    np.copyto(out, a)


class Code:
    """A decoded basic block.

    `full` runs it for all live lanes, `masked` for `lanes.partial`. `end` is its last instruction when that decides
    where control goes. `classes` is what one warp issues, by class; `length` the number of instructions.
    """

    __slots__ = ("classes", "end", "full", "gather", "issued", "lanes", "length", "line", "masked", "warps")

    def __init__(self, full: list[Step], masked: list[Step], block: Block, end: Instruction | None) -> None:
        self.full = full
        self.masked = masked
        self.end = end
        self.length = len(block.instructions)
        self.line = block.instructions[0].line
        self.classes: dict[str, int] = {}
        for ins in block.instructions:
            for name, cost in issue_cost.classify(ins):
                self.classes[name] = self.classes.get(name, 0) + cost
        self.issued = sum(self.classes.values())
        self.warps = 0  # warps that executed it, and their active lanes, summed over all passes
        self.lanes = 0
        self.gather: Array | None = None


class Decoder:
    """Decodes the basic blocks of one function for one batch of lanes."""

    def __init__(self, function: Function, lanes: Lanes, memory: Memory, symbols: dict[str, int]) -> None:
        self.function = function
        self.lanes = lanes
        self.memory = memory
        self.symbols = symbols
        self.versions: dict[Ref, int] = {}
        self.slots: dict[tuple[object, ...], Slot] = {}
        self.extra: dict[str, Any] = {}  # state that files of semantics keep for themselves
        self._full: list[Step] = []
        self._masked: list[Step] = []
        self._groups: list[Group] = []

    # Operands

    def ref(self, operand: Operand, kind: str) -> Ref:
        """The row that holds an operand of type `kind`."""
        if isinstance(operand, Register):
            try:
                return self.lanes.register(operand.name)
            except KeyError:
                raise UnknownVariantError(f"register {operand.name}") from None
        if isinstance(operand, Immediate):
            return self.lanes.constant(WIDTHS[kind], self.lanes.literal(operand, kind))
        if isinstance(operand, Symbol):
            if operand.name not in self.symbols:
                raise UnknownVariantError(f"symbol {operand.name!r}")
            value = self.symbols[operand.name] + operand.offset
            return self.lanes.constant(WIDTHS[kind], value & (1 << WIDTHS[kind]) - 1)
        raise UnknownVariantError(f"operand {operand}")

    def row(self, operand: Operand, kind: str) -> Array:
        """The lanes of an operand as type `kind`."""
        return self.lanes.row(self.ref(operand, kind), kind)

    def predicate(self, ins: Instruction) -> tuple[Array | None, bool]:
        """The guard of an instruction: (row or None, negated)."""
        if ins.predicate is None:
            return None, False
        return self.row(Register(ins.predicate[0]), "pred"), ins.predicate[1]

    def slot(self, ins: Instruction, address: Address, per_warp: int = 32) -> tuple[Slot, int]:
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
            ref, offset = self.lanes.constant(64, 0), offset + int(base.value)
        guard: Ref | None = None
        negated = False
        if ins.predicate is not None:
            guard, negated = self.lanes.register(ins.predicate[0]), ins.predicate[1]
        version = self.versions.get
        key = (ref, version(ref, 0), guard, version(guard, 0) if guard else 0, negated, per_warp)
        found = self.slots.get(key)
        if found is None:
            row = self.lanes.files[ref[0]][ref[1]]
            on = self.lanes.files[1][guard[1]] if guard else None
            found = self.slots[key] = Slot(self.memory, row, on, negated, per_warp)
        return found, offset

    def guarded(self, ins: Instruction) -> Callable[[], Array | None]:
        """A function that says which lanes an instruction runs for: their numbers, or None for all of the batch."""
        lanes = self.lanes
        on, negated = self.predicate(ins)
        if on is None:
            return lanes.active_lanes

        def chosen() -> Array | None:
            running = lanes.active_lanes()
            flags = ~on if negated else on
            return np.flatnonzero(flags) if running is None else running[flags[running]]

        return chosen

    # Basic blocks

    def decode(self, block: Block) -> Code:
        """The closures of a basic block.

        Raises:
            UnsupportedInstructionError: naming the instruction and its line.
        """
        self._full, self._masked, self._groups, self.slots, self.versions = [], [], [], {}, {}
        end: Instruction | None = None
        for ins in block.instructions:
            if ends(ins):
                end = ins
                continue
            try:
                self._instruction(ins)
            except UnknownVariantError as error:
                raise unsupported(self.function, ins, str(error)) from None
            except (EmulationError, IndexError, ValueError, TypeError, KeyError) as error:
                if isinstance(error, UnsupportedInstructionError):
                    raise
                raise unsupported(self.function, ins, f"{error}") from error
        self._flush(len(self._groups))
        return Code(self._full, self._masked, block, end)

    def _instruction(self, ins: Instruction) -> None:
        build = _ELEMENTWISE.get(ins.opcode)
        if build is not None:
            made = build(ins)
            for one in [made] if isinstance(made, Elementwise) else made:
                self._elementwise(ins, one)
            return
        step_builder = _STEPS.get(ins.opcode)
        if step_builder is None:
            raise UnknownVariantError("")
        touched = set(self._touched(ins))
        self._settle(touched, touched)
        step = step_builder(self, ins)
        if step is not None:
            self._full.append(step)
            self._masked.append(step)
        for ref in self._written(ins):
            self.versions[ref] = self.versions.get(ref, 0) + 1

    @property
    def last(self) -> Step | None:
        """The step that runs right before the next one, if the basic block has one already."""
        return self._full[-1] if self._full else None

    def _touched(self, ins: Instruction) -> Iterator[Ref]:
        if ins.predicate is not None:
            yield self.lanes.register(ins.predicate[0])
        for operand in ins.operands:
            yield from self._registers(operand)

    def _registers(self, operand: Operand) -> Iterator[Ref]:
        if isinstance(operand, Register):
            if operand.name != "_":
                yield self.lanes.register(operand.name)
        elif isinstance(operand, Address):
            yield from self._registers(operand.base)
        elif isinstance(operand, Vector):
            for item in operand.items:
                yield from self._registers(item)
        elif isinstance(operand, Pair):
            yield from self._registers(operand.first)
            yield from self._registers(operand.second)
        elif isinstance(operand, Negated):
            yield from self._registers(operand.register)

    def _written(self, ins: Instruction) -> Iterator[Ref]:
        if ins.operands and ins.opcode not in ("st", "red", "cp", "stmatrix"):
            yield from self._registers(ins.operands[0])

    def _elementwise(self, ins: Instruction, one: Elementwise) -> None:
        lanes = self.lanes
        target = self.ref(one.destination, one.type)
        refs = tuple([self.ref(s, t) for s, t in zip(one.sources, one.source_types, strict=True)])
        writes = (target,)
        if WIDTHS[one.type] < target[0]:
            one = one._replace(function=extended(one.function, one.type), type=f"u{target[0]}")
        if (
            ins.predicate is None
            and ins.opcode in PACKED
            and WIDTHS[one.type] == target[0]
            and all(WIDTHS[t] == r[0] for t, r in zip(one.source_types, refs, strict=True))
            and self._join(one, target, refs)
        ):
            self.versions[target] = self.versions.get(target, 0) + 1
            return
        guard: Array | None = None
        reads: tuple[Ref, ...] = refs
        if ins.predicate is not None:
            guard = self.row(Register(ins.predicate[0]), "pred")
            reads = (*refs, lanes.register(ins.predicate[0]))
        self._settle(reads, writes)
        self._single(one, target, refs, guard, ins.predicate is not None and ins.predicate[1])
        self.versions[target] = self.versions.get(target, 0) + 1

    def _single(self, one: Elementwise, target: Ref, refs: tuple[Ref, ...], guard: Array | None, off: bool) -> None:
        lanes = self.lanes
        sources = [lanes.row(r, t) for r, t in zip(refs, one.source_types, strict=True)]
        row = lanes.row(target, one.type)
        if guard is None:
            self._full.append(partial(one.function, *sources, row))
        else:
            self._full.append(partial(under_guard, lanes, one.function, sources, row, guard, off))
        self._masked.append(partial(under_mask, lanes, one.function, sources, row, guard, off))

    def _settle(self, reads: Iterable[Ref], writes: Iterable[Ref]) -> None:
        """Executes the open groups that an instruction must not overtake."""
        reads, writes = list(reads), list(writes)
        for i in range(len(self._groups), 0, -1):
            if self._groups[i - 1].conflicts(reads, writes):
                self._flush(i)
                return

    def _join(self, one: Elementwise, target: Ref, refs: tuple[Ref, ...]) -> bool:
        key = (one.function, one.type, one.source_types)
        groups = self._groups
        for i in range(len(groups) - 1, -1, -1):
            group = groups[i]
            if group.key == key:
                # Members gather before any is written, so a member may overwrite what another reads.
                if target in group.writes or any(r in group.writes for r in refs):
                    self._flush(i + 1)
                    break
                group.items.append(refs)
                group.destinations.append(target)
                group.reads.update(refs)
                group.writes.add(target)
                if len(group.items) * self.lanes.count >= PACK_ELEMENTS:
                    self._flush(i + 1)
                return True
            if group.conflicts(refs, (target,)):
                self._flush(i + 1)
                break
        if len(groups) >= OPEN_GROUPS:
            self._flush(1)
        group = Group(key)
        group.items.append(refs)
        group.destinations.append(target)
        group.reads.update(refs)
        group.writes.add(target)
        self._groups.append(group)
        return True

    def _flush(self, count: int) -> None:
        """Emits the oldest `count` open groups."""
        flushed, self._groups = self._groups[:count], self._groups[count:]
        lanes = self.lanes
        for group in flushed:
            function, kind, source_types = group.key
            if len(group.items) <= 2:
                for target, refs in zip(group.destinations, group.items, strict=True):
                    one = Elementwise(function, Register(""), kind, (), source_types)
                    self._single(one, target, refs, None, False)
                continue
            view = lanes.view(WIDTHS[kind], DTYPES[kind])
            sources = [
                rows_of(lanes.view(WIDTHS[t], DTYPES[t]), [item[i][1] for item in group.items])
                for i, t in enumerate(source_types)
            ]
            target_rows = [ref[1] for ref in group.destinations]
            self._full.append(partial(packed, function, sources, target_of(view, target_rows)))
            wide = view.shape[1] // lanes.count
            self._masked.append(partial(packed_masked, lanes, function, sources, view, np.array(target_rows), wide))


def unsupported(function: Function, ins: Instruction, detail: str = "") -> UnsupportedInstructionError:
    """The error for an instruction the emulator does not know."""
    return UnsupportedInstructionError(
        f"{at(function, ins)}: the emulator does not know {ins.name}{': ' + detail if detail else ''}"
    )
