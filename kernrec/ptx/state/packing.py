"""Calls that execute elementwise instructions: one or many at a time, for all live lanes, under a guard or a mask.

Independent instructions of the same kind are packed: their operand rows are gathered into two-dimensional arrays and
computed by one NumPy call, because for a few hundred lanes the call costs more than the arithmetic.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from kernrec.ptx.state.registers import DTYPES, Array, Lanes

Step = Callable[[], object]
Ref = tuple[int, int]
"""A row of the register files: (width in bits, row)."""
Compute = Callable[..., object]
"""`compute(*sources, out)` on arrays of any shape."""


class Group:
    """Elementwise instructions of one kind, waiting to be executed as one."""

    __slots__ = ("destinations", "items", "key", "reads", "writes")

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.items: list[tuple[Ref, ...]] = []
        self.destinations: list[Ref] = []
        self.reads: set[Ref] = set()
        self.writes: set[Ref] = set()

    def conflicts(self, reads: Iterable[Ref], writes: Iterable[Ref]) -> bool:
        mine, read = self.writes, self.reads
        return any(r in mine for r in reads) or any(w in mine or w in read for w in writes)


PACKED = frozenset({"fma", "mul", "add", "sub", "mov", "max", "min", "ex2"})
PACK_ELEMENTS = 1 << 14
OPEN_GROUPS = 4


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


def rows_of(view: Array, rows: list[int]) -> Callable[[], Array]:
    """A function that gathers rows of a register file: a view where they lie together, else a copy."""
    if all(r == rows[0] for r in rows):
        one = view[rows[0] : rows[0] + 1]
        return lambda: one
    if _contiguous(rows):
        block = view[rows[0] : rows[0] + len(rows)]
        return lambda: block
    index = np.array(rows)
    buffer = np.empty((len(rows), view.shape[1]), view.dtype)
    return partial(np.take, view, index, 0, buffer, "clip")


def target_of(view: Array, rows: list[int]) -> tuple[Array, Array | None, Array | None]:
    if _contiguous(rows):
        return view[rows[0] : rows[0] + len(rows)], None, None
    return np.empty((len(rows), view.shape[1]), view.dtype), view, np.array(rows)


def packed(
    function: Compute, sources: list[Callable[[], Array]], target: tuple[Array, Array | None, Array | None]
) -> None:
    out, view, rows = target
    function(*[source() for source in sources], out)
    if view is not None:
        view[rows] = out


def packed_masked(
    lanes: Lanes, function: Compute, sources: list[Callable[[], Array]], view: Array, rows: Array, wide: int
) -> None:
    out = view[rows]
    new = np.empty_like(out)
    function(*[source() for source in sources], new)
    mask = lanes.partial
    assert mask is not None
    np.copyto(out, new, where=mask if wide == 1 else mask.repeat(wide))
    view[rows] = out


def _write(row: Array, new: Array, mask: Array) -> None:
    if len(row) != len(mask):
        mask = mask.repeat(len(row) // len(mask))
    np.copyto(row, new, where=mask)


def under_guard(lanes: Lanes, function: Compute, sources: list[Array], row: Array, guard: Array, off: bool) -> None:
    new = lanes.scratch(row)
    function(*sources, new)
    _write(row, new, ~guard if off else guard)


def under_mask(
    lanes: Lanes, function: Compute, sources: list[Array], row: Array, guard: Array | None, off: bool
) -> None:
    mask = lanes.partial
    assert mask is not None
    if guard is not None:
        mask = mask & ~guard if off else mask & guard
    new = lanes.scratch(row)
    function(*sources, new)
    _write(row, new, mask)
