"""Steps that execute elementwise instructions: one or many at a time, for all live lanes, under a guard or a mask."""

from collections.abc import Callable
from functools import partial

import numpy as np

from kernrec.ptx.instructions.block_plan import Packed, Single
from kernrec.ptx.instructions.registry import Compute, Step
from kernrec.ptx.state.registers import RegisterFiles
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array


def single_step(registers: RegisterFiles, planned: Single, masked: bool) -> Step:
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


def packed_step(registers: RegisterFiles, planned: Packed, masked: bool) -> Step:
    """The step of several instructions; `masked` as for one."""
    function, kind, source_kinds = planned.key
    view = registers.view(WIDTHS[kind], DTYPES[kind])
    sources = [
        _gather(registers.view(WIDTHS[of], DTYPES[of]), rows)
        for of, rows in zip(source_kinds, planned.sources, strict=True)
    ]
    if not masked:
        return _packed(function, sources, view, planned.destinations)
    per_lane = view.shape[1] // registers.lanes.shape.lanes
    return partial(_run_packed_masked, registers, function, sources, view, np.array(planned.destinations), per_lane)


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
