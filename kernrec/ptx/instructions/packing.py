"""Steps that execute elementwise instructions: one or many at a time, for all live lanes, under a guard or a mask.

Independent instructions of the same kind (the multiply-adds of a register tile) are packed: their operand rows are
gathered into two-dimensional arrays and computed by one NumPy call, because for a few hundred lanes the call costs
more than the arithmetic. Packing never moves an instruction past another that reads or writes the same registers.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from kernrec.ptx.ir.program import Operand
from kernrec.ptx.state.registers import RegisterFiles, RowRef
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array

Step = Callable[[], object]
"""Executes one instruction, or several packed ones, for the lanes that run."""

Compute = Callable[..., object]
"""`compute(*sources, out)` on arrays of any shape."""

PACKED_OPCODES = frozenset({"fma", "mul", "add", "sub", "mov", "max", "min", "ex2"})
_MOST_ELEMENTS = 1 << 14  # of one packed call
_MOST_OPEN_GROUPS = 4


class Elementwise(NamedTuple):
    """An instruction that computes lane by lane: `function(*sources, destination)`."""

    function: Compute
    """The computation."""

    destination: Operand
    """The register to write."""

    type: str
    """PTX type of the result."""

    sources: tuple[Operand, ...]
    """The operands to read."""

    source_types: tuple[str, ...]
    """PTX type of each of them."""


GroupKey = tuple[Compute, str, tuple[str, ...]]
"""Kind of an elementwise instruction: its computation, PTX type of the result, those of the sources."""


class PackedGroup:
    """Elementwise instructions of one kind, waiting to be executed as one."""

    __slots__ = ("destinations", "key", "reads", "sources", "writes")

    def __init__(self, key: GroupKey) -> None:
        """`key`: function, type and source types, which the instructions share."""
        self.key = key
        self.sources: list[tuple[RowRef, ...]] = []
        self.destinations: list[RowRef] = []
        self.reads: set[RowRef] = set()
        self.writes: set[RowRef] = set()

    def add(self, destination: RowRef, sources: tuple[RowRef, ...]) -> None:
        """Adds an instruction."""
        self.sources.append(sources)
        self.destinations.append(destination)
        self.reads.update(sources)
        self.writes.add(destination)

    def conflicts(self, reads: Iterable[RowRef], writes: Iterable[RowRef]) -> bool:
        """Whether an instruction that reads and writes these rows must not be executed before the group."""
        mine, read = self.writes, self.reads
        return any(r in mine for r in reads) or any(w in mine or w in read for w in writes)


class StepList:
    """The steps of a basic block while it is decoded."""

    def __init__(self, registers: RegisterFiles) -> None:
        self._registers = registers
        self.full: list[Step] = []  # for all live lanes
        self.masked: list[Step] = []  # for the lanes of `lanes.partial`
        self._open: list[PackedGroup] = []

    @property
    def last(self) -> Step | None:
        """The step that runs right before the next one, if there is one already."""
        return self.full[-1] if self.full else None

    def append(self, step: Step) -> None:
        """Adds a step that knows itself which lanes run."""
        self.full.append(step)
        self.masked.append(step)

    def add_single(
        self,
        kind: GroupKey,
        destination: RowRef,
        sources: tuple[RowRef, ...],
        guard: Array | None = None,
        inverted: bool = False,
    ) -> None:
        """Adds one elementwise instruction; with a `guard` it runs where that is true (or false, if `inverted`)."""
        registers = self._registers
        function, type_, source_types = kind
        rows = [*map(registers.row, sources, source_types)]
        out = registers.row(destination, type_)
        if guard is None:
            self.full.append(partial(function, *rows, out))
        else:
            self.full.append(partial(_run_guarded, registers, function, rows, out, guard, inverted))
        self.masked.append(partial(_run_masked, registers, function, rows, out, guard, inverted))

    def add_packed(self, key: GroupKey, destination: RowRef, sources: tuple[RowRef, ...]) -> None:
        """Adds an elementwise instruction without a guard to an open group of its kind, or opens one."""
        groups = self._open
        for i in range(len(groups) - 1, -1, -1):
            group = groups[i]
            if group.key == key:
                # A group gathers all sources before it writes, so an instruction may overwrite what another reads.
                if destination in group.writes or any(r in group.writes for r in sources):
                    self._flush(i + 1)
                    break
                group.add(destination, sources)
                if len(group.sources) * self._registers.lanes.shape.lanes >= _MOST_ELEMENTS:
                    self._flush(i + 1)
                return
            if group.conflicts(sources, (destination,)):
                self._flush(i + 1)
                break
        if len(groups) >= _MOST_OPEN_GROUPS:
            self._flush(1)
        group = PackedGroup(key)
        group.add(destination, sources)
        self._open.append(group)

    def flush_conflicting(self, reads: Iterable[RowRef], writes: Iterable[RowRef]) -> None:
        """Adds the steps of the open groups that an instruction with these rows must not overtake."""
        reads, writes = list(reads), list(writes)
        for i in range(len(self._open), 0, -1):
            if self._open[i - 1].conflicts(reads, writes):
                self._flush(i)
                return

    def flush(self) -> None:
        """Adds the steps of all open groups."""
        self._flush(len(self._open))

    def _flush(self, count: int) -> None:
        """Adds the steps of the oldest `count` open groups."""
        flushed, self._open = self._open[:count], self._open[count:]
        registers = self._registers
        for group in flushed:
            function, kind, source_types = group.key
            if len(group.sources) <= 2:
                for destination, refs in zip(group.destinations, group.sources, strict=True):
                    self.add_single(group.key, destination, refs)
                continue
            view = registers.view(WIDTHS[kind], DTYPES[kind])
            sources = [
                _gather(registers.view(WIDTHS[t], DTYPES[t]), [refs[i][1] for refs in group.sources])
                for i, t in enumerate(source_types)
            ]
            rows = [ref[1] for ref in group.destinations]
            self.full.append(_packed(function, sources, view, rows))
            per_lane = view.shape[1] // registers.lanes.shape.lanes
            self.masked.append(
                partial(_run_packed_masked, registers, function, sources, view, np.array(rows), per_lane)
            )


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


def _packed(function: Compute, sources: list[Callable[[], Array]], view: Array, rows: list[int]) -> Step:
    """The step of a packed group: into `rows` of the register file `view`."""
    if _contiguous(rows):
        return partial(_run_packed, function, sources, view[rows[0] : rows[0] + len(rows)])
    out = np.empty((len(rows), view.shape[1]), view.dtype)
    return partial(_run_packed_scattered, function, sources, out, view, np.array(rows))


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


def _write(row: Array, new: Array, mask: Array) -> None:
    if len(row) != len(mask):
        mask = mask.repeat(len(row) // len(mask))
    np.copyto(row, new, where=mask)


def _run_guarded(
    registers: RegisterFiles, function: Compute, sources: list[Array], row: Array, guard: Array, inverted: bool
) -> None:
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
