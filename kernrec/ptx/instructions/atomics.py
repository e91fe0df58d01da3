"""`atom`, `red` (of vectors and packed halves too) and fences. Lanes that hit the same address take turns in order."""

from collections.abc import Callable
from functools import partial

import numpy as np

from kernrec.ptx.instructions.access import address_of, space_of
from kernrec.ptx.instructions.decoder import Decoder, Step, UnknownVariantError, steps
from kernrec.ptx.instructions.rounding import bf16_values, exact_to_bf16, two_sum
from kernrec.ptx.ir.program import Instruction, Operand, Register, Vector
from kernrec.ptx.state.memory import Memory, Slot
from kernrec.ptx.state.registers import DTYPES, Array

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


def _bf16(operation: Operation) -> Operation:
    """An operation on the bits of bfloat16 numbers; sums are rounded once."""

    def run(old: Array, b: Array, c: Array) -> Array:
        one, other = bf16_values(old).astype(np.float64), bf16_values(b).astype(np.float64)
        if operation is _OPERATIONS["add"]:
            return exact_to_bf16(*two_sum(one, other))
        return exact_to_bf16(operation(one, other, c))

    return run


@steps("atom", "red")
def _atomic(decoder: Decoder, ins: Instruction) -> Step:
    name = next((m for m in ins.modifiers if m in _OPERATIONS), None)
    kind = next((m for m in reversed(ins.modifiers) if m in DTYPES), None)
    if name is None or kind is None:
        raise UnknownVariantError("")
    operation = _OPERATIONS[name]
    if "f" in kind and name not in ("add", "min", "max", "exch"):
        raise UnknownVariantError("")
    if "bf16" in kind and name != "exch":
        operation = _bf16(operation)
    operands = list(ins.operands)
    targets: list[Array] = []
    if ins.opcode == "atom":
        first = operands.pop(0)
        targets = [] if first == Register("_") else _elements(decoder, first, kind)
    slot, offset = decoder.slot(ins, address_of(operands[0]))
    b = _elements(decoder, operands[1], kind)
    c = _elements(decoder, operands[2], kind) if name == "cas" else b
    return partial(_run, decoder.memory, slot, ins, space_of(ins), offset, operation, targets, b, c)


def _elements(decoder: Decoder, operand: Operand, kind: str) -> list[Array]:
    """A row of lanes for every element of an operand: of each register of a vector, each half of a packed pair."""
    rows = [decoder.row(o, kind) for o in (operand.items if isinstance(operand, Vector) else (operand,))]
    return [row[half::2] for row in rows for half in (0, 1)] if "x2" in kind else rows


def _run(
    memory: Memory,
    slot: Slot,
    ins: Instruction,
    space: str,
    offset: int,
    operation: Operation,
    targets: list[Array],
    b: list[Array],
    c: list[Array],
) -> None:
    chosen = slot.get()
    if chosen is None:
        return
    unit = b[0].dtype.itemsize
    size = unit * len(b)
    for region, part in memory.places(space, chosen, ins, offset, size, True):
        index, shift = part.index(region, unit, offset)
        lanes = memory.lanes.lane if part.lanes is None else part.lanes
        view = region.views[unit].view(b[0].dtype)[shift:]
        for turn in turns(index):
            where = index[turn]
            here = lanes[turn]
            for i in range(len(b)):
                old = view[where + i]
                view[where + i] = operation(old, b[i][here], c[i][here])
                if targets:
                    targets[i][here] = old
        if memory.counts is not None:
            name = region.name if region.space == "global" else region.space
            memory.counts.bump(f"atomic.{name}", part.pattern.count)
            if region.space == "global":
                memory.count_global(region, part, offset, size, "atomic")
            elif region.space == "shared":
                memory.count_shared(part, offset, size, "atomic")


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
