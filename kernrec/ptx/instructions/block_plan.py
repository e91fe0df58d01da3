"""How a basic block is executed, worked out once for all launches of its function: operands as rows of the register
files, elementwise work of many instructions packed together.

Independent instructions of the same kind (the multiply-adds of a register tile) are packed: their operand rows are
gathered into two-dimensional arrays and computed by one NumPy call, because for a few hundred lanes the call costs
more than the arithmetic. Packing never moves an instruction past another that reads or writes the same registers.

A plan knows no lanes, addresses or arrays: `decoder` makes steps of it for a launch.

Between `wgmma` instructions nothing may look at the registers of matrix operations in flight. All accesses of a basic
block to such registers from one `wgmma` instruction to the next are known before it runs, so one step in front of it
checks them.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.instructions.needed_values import NeededValues
from kernrec.ptx.instructions.registry import (
    ELEMENTWISE,
    STEPS,
    Compute,
    Elementwise,
    Step,
    StepBuilder,
    UnsupportedFormError,
)
from kernrec.ptx.ir.operand import Immediate, Operand, Register, Symbol, Vector, registers_of
from kernrec.ptx.ir.program import (
    BasicBlock,
    Function,
    Instruction,
    accumulates,
    ends_block,
    has_result,
    is_warp_synchronous,
    lane_mask,
)
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.registers import RowMap, RowRef
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array, literal_bits

_PACKED_OPCODES = frozenset({"fma", "mul", "add", "sub", "mov", "max", "min", "ex2"})
_MOST_ELEMENTS = 1 << 14  # of one packed call
_MOST_OPEN_GROUPS = 4
_WATCHED = "registers of wgmma"

GroupKey = tuple[Compute, str, tuple[str, ...]]
"""Kind of an elementwise instruction: its computation, PTX type of the result, those of the sources."""


class Single(NamedTuple):
    """One elementwise instruction."""

    key: GroupKey
    destination: RowRef
    sources: tuple[RowRef, ...]
    guard: RowRef | None = None
    """The predicate that says for which lanes it runs; None: for all."""

    inverted: bool = False
    """Whether it runs where the guard is false."""


class Packed(NamedTuple):
    """Elementwise instructions of one kind, executed as one."""

    key: GroupKey
    destinations: list[int]
    sources: list[list[int]]
    """By operand: the row that each reads."""


class Deferred(NamedTuple):
    """An instruction whose step depends on the launch."""

    instruction: Instruction
    build: StepBuilder
    versions: dict[RowRef, int]
    """How often the block wrote each of its rows before; without those that it did not write."""


PLANNING_ERRORS = (UnsupportedFormError, EmulationError, IndexError, KeyError, TypeError, ValueError)
"""Errors that builders raise for instructions that they do not support."""

Planned = Single | Packed | Deferred


class BlockPlan:
    """The plan of a basic block."""

    __slots__ = ("block", "end", "error", "mask", "steps")

    def __init__(self, block: BasicBlock) -> None:
        self.block = block
        self.steps: list[Planned] = []
        self.end: Instruction | None = None
        """Its last instruction, where that decides where control goes."""
        self.mask: RowRef | None = None
        """Where the lanes of a warp run the first instruction together: the row of the mask of these."""
        self.error: tuple[Instruction, Exception] | None = None
        """The first instruction that cannot be planned, and why; what follows it is not in the plan."""

    @property
    def issue(self) -> dict[str, int]:
        """Machine instructions that one warp issues, by class."""
        issue: Counter[str] = Counter()
        for ins in self.block.instructions:
            for name, cost in issue_cost.classify(ins):
                issue[name] += cost
        return dict(issue)


def plan_block(
    rows: RowMap, block: BasicBlock, lanes: int, symbols: Collection[str], needed: NeededValues | None = None
) -> BlockPlan:
    """Plans a basic block.

    Args:
        rows: the rows of the function.
        block: the block.
        lanes: of a batch, about.
        symbols: names that have an address.
        needed: values that are needed; None: all.
    """
    return _Planner(rows, block, _most_packed(lanes), symbols, needed).plan


def cached_plan(
    rows: RowMap, index: int, lanes: int, symbols: Collection[str], needed: NeededValues | None = None
) -> BlockPlan:
    """The plan of a basic block of a function by its index, made once for the function."""
    plans: dict[tuple[int, int, bool], BlockPlan] = rows.function.memo.setdefault(BlockPlan, {})
    key = index, _most_packed(lanes), needed is None
    if key not in plans:
        plans[key] = plan_block(rows, rows.function.blocks[index], lanes, symbols, needed)
    return plans[key]


def _most_packed(lanes: int) -> int:
    """Instructions that are packed together; the same for numbers of lanes that differ little."""
    return _MOST_ELEMENTS >> (lanes - 1).bit_length()


def operand_row(rows: RowMap, operand: Operand, kind: str, symbols: Collection[str]) -> RowRef:
    """The row that holds an operand of PTX type `kind`; `symbols`: names that have an address.

    Raises:
        UnsupportedFormError: the operand is in no row.
    """
    if isinstance(operand, Register):
        try:
            return rows.register(operand.name)
        except KeyError:
            raise UnsupportedFormError(f"register {operand.name}") from None
    if isinstance(operand, Immediate):
        return rows.constant(WIDTHS[kind], literal_bits(operand, kind))
    if isinstance(operand, Symbol):
        if operand.name not in symbols:
            raise UnsupportedFormError(f"symbol {operand.name!r}")
        return rows.address(WIDTHS[kind], operand)
    raise UnsupportedFormError(f"operand {operand}")


class _Group:
    """Elementwise instructions of one kind, waiting to be executed as one."""

    __slots__ = ("destinations", "key", "reads", "sources", "writes")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.sources: list[tuple[RowRef, ...]] = []
        self.destinations: list[RowRef] = []
        self.reads: set[RowRef] = set()
        self.writes: set[RowRef] = set()

    def add(self, destination: RowRef, sources: tuple[RowRef, ...]) -> None:
        self.sources.append(sources)
        self.destinations.append(destination)
        self.reads.update(sources)
        self.writes.add(destination)

    def conflicts(self, reads: Iterable[RowRef], writes: Iterable[RowRef]) -> bool:
        """Whether an instruction that reads and writes these rows must not be executed before the group."""
        return not (self.writes.isdisjoint(reads) and self.writes.isdisjoint(writes) and self.reads.isdisjoint(writes))

    def steps(self) -> list[Planned]:
        """The group as steps."""
        if len(self.sources) <= 2:
            return [Single(self.key, d, refs) for d, refs in zip(self.destinations, self.sources, strict=True)]
        operands = range(len(self.key[2]))
        sources = [[refs[i][1] for refs in self.sources] for i in operands]
        return [Packed(self.key, [ref[1] for ref in self.destinations], sources)]


class _Planner:
    """Plans one basic block."""

    def __init__(
        self, rows: RowMap, block: BasicBlock, most: int, symbols: Collection[str], needed: NeededValues | None
    ) -> None:
        """`most`: instructions that are packed together; `symbols`: names that have an address."""
        self.plan = BlockPlan(block)
        self._rows = rows
        self._most = most
        self._symbols = symbols
        self._needed = needed
        self._versions: dict[RowRef, int] = {}  # how often the block wrote a row so far
        self._open: list[_Group] = []
        watched = _watched_registers(rows.function)
        for i, ins in enumerate(block.instructions):
            if watched and (i == 0 or block.instructions[i - 1].opcode == "wgmma"):
                self._watch(_accesses(block.instructions[i:], watched))
            if ends_block(ins):
                self.plan.end = ins
                continue
            try:
                self._instruction(ins)
            except PLANNING_ERRORS as error:
                self.plan.error = ins, error
                break
        self._flush(len(self._open))
        first = block.instructions[0]
        if is_warp_synchronous(first) and self.plan.error is None:
            try:
                self.plan.mask = operand_row(rows, lane_mask(first), "u32", symbols)
            except UnsupportedFormError as error:
                self.plan.error = first, error

    def _watch(self, first: dict[str, Instruction]) -> None:
        """Plans the check of the registers that instructions access while matrix operations may be in flight."""
        if first:
            self.plan.steps.append(Deferred(next(iter(first.values())), partial(_watch_step, first), {}))

    def _instruction(self, ins: Instruction) -> None:
        build = ELEMENTWISE.get(ins.opcode)
        if build is not None:
            built = build(ins)
            for work in [built] if isinstance(built, Elementwise) else built:
                self._elementwise(ins, work)
            return
        build_step = STEPS.get(".".join((ins.opcode, *ins.modifiers[:1]))) or STEPS.get(ins.opcode)
        if build_step is None:
            raise UnsupportedFormError
        rows = self._rows
        touched = {rows.register(name) for operand in ins.operands for name in registers_of(operand) if name != "_"}
        if ins.predicate is not None:
            touched.add(rows.register(ins.predicate[0]))
        self._flush_conflicting(touched, touched)
        before = {ref: self._versions[ref] for ref in touched if ref in self._versions}
        self.plan.steps.append(Deferred(ins, build_step, before))
        if has_result(ins):
            for name in registers_of(ins.operands[0]):
                if name != "_":
                    self._write(rows.register(name))

    def _write(self, row: RowRef) -> None:
        self._versions[row] = self._versions.get(row, 0) + 1

    def _elementwise(self, ins: Instruction, work: Elementwise) -> None:
        function, result, kind, operands, kinds = work
        destination = operand_row(self._rows, result, kind, self._symbols)
        sources = tuple(
            [
                operand_row(self._rows, operand, source_kind, self._symbols)
                for operand, source_kind in zip(operands, kinds, strict=False)
            ]
        )
        if self._needed is not None and self._needed.leaves_out(ins):
            return  # it was looked at to refuse what is not supported
        if WIDTHS[kind] < destination[0]:
            function, kind = extended(function, kind), f"u{destination[0]}"
        for row, named in zip((destination, *sources), (kind, *kinds), strict=False):
            if WIDTHS.get(named, row[0]) > row[0] or (named == "pred") != (row[0] == 1):
                raise UnsupportedFormError(f"a .{named} operand does not fit a {row[0]}-bit register")
        key = (function, kind, kinds)
        _try(key, len(sources))
        if ins.predicate is not None:
            guard = self._rows.register(ins.predicate[0])
            self._flush_conflicting((*sources, guard), (destination,))
            self.plan.steps.append(Single(key, destination, sources, guard, ins.predicate[1]))
        elif ins.opcode in _PACKED_OPCODES and _fits(key, destination, sources):
            self._pack(key, destination, sources)
        else:
            self._flush_conflicting(sources, (destination,))
            self.plan.steps.append(Single(key, destination, sources))
        self._write(destination)

    def _pack(self, key: GroupKey, destination: RowRef, sources: tuple[RowRef, ...]) -> None:
        """Adds an elementwise instruction without a guard to an open group of its kind, or opens one."""
        groups = self._open
        for i in range(len(groups) - 1, -1, -1):
            group = groups[i]
            if group.key == key:
                # A group gathers all sources before it writes, so an instruction may overwrite what another reads.
                if destination in group.writes or not group.writes.isdisjoint(sources):
                    self._flush(i + 1)
                    break
                group.add(destination, sources)
                if len(group.sources) >= self._most:
                    self._flush(i + 1)
                return
            if group.conflicts(sources, (destination,)):
                self._flush(i + 1)
                break
        if len(groups) >= _MOST_OPEN_GROUPS:
            self._flush(1)
        group = _Group(key)
        group.add(destination, sources)
        self._open.append(group)

    def _flush_conflicting(self, reads: Collection[RowRef], writes: Collection[RowRef]) -> None:
        """Plans the open groups that an instruction with these rows must not overtake."""
        for i in range(len(self._open), 0, -1):
            if self._open[i - 1].conflicts(reads, writes):
                self._flush(i)
                return

    def _flush(self, count: int) -> None:
        """Plans the oldest `count` open groups."""
        for group in self._open[:count]:
            self.plan.steps += group.steps()
        del self._open[:count]


def _fits(key: GroupKey, destination: RowRef, sources: tuple[RowRef, ...]) -> bool:
    """Whether every operand has the width of its type."""
    _, kind, kinds = key
    if WIDTHS[kind] != destination[0]:
        return False
    return all(WIDTHS[source_kind] == ref[0] for source_kind, ref in zip(kinds, sources, strict=True))


@lru_cache(4096)
def _try(key: GroupKey, sources: int) -> None:
    """Compute an instruction of a kind on eight lanes; raise `UnsupportedFormError` if NumPy refuses its operands.

    NumPy has no bitwise operations of floating-point numbers, for instance, and builders do not look.
    """
    function, kind, kinds = key
    if wrong := next((name for name in (kind, *kinds) if name not in DTYPES), None):
        raise UnsupportedFormError(f".{wrong} is not a type that it computes with")
    rows = [np.ones(8 * max(WIDTHS[name] // (8 * DTYPES[name].itemsize), 1), DTYPES[name]) for name in (*kinds, kind)]
    try:
        with np.errstate(all="ignore"):
            function(*rows[: min(sources, len(kinds))], rows[-1])
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        types = ", ".join(f".{name}" for name in dict.fromkeys((kind, *kinds[:sources])))
        raise UnsupportedFormError(f"{sources} sources and the types {types}") from None


@lru_cache(None)
def extended(compute: Compute, kind: str) -> Compute:
    """A computation of type `kind` into a wider register: the result is extended by its sign."""
    dtype = DTYPES[kind]
    bits = np.dtype(f"{'i' if dtype.kind == 'i' else 'u'}{dtype.itemsize}")

    def run(*rows: Array) -> None:
        *sources, out = rows
        narrow = np.empty(out.shape, dtype)
        compute(*sources, narrow)
        np.copyto(out, narrow.view(bits), casting="unsafe")

    return run


def _watched_registers(function: Function) -> frozenset[str]:
    """The registers that `wgmma.mma_async` computes with, of the whole function; computed once for it."""
    watched: frozenset[str] | None = function.memo.get(_WATCHED)
    if watched is None:
        products = (ins for ins in function.instructions if accumulates(ins))
        # A descriptor in place of A is read at once; only what is in registers is used until the operation ends.
        operands = (operand for ins in products for operand in ins.operands[:2] if isinstance(operand, Vector))
        watched = frozenset(name for operand in operands for name in registers_of(operand))
        function.memo[_WATCHED] = watched
    return watched


def _accesses(instructions: Iterable[Instruction], watched: frozenset[str]) -> dict[str, Instruction]:
    """By watched register: the first instruction that accesses it, up to the next `wgmma` instruction."""
    first: dict[str, Instruction] = {}
    for ins in instructions:
        if ins.opcode == "wgmma":
            break
        for operand in ins.operands:
            for name in registers_of(operand):
                if name in watched:
                    first.setdefault(name, ins)
    return first


def _watch_step(first: dict[str, Instruction], decoder: Any, _: Instruction) -> Step:
    """The step that checks these accesses; `decoder`: a `BlockDecoder`, whose module imports this one."""
    rows = decoder.registers.rows
    by_row = {rows.register(name)[1]: ins for name, ins in first.items()}
    return partial(decoder.memory.pending.warpgroups.touch, decoder.function, by_row)
