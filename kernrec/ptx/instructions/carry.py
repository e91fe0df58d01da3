"""Extended-precision integer arithmetic: `add.cc addc sub.cc subc mad.cc madc`.

The carry (or borrow) of each thread is kept in a row of its own, `%carry`. An instruction that reads and writes it
first computes the new carry in `%carry_next`, because the old one is needed until the result is computed.
"""

from functools import lru_cache

import numpy as np

from kernrec.ptx.instructions.integer import integer_multiply
from kernrec.ptx.instructions.registry import Compute, Elementwise, UnsupportedFormError, copy_row, elementwise
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import Array

_CARRY, _NEXT = Register("%carry"), Register("%carry_next")


def _sum(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    """Sum and carry of unsigned numbers."""
    total = a + b
    over = total < a
    if carry is not None:
        more = total + carry.astype(a.dtype)
        over, total = over | (more < total), more
    return total, over


def _difference(a: Array, b: Array, borrow: Array | None) -> tuple[Array, Array]:
    """Difference and borrow of unsigned numbers."""
    left = a - b
    under = a < b
    if borrow is not None:
        less = left - borrow.astype(a.dtype)
        under, left = under | (less > left), less
    return left, under


@lru_cache(None)
def _part(operation: str, product: Compute | None, carried: bool, which: int) -> Compute:
    """The result (`which` 0) or the carry (1) of one instruction; `product` computes the first summand of `mad`."""
    law = _difference if operation == "sub" else _sum

    def run(*rows: Array) -> None:
        *sources, out = rows
        carry = sources.pop() if carried else None
        if product is None:
            a, b = sources
        else:
            a, b = np.empty_like(sources[0]), sources[2]
            product(sources[0], sources[1], a)
        unsigned = f"u{a.dtype.itemsize}"
        np.copyto(out if which else out.view(unsigned), law(a.view(unsigned), b.view(unsigned), carry)[which])

    return run


def carrying(ins: Instruction) -> list[Elementwise]:
    """An instruction that reads or writes a carry, as elementwise instructions in order."""
    kind, operation = ins.modifiers[-1], ins.opcode[:3]
    carried, sets = ins.opcode.endswith("c"), "cc" in ins.modifiers
    if kind not in ("u32", "s32", "u64", "s64"):
        raise UnsupportedFormError
    product: Compute | None = None
    d, *sources = ins.operands
    types = [kind] * len(sources)
    if operation == "mad":
        part = "hi" if "hi" in ins.modifiers else "lo"
        product = integer_multiply(
            Instruction("mul", (part, kind), ins.operands[:3], ins.predicate, ins.line, ins.text)
        ).function
    if carried:
        sources.append(_CARRY)
        types.append("u32")
    result = Elementwise(_part(operation, product, carried, 0), d, kind, tuple(sources), tuple(types))
    if not sets:
        return [result]
    carry = Elementwise(_part(operation, product, carried, 1), _NEXT, "u32", tuple(sources), tuple(types))
    return [carry, result, Elementwise(copy_row, _CARRY, "u32", (_NEXT,), ("u32",))]


@elementwise("addc", "subc", "madc")
def _chained(ins: Instruction) -> list[Elementwise]:
    return carrying(ins)
