"""Watches the registers of matrix operations in flight: between `wgmma` instructions nothing may look at them.

What a basic block does with such registers from one `wgmma` instruction to the next is known before it runs, so one
step in front of it checks all of it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

from kernrec.ptx.instructions.registry import Step
from kernrec.ptx.ir.operand import Vector, registers_of
from kernrec.ptx.ir.program import Function, Instruction, accumulates

_WATCHED = "registers of wgmma"


def watched_registers(function: Function) -> frozenset[str]:
    """The registers that `wgmma.mma_async` computes with, of the whole function; kept with it."""
    watched: frozenset[str] | None = function.memo.get(_WATCHED)
    if watched is None:
        products = (ins for ins in function.instructions if accumulates(ins))
        # A descriptor in place of A is read at once; only what is in registers is used until the operation ends.
        operands = (operand for ins in products for operand in ins.operands[:2] if isinstance(operand, Vector))
        watched = frozenset(name for operand in operands for name in registers_of(operand))
        function.memo[_WATCHED] = watched
    return watched


def accesses(instructions: Iterable[Instruction], watched: frozenset[str]) -> dict[str, Instruction]:
    """By watched register: the first instruction that accesses it, up to the next `wgmma` instruction."""
    first: dict[str, Instruction] = {}
    for ins in instructions:
        if ins.opcode == "wgmma":
            break
        for operand in ins.operands:
            for name in registers_of(operand):
                if name in watched:
                    first.setdefault(name, ins)
    return first


def watch(first: dict[str, Instruction], decoder: Any, _: Instruction) -> Step:
    """The step that checks these accesses, from a `BlockDecoder`, whose module imports what makes plans."""
    rows = decoder.registers.rows
    by_row = {rows.register(name)[1]: ins for name, ins in first.items()}
    return partial(decoder.memory.pending.warpgroups.touch, decoder.function, by_row)
