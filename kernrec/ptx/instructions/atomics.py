"""`atom`, `red` (of vectors and packed halves too), and instructions with nothing to do here.

Lanes with the same address take turns in order.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from kernrec.ptx.instructions.access import address_of, space_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.rounding import bf16_values, exact_to_bf16, two_sum
from kernrec.ptx.ir.operand import Immediate, Operand, Register, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.selection import Selection, SharedSelection
from kernrec.ptx.state.types import DTYPES, Array

Operation = Callable[[Array, Array, Array], Array]

OPERATIONS: dict[str, Operation] = {
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

_IN_ORDER = {
    OPERATIONS[name]: ufunc
    for name, ufunc in {
        "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor
    }.items()
}  # fmt: skip
"""Operations that NumPy does lane by lane, in order, where nobody reads the old values."""


def _bf16(operation: Operation) -> Operation:
    """An operation on the bits of bfloat16 numbers; sums are rounded once."""

    def run(old: Array, b: Array, c: Array) -> Array:
        first, second = bf16_values(old).astype(np.float64), bf16_values(b).astype(np.float64)
        if operation is OPERATIONS["add"]:
            return exact_to_bf16(*two_sum(first, second))
        return exact_to_bf16(operation(first, second, c))

    return run


def combination(name: str, kind: str) -> Operation:
    """The operation of a name on values of PTX type `kind`.

    Raises:
        UnsupportedFormError: there is none on such values.
    """
    if "f" in kind and name not in ("add", "min", "max", "exch"):
        raise UnsupportedFormError
    return _bf16(OPERATIONS[name]) if "bf16" in kind and name != "exch" else OPERATIONS[name]


@steps("atom", "red")
def _atomic(decoder: BlockDecoder, ins: Instruction) -> Step:
    name = next((m for m in ins.modifiers if m in OPERATIONS), None)
    kind = next((m for m in reversed(ins.modifiers) if m in DTYPES), None)
    if name is None or kind is None:
        raise UnsupportedFormError
    operation = combination(name, kind)
    operands = list(ins.operands)
    targets: list[Array] = []
    if ins.opcode == "atom":
        first = operands.pop(0)
        targets = [] if first == Register("_") or not decoder.computes(ins) else _elements(decoder, first, kind)
    shared, offset = decoder.selection(ins, address_of(operands[0]))
    b = _elements(decoder, operands[1], kind)
    c = _elements(decoder, operands[2], kind) if name == "cas" else b
    unit = b[0].dtype.itemsize
    merges = _adds_one(ins) and not any(ins.results & other.sources for other in decoder.function.instructions)
    access = Access(decoder.function, ins, space_of(ins), offset, unit * len(b), unit, merges=merges)
    if not (decoder.computes(ins) or decoder.stores(ins)):
        return partial(_count_atomic, decoder.memory, shared, access)
    return partial(_run_atomic, decoder.memory, shared, access, operation, targets, (b, c))


def _count_atomic(memory: Memory, shared: SharedSelection, access: Access) -> None:
    """Counts an atomic operation whose results nobody needs."""
    selection = shared.get()
    for region, part in () if selection is None else memory.resolve(access, selection, True):
        _count(memory, access, region, part)


def _adds_one(ins: Instruction) -> bool:
    """Whether it adds one to 32 bits, of which the assembler makes ATOMS.POPC.INC (ptxas 12.9 and 13)."""
    by = ins.operands[-1]
    if not isinstance(by, Immediate) or ins.modifiers[-1] not in ("u32", "s32"):
        return False
    # `inc` begins anew behind its operand, the greatest number there is.
    return ("add" in ins.modifiers and by.value == 1) or ("inc" in ins.modifiers and by.value in (-1, 0xFFFFFFFF))


def _elements(decoder: BlockDecoder, operand: Operand, kind: str) -> list[Array]:
    """A row of lanes for every element of an operand: of each register of a vector, each half of a packed pair."""
    rows = [decoder.row(o, kind) for o in elements(operand)]
    return [row[half::2] for row in rows for half in (0, 1)] if "x2" in kind else rows


def _run_atomic(
    memory: Memory,
    shared: SharedSelection,
    access: Access,
    operation: Operation,
    targets: list[Array],
    operands: tuple[list[Array], list[Array]],
) -> None:
    """Executes an atomic operation on the elements of a vector.

    Args:
        memory: all memories.
        shared: lanes and addresses.
        access: the access.
        operation: from the old value and two operands to the new value.
        targets: registers for the old values, one for each element; empty: the old values are discarded.
        operands: the operands of the operation, a row for each element.
    """
    selection = shared.get()
    if selection is None:
        return
    b, c = operands
    for region, part in memory.resolve(access, selection, True):
        index, shift = part.index(region, access.unit, access.offset)
        lanes = memory.lanes.shape.numbers if part.lanes is None else part.lanes
        view = region.views[access.unit].view(b[0].dtype)[shift:]
        in_order = None if targets else _IN_ORDER.get(operation)
        if in_order is not None:
            for i in range(len(b)):
                in_order.at(view, index + i, b[i][lanes])
        for turn in turns(index) if in_order is None else ():
            places, numbers = index[turn], lanes[turn]
            for i in range(len(b)):
                old = view[places + i]
                view[places + i] = operation(old, b[i][numbers], c[i][numbers])
                if targets:
                    targets[i][numbers] = old
        if region.space == "global":
            memory.hand_over(access, region, part, True, True)
        _count(memory, access, region, part)


def _count(memory: Memory, access: Access, region: Region, part: Selection) -> None:
    if memory.counters.counts is not None:
        name = region.name if region.space == "global" else region.space
        memory.counters.counts.bump(f"atomic.{name}", part.pattern.count)
        if region.space == "global":
            memory.counters.count_global(access, region, part, "atomic")
        elif region.space == "shared":
            memory.counters.count_shared(access, part, "atomic")


def turns(index: Array) -> list[Array]:
    """Positions of `index` in groups without repeated entries; equal entries keep their order from group to group."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    first = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    if len(first) == len(index):
        return [order]
    lengths = np.diff(np.append(first, len(index)))
    rank = np.arange(len(index)) - np.repeat(first, lengths)
    return [order[rank == turn] for turn in range(int(lengths.max()))]


# A grid before is complete; lanes gather before the basic block that begins with a `bar.warp.sync`.
@steps("membar", "discard", "applypriority", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "bar")
def _nothing(decoder: BlockDecoder, ins: Instruction) -> Step:
    return lambda: None
