"""Loads, stores, asynchronous copies and address conversions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import (
    Compute,
    Elementwise,
    Step,
    UnsupportedFormError,
    copy_row,
    elementwise,
    steps,
)
from kernrec.ptx.ir.program import Address, Immediate, Instruction, Operand, Register, Vector
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.launch_layout import WINDOW_SHIFT, WINDOWS
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.selection import Selection, SharedSelection
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array

_SPACES = ("global", "shared", "local", "const", "param", "argument")


def space_of(ins: Instruction) -> str:
    """The state space an access names; `generic` when it names none."""
    return next((m for m in ins.modifiers if m in _SPACES), "generic")


def _shape(ins: Instruction) -> tuple[str, int]:
    """PTX type and number of elements of a vector access."""
    elements = next((int(m[1:]) for m in ins.modifiers if m in ("v2", "v4", "v8")), 1)
    return ins.modifiers[-1], elements


def _items(operand: Operand, elements: int) -> tuple[Operand, ...]:
    if isinstance(operand, Vector):
        return operand.items
    if elements != 1:
        raise UnsupportedFormError("a vector access without a vector operand")
    return (operand,)


def address_of(operand: Operand) -> Address:
    """The operand as an address."""
    if not isinstance(operand, Address):
        raise UnsupportedFormError(f"address {operand}")
    return operand


class _LoadTarget(NamedTuple):
    """Where an element of a load goes."""

    element: int
    """Its position in the vector."""

    row: Array
    """The register."""

    extend_from: np.dtype[np.generic] | None
    """A load into a wider register extends values of this type; None: the widths are equal."""


@steps("ld", "ldu")
def _load(decoder: BlockDecoder, ins: Instruction) -> Step:
    kind, elements = _shape(ins)
    dtype = DTYPES[kind]
    targets: list[_LoadTarget] = []
    for i, item in enumerate(_items(ins.operands[0], elements)):
        if item == Register("_"):
            continue
        width, row = decoder.ref(item, kind)
        register = decoder.registers.files[width][row]
        if width == WIDTHS[kind]:
            targets.append(_LoadTarget(i, register, None))
        else:
            wide = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width // 8}")
            narrow = dtype if dtype.kind in "iu" else np.dtype(f"u{dtype.itemsize}")
            targets.append(_LoadTarget(i, register.view(wide), narrow))
    shared, offset = decoder.selection(ins, address_of(ins.operands[1]))
    unit = dtype.itemsize
    access = Access(decoder.function, ins, space_of(ins), offset, unit * elements, unit)
    return partial(_run_load, decoder.memory, shared, access, targets)


def _run_load(memory: Memory, shared: SharedSelection, access: Access, targets: list[_LoadTarget]) -> None:
    selection = shared.get()
    if selection is None:
        return
    unit = access.unit
    for region, part in memory.resolve(access, selection):
        index, shift = part.index(region, unit, access.offset)
        view = region.views[unit]
        lanes = part.lanes
        for i, row, narrow in targets:
            if narrow is None and lanes is None:
                view[shift + i :].take(index, None, row, "clip")
            elif narrow is None:
                row[lanes] = view[shift + i :].take(index, None, None, "clip")
            else:
                loaded = view[shift + i :].take(index, None, None, "clip").view(narrow)
                row[slice(None) if lanes is None else lanes] = loaded
        memory.record(access, region, part, False)


@steps("st")
def _store(decoder: BlockDecoder, ins: Instruction) -> Step:
    kind, elements = _shape(ins)
    unit = DTYPES[kind].itemsize
    sources = []
    for item in _items(ins.operands[1], elements):
        width, row = decoder.ref(item, kind)
        sources.append(decoder.registers.files[width].view(f"u{unit}")[row, :: width // (8 * unit)])
    shared, offset = decoder.selection(ins, address_of(ins.operands[0]))
    access = Access(decoder.function, ins, space_of(ins), offset, unit * elements, unit)
    return partial(_run_store, decoder.memory, shared, access, sources)


def _run_store(memory: Memory, shared: SharedSelection, access: Access, sources: list[Array]) -> None:
    selection = shared.get()
    if selection is None:
        return
    for region, part in memory.resolve(access, selection, True):
        index, shift = part.index(region, access.unit, access.offset)
        view = region.views[access.unit]
        lanes = part.lanes
        for i, source in enumerate(sources):
            view[shift + i :][index] = source if lanes is None else source[lanes]
        memory.record(access, region, part, True)


@steps("cp")
def _copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    if ins.modifiers[:1] != ("async",) or "bulk" in ins.modifiers or "mbarrier" in ins.modifiers:
        raise UnsupportedFormError
    copies = decoder.memory.async_copies
    all_lanes = decoder.lanes.shape.numbers
    running_lanes = decoder.running_lanes(ins)

    def running() -> Array:
        numbers = running_lanes()
        return all_lanes if numbers is None else numbers

    if "commit_group" in ins.modifiers:
        return lambda: copies.commit(running())
    if "wait_all" in ins.modifiers:
        return lambda: copies.wait(running(), None)
    if "wait_group" in ins.modifiers:
        number = ins.operands[0]
        if not isinstance(number, Immediate):
            raise UnsupportedFormError("wait_group without a literal")
        allowed = int(number.value)
        return lambda: copies.wait(running(), allowed)
    return _start_copy(decoder, ins)


def _start_copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    if "shared" not in ins.modifiers or "global" not in ins.modifiers:
        raise UnsupportedFormError
    literal = ins.operands[2]
    if not isinstance(literal, Immediate) or literal.value not in (4, 8, 16):
        raise UnsupportedFormError("a copy of other than 4, 8 or 16 bytes")
    size = int(literal.value)
    if "cg" in ins.modifiers and size != 16:
        raise UnsupportedFormError("a copy of other than 4, 8 or 16 bytes")
    ends = []
    for operand, space in zip(ins.operands, ("shared", "global"), strict=False):
        shared, offset = decoder.selection(ins, address_of(operand))
        ends.append((shared, Access(decoder.function, ins, space, offset, size, min(size, 8))))
    bytes_read: Callable[[Array], Array] | None = None
    extra = ins.operands[3:]
    if "cache_hint" in ins.modifiers:
        extra = extra[:-1]
    if extra:
        operand = extra[0]
        if isinstance(operand, Register) and decoder.function.register_type(operand.name) == "pred":
            ignore = decoder.row(operand, "pred")
            bytes_read = lambda lanes: np.where(ignore[lanes], 0, size)  # noqa: E731
        elif not (isinstance(operand, Immediate) and operand.value == size):
            given = decoder.row(operand, "u32")
            bytes_read = lambda lanes: np.minimum(given[lanes], size)  # noqa: E731
    target, source = ends
    return _AsyncCopyStep(decoder.memory, target, source, bytes_read)


@dataclass(frozen=True)
class _AsyncCopyStep:
    """Starts an asynchronous copy from global to shared memory."""

    memory: Memory
    """All memories."""

    target: tuple[SharedSelection, Access]
    """Lanes and access to shared memory."""

    source: tuple[SharedSelection, Access]
    """Lanes and access to global memory."""

    bytes_read: Callable[[Array], Array] | None
    """For lanes, the bytes that each reads, the rest being zeros; None: all lanes read all."""

    def __call__(self) -> None:
        memory, access = self.memory, self.target[1]
        target, source = self.target[0].get(), self.source[0].get()
        if target is None or source is None:
            return
        [(region, _)] = memory.resolve(access, target)
        memory.record(access, region, target, True)
        lanes = memory.lanes.shape.numbers if target.lanes is None else target.lanes
        size, unit = access.size, access.unit
        data = np.zeros((len(lanes), size // unit), f"u{unit}")
        amounts = None if self.bytes_read is None else self.bytes_read(lanes)
        if amounts is None or (amounts == size).all():
            self._fetch(self.source[1], source, data, np.arange(len(lanes)))
        else:
            for amount in np.unique(amounts).tolist():
                if amount:
                    rows = np.flatnonzero(amounts == amount)
                    part = memory.select(lanes[rows], source.addresses[rows])
                    partial_access = replace(self.source[1], size=amount, unit=1 if amount % unit else unit)
                    self._fetch(partial_access, part, data, rows)
        index, shift = target.index(region, unit, access.offset)
        memory.async_copies.start(lanes, region.views[unit], index + shift, data)

    def _fetch(self, access: Access, selection: Selection, data: Array, rows: Array) -> None:
        """Reads what the lanes of `selection` copy into these rows of `data` (lanes, elements)."""
        memory, size, unit = self.memory, access.size, access.unit
        into = data.view(f"u{unit}")
        # Of a size that is no power of two, first and last byte are checked.
        whole = size & (size - 1) == 0
        checked = access if whole else replace(access, size=1)
        for region, part in memory.resolve(checked, selection):
            if not whole:
                memory.resolve(replace(checked, offset=access.offset + size - 1), part)
            index, shift = part.index(region, unit, access.offset)
            if part is selection:
                where = rows
            else:
                all_lanes = memory.lanes.shape.numbers
                owners = all_lanes if selection.lanes is None else selection.lanes
                numbers = all_lanes if part.lanes is None else part.lanes
                where = rows[np.searchsorted(owners, numbers)]
            for k in range(size // unit):
                into[where, k] = region.views[unit][shift + k :].take(index, None, None, "clip")
            memory.count_global(access, region, part, "read")


@elementwise("cvta")
def _cvta(ins: Instruction) -> Elementwise:
    space = space_of(ins)
    window = WINDOWS[space] << WINDOW_SHIFT
    kind = ins.modifiers[-1]
    base = np.uint64(window)
    if window == 0:
        function: Compute = copy_row
    elif kind != "u64":
        raise UnsupportedFormError("a 32-bit generic address")
    elif "to" in ins.modifiers:
        function = _windowed(base, True)
    else:
        function = _windowed(base, False)
    return Elementwise(function, ins.operands[0], kind, (ins.operands[1],), (kind,))


def _windowed(base: np.uint64, leave: bool) -> Compute:
    return (lambda a, out: np.subtract(a, base, out)) if leave else (lambda a, out: np.add(a, base, out))
