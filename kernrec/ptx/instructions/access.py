"""Loads, stores, asynchronous copies and address conversions."""

from functools import partial

import numpy as np

from kernrec.ptx.instructions.decoder import (
    Compute,
    Decoder,
    Elementwise,
    Step,
    UnknownVariantError,
    copy_row,
    elementwise,
    steps,
)
from kernrec.ptx.ir.program import Address, Immediate, Instruction, Operand, Register, Vector
from kernrec.ptx.state.memory import Memory, Selection, Slot
from kernrec.ptx.state.registers import DTYPES, WIDTHS, WINDOW_SHIFT, WINDOWS, Array

_SPACES = ("global", "shared", "local", "const", "param", "argument")


def space_of(ins: Instruction) -> str:
    """The state space an access names; `generic` when it names none."""
    return next((m for m in ins.modifiers if m in _SPACES), "generic")


def _shape(ins: Instruction) -> tuple[str, int]:
    vector = next((int(m[1:]) for m in ins.modifiers if m in ("v2", "v4", "v8")), 1)
    return ins.modifiers[-1], vector


def _items(operand: Operand, vector: int) -> tuple[Operand, ...]:
    if isinstance(operand, Vector):
        return operand.items
    if vector != 1:
        raise UnknownVariantError("a vector access without a vector operand")
    return (operand,)


def address_of(operand: Operand) -> Address:
    """The operand as an address."""
    if not isinstance(operand, Address):
        raise UnknownVariantError(f"address {operand}")
    return operand


@steps("ld", "ldu")
def _load(decoder: Decoder, ins: Instruction) -> Step:
    kind, vector = _shape(ins)
    items = _items(ins.operands[0], vector)
    dtype = DTYPES[kind]
    targets: list[tuple[int, Array, bool]] = []
    for i, item in enumerate(items):
        if item == Register("_"):
            continue
        width, row = decoder.ref(item, kind)
        if width == WIDTHS[kind]:
            targets.append((i, decoder.lanes.files[width][row], True))
        else:  # a narrow load into a wider register extends
            wide = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width // 8}")
            targets.append((i, decoder.lanes.files[width][row].view(wide), False))
    slot, offset = decoder.slot(ins, address_of(ins.operands[1]))
    unit = dtype.itemsize
    return partial(_run_load, decoder.memory, slot, ins, space_of(ins), offset, unit, unit * vector, targets, dtype)


def _run_load(
    memory: Memory,
    slot: Slot,
    ins: Instruction,
    space: str,
    offset: int,
    unit: int,
    size: int,
    targets: list[tuple[int, Array, bool]],
    dtype: np.dtype[np.generic],
) -> None:
    chosen = slot.get()
    if chosen is None:
        return
    for region, part in memory.places(space, chosen, ins, offset, size):
        index, shift = part.index(region, unit, offset)
        view = region.views[unit]
        lanes = part.lanes
        for i, row, same in targets:
            if same and lanes is None:
                view[shift + i :].take(index, None, row, "clip")
            elif same:
                row[lanes] = view[shift + i :].take(index, None, None, "clip")
            else:
                loaded = view[shift + i :].take(index, None, None, "clip").view(_extending(dtype))
                row[slice(None) if lanes is None else lanes] = loaded
        memory.touched(ins, region, part, offset, size, False)


def _extending(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return dtype if dtype.kind in "iu" else np.dtype(f"u{dtype.itemsize}")


@steps("st")
def _store(decoder: Decoder, ins: Instruction) -> Step:
    kind, vector = _shape(ins)
    unit = DTYPES[kind].itemsize
    sources = []
    for item in _items(ins.operands[1], vector):
        width, row = decoder.ref(item, kind)
        sources.append(decoder.lanes.files[width].view(f"u{unit}")[row, :: width // (8 * unit)])
    slot, offset = decoder.slot(ins, address_of(ins.operands[0]))
    return partial(_run_store, decoder.memory, slot, ins, space_of(ins), offset, unit, unit * vector, sources)


def _run_store(
    memory: Memory, slot: Slot, ins: Instruction, space: str, offset: int, unit: int, size: int, sources: list[Array]
) -> None:
    chosen = slot.get()
    if chosen is None:
        return
    for region, part in memory.places(space, chosen, ins, offset, size, True):
        index, shift = part.index(region, unit, offset)
        view = region.views[unit]
        lanes = part.lanes
        for i, source in enumerate(sources):
            view[shift + i :][index] = source if lanes is None else source[lanes]
        memory.touched(ins, region, part, offset, size, True)


class AsyncCopies:
    """Copies to shared memory that were started and not yet waited for, per thread and in order.

    The bytes land in shared memory only when the thread waits for them: a kernel that forgets to wait reads what was
    there before.
    """

    def __init__(self, total: int) -> None:
        self.committed = np.zeros(total, np.int64)
        # (lanes, commit group of each, destination elements, where each lane's begin, bytes as elements)
        self.pending: list[tuple[Array, Array, Array, Array, Array]] = []

    def start_batch(self) -> None:
        self.committed[:] = 0
        self.pending.clear()

    def start(self, lanes: Array, view: Array, index: Array, data: Array) -> None:
        """Holds back `data` (lanes, elements) for `view[index + element]`."""
        self.pending.append((lanes, self.committed[lanes], view, index, data))

    def wait(self, lanes: Array, allowed: int | None) -> None:
        """Lands the copies of `lanes` but for the `allowed` newest groups (None: all copies, committed or not)."""
        if not self.pending:
            return
        waiting = np.zeros(len(self.committed), np.bool_)
        waiting[lanes] = True
        kept = []
        for owners, group, view, index, data in self.pending:
            done = waiting[owners]
            if allowed is not None:
                done &= group < self.committed[owners] - allowed
            landed = int(np.count_nonzero(done))
            if landed == len(owners):
                for k in range(data.shape[1]):
                    view[k:][index] = data[:, k]
            elif landed == 0:
                kept.append((owners, group, view, index, data))
            else:
                for k in range(data.shape[1]):
                    view[k:][index[done]] = data[done, k]
                left = ~done
                kept.append((owners[left], group[left], view, index[left], data[left]))
        self.pending = kept


def async_copies(decoder: Decoder) -> AsyncCopies:
    """The copies in flight of the decoder's batch."""
    found: AsyncCopies | None = decoder.extra.get("async")
    if found is None:
        found = decoder.extra["async"] = AsyncCopies(decoder.lanes.count)
    return found


@steps("cp")
def _copy(decoder: Decoder, ins: Instruction) -> Step:
    if ins.modifiers[:1] != ("async",) or "bulk" in ins.modifiers or "mbarrier" in ins.modifiers:
        raise UnknownVariantError("")
    copies = async_copies(decoder)
    lanes = decoder.lanes
    chosen = decoder.guarded(ins)

    def running() -> Array:
        some = chosen()
        return lanes.lane if some is None else some

    if "commit_group" in ins.modifiers:

        def commit() -> None:
            copies.committed[running()] += 1

        return commit
    if "wait_all" in ins.modifiers:
        return lambda: copies.wait(running(), None)
    if "wait_group" in ins.modifiers:
        number = ins.operands[0]
        if not isinstance(number, Immediate):
            raise UnknownVariantError("wait_group without a literal")
        allowed = int(number.value)
        return lambda: copies.wait(running(), allowed)
    if "shared" not in ins.modifiers or "global" not in ins.modifiers:
        raise UnknownVariantError("")
    target, target_offset = decoder.slot(ins, address_of(ins.operands[0]))
    source, source_offset = decoder.slot(ins, address_of(ins.operands[1]))
    size = ins.operands[2]
    if not isinstance(size, Immediate) or size.value not in (4, 8, 16) or ("cg" in ins.modifiers and size.value != 16):
        raise UnknownVariantError("a copy of other than 4, 8 or 16 bytes")
    taken: Array | None = None
    ignore: Array | None = None
    extra = ins.operands[3:]
    if "cache_hint" in ins.modifiers:
        extra = extra[:-1]
    if extra:
        operand = extra[0]
        if isinstance(operand, Register) and decoder.function.register_type(operand.name) == "pred":
            ignore = decoder.row(operand, "pred")
        elif not (isinstance(operand, Immediate) and operand.value == size.value):
            taken = decoder.row(operand, "u32")
    return partial(
        _run_copy,
        decoder.memory,
        copies,
        ins,
        (target, target_offset),
        (source, source_offset),
        int(size.value),
        taken,
        ignore,
    )


def _run_copy(
    memory: Memory,
    copies: AsyncCopies,
    ins: Instruction,
    target: tuple[Slot, int],
    source: tuple[Slot, int],
    size: int,
    taken: Array | None,
    ignore: Array | None,
) -> None:
    to, from_ = target[0].get(), source[0].get()
    if to is None or from_ is None:
        return
    [(region, _)] = memory.places("shared", to, ins, target[1], size)
    memory.touched(ins, region, to, target[1], size, True)
    lanes = memory.lanes.lane if to.lanes is None else to.lanes
    bytes_read: Array | None = None
    if taken is not None:
        bytes_read = np.minimum(taken[lanes], size)
    elif ignore is not None:
        bytes_read = np.where(ignore[lanes], 0, size)
    unit = min(size, 8)
    data = np.zeros((len(lanes), size // unit), f"u{unit}")
    if bytes_read is None or (bytes_read == size).all():
        _fetch(memory, ins, from_, source[1], size, unit, data, np.arange(len(lanes)))
    else:
        for amount in np.unique(bytes_read):
            if amount:
                which = np.flatnonzero(bytes_read == amount)
                part = memory.select(lanes[which], from_.addresses[which])
                _fetch(memory, ins, part, source[1], int(amount), 1 if amount % unit else unit, data, which)
    index, shift = to.index(region, unit, target[1])
    copies.start(lanes, region.views[unit], index + shift, data)


def _fetch(
    memory: Memory, ins: Instruction, part: Selection, offset: int, size: int, unit: int, data: Array, rows: Array
) -> None:
    aligned = size if size & (size - 1) == 0 else 1
    into = data.view(f"u{unit}")
    checked = size if aligned == size else 1
    for region, chosen in memory.places("global", part, ins, offset, checked):
        if checked != size:
            memory.places("global", chosen, ins, offset + size - 1, 1)
        index, shift = chosen.index(region, unit, offset)
        if chosen is part:
            where = rows
        else:
            owners = memory.lanes.lane if part.lanes is None else part.lanes
            ids = memory.lanes.lane if chosen.lanes is None else chosen.lanes
            where = rows[np.searchsorted(owners, ids)]
        for k in range(size // unit):
            into[where, k] = region.views[unit][shift + k :].take(index, None, None, "clip")
        memory.count_global(region, chosen, offset, size, "read")


@elementwise("cvta")
def _cvta(ins: Instruction) -> Elementwise:
    space = space_of(ins)
    window = WINDOWS[space] << WINDOW_SHIFT
    kind = ins.modifiers[-1]
    base = np.uint64(window)
    if window == 0:
        function: Compute = copy_row
    elif kind != "u64":
        raise UnknownVariantError("a 32-bit generic address")
    elif "to" in ins.modifiers:
        function = _windowed(base, True)
    else:
        function = _windowed(base, False)
    return Elementwise(function, ins.operands[0], kind, (ins.operands[1],), (kind,))


def _windowed(base: np.uint64, leave: bool) -> Compute:
    return (lambda a, out: np.subtract(a, base, out)) if leave else (lambda a, out: np.add(a, base, out))
