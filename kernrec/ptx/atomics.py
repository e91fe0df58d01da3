"""`atom`, `red` and fences. Lanes that hit the same address take turns in lane order."""

from collections.abc import Callable
from functools import partial

import numpy as np

from kernrec.ptx.access import address_of, space_of
from kernrec.ptx.decode import Decoder, Step, UnknownVariantError, steps
from kernrec.ptx.memory import Memory, Slot
from kernrec.ptx.program import Instruction, Register
from kernrec.ptx.state import DTYPES, Array

Operation = Callable[[Array, Array, Array], Array]

_OPERATIONS: dict[str, Operation] = {
    "add": lambda old, b, c: old + b,
    "min": lambda old, b, c: np.fmin(old, b),
    "max": lambda old, b, c: np.fmax(old, b),
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b, c: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b, c: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
}


@steps("atom", "red")
def _atomic(decoder: Decoder, ins: Instruction) -> Step:
    name = next((m for m in ins.modifiers if m in _OPERATIONS), None)
    kind = ins.modifiers[-1]
    if name is None or any(m in ins.modifiers for m in ("v2", "v4", "v8", "noftz")) or kind not in DTYPES:
        raise UnknownVariantError("")
    if kind in ("f16", "f16x2", "bf16", "bf16x2", "b128"):
        raise UnknownVariantError("")
    operands = list(ins.operands)
    target: Array | None = None
    if ins.opcode == "atom":
        first = operands.pop(0)
        target = None if first == Register("_") else decoder.row(first, kind)
    slot, offset = decoder.slot(ins, address_of(operands[0]))
    b = decoder.row(operands[1], kind)
    c = decoder.row(operands[2], kind) if name == "cas" else b
    return partial(_run, decoder.memory, slot, ins, space_of(ins), offset, _OPERATIONS[name], target, b, c)


def _run(
    memory: Memory,
    slot: Slot,
    ins: Instruction,
    space: str,
    offset: int,
    operation: Operation,
    target: Array | None,
    b: Array,
    c: Array,
) -> None:
    chosen = slot.get()
    if chosen is None:
        return
    unit = b.dtype.itemsize
    for region, part in memory.places(space, chosen, ins, offset, unit):
        index, shift = part.index(region, unit, offset)
        lanes = memory.lanes.lane if part.lanes is None else part.lanes
        view = region.views[unit].view(b.dtype)[shift:]
        for turn in turns(index):
            where = index[turn]
            old = view[where]
            here = lanes[turn]
            view[where] = operation(old, b[here], c[here])
            if target is not None:
                target[here] = old
        if memory.counts is not None:
            name = region.name if region.space == "global" else region.space
            memory.counts.bump(f"atomic.{name}", part.pattern.count)
            if region.space == "global":
                memory.count_global(region, part, offset, unit, "atomic")


def turns(index: Array) -> list[Array]:
    """Positions of `index` in groups without repeats, such that equal entries keep their order."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    first = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    if len(first) == len(index):
        return [order]
    lengths = np.diff(np.append(first, len(index)))
    rank = np.arange(len(index)) - np.repeat(first, lengths)
    return [order[rank == turn] for turn in range(int(lengths.max()))]


@steps("membar", "fence", "discard", "applypriority", "prefetch", "prefetchu", "nanosleep")
def _nothing(decoder: Decoder, ins: Instruction) -> Step:
    return lambda: None
