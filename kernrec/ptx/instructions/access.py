"""Loads, stores and address conversions."""

from functools import partial

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import (
    Compute,
    Elementwise,
    Step,
    UnsupportedFormError,
    copy_row,
    elementwise,
    lanewise,
    steps,
)
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Vector
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.launch_layout import WINDOW_SHIFT, WINDOWS
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.selection import SharedSelection
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


_LoadTarget = tuple[int, Array, "np.dtype[np.generic] | None"]
"""Position in the vector of an element of a load, and the register that it goes to; a load into a wider register
extends values of the last type, None where the widths are equal."""


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
            targets.append((i, register, None))
        else:
            wide = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width // 8}")
            narrow = dtype if dtype.kind in "iu" else np.dtype(f"u{dtype.itemsize}")
            targets.append((i, register.view(wide), narrow))
    shared, offset = decoder.selection(ins, address_of(ins.operands[1]))
    unit = dtype.itemsize
    access = Access(decoder.function, ins, space_of(ins), offset, unit * elements, unit)
    if not decoder.computes(ins):
        return partial(_count_plain, decoder.memory, shared, access, False)
    return partial(_run_load, decoder.memory, shared, access, targets)


def _count_plain(memory: Memory, shared: SharedSelection, access: Access, write: bool) -> None:
    """Counts a load or store whose values nobody needs."""
    selection = shared.get()
    if selection is not None:
        for region, part in memory.resolve(access, selection, write):
            memory.record(access, region, part, write)


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
        if memory.handovers is not None and region.space == "global" and access.size == unit and targets:
            _, row, narrow = targets[0]
            for position, seen in memory.handovers.overlooked(access, region, part):
                value = seen.view(narrow or row.dtype)[0]
                row[position if lanes is None else lanes[position]] = value
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
    if not decoder.stores(ins):
        return partial(_count_plain, decoder.memory, shared, access, True)
    return partial(_run_store, decoder.memory, shared, access, sources)


def _run_store(memory: Memory, shared: SharedSelection, access: Access, sources: list[Array]) -> None:
    selection = shared.get()
    if selection is None:
        return
    for region, part in memory.resolve(access, selection, True):
        if memory.handovers is not None and region.space == "global":
            memory.handovers.keep(access, region, part)
        index, shift = part.index(region, access.unit, access.offset)
        view = region.views[access.unit]
        lanes = part.lanes
        values = sources if lanes is None else [source[lanes] for source in sources]
        for i, value in enumerate(values):
            view[shift + i :][index] = value
        agree = memory.races is not None and all(
            (view[shift + i :][index] == value).all() for i, value in enumerate(values)
        )
        memory.record(access, region, part, True, agree)


@elementwise("cvta")
def _cvta(ins: Instruction) -> Elementwise:
    space = space_of(ins)
    window = WINDOWS[space] << WINDOW_SHIFT
    kind = ins.modifiers[-1]
    if window == 0:
        return lanewise(ins, copy_row, kind)
    if kind != "u64":
        raise UnsupportedFormError("a 32-bit generic address")
    return lanewise(ins, _windowed(window, "to" in ins.modifiers), kind)


@elementwise("createpolicy")
def _createpolicy(ins: Instruction) -> Elementwise:
    """How long L2 holds lines: an opaque value that changes neither addresses nor results."""
    if ins.modifiers[0] != "fractional":
        raise UnsupportedFormError("a policy for a range of addresses")
    return Elementwise(copy_row, ins.operands[0], "b64", (Immediate(0, "int"),), ("b64",))


def _windowed(window: int, leave: bool) -> Compute:
    base = np.uint64(window)
    return (lambda a, out: np.subtract(a, base, out)) if leave else (lambda a, out: np.add(a, base, out))
