"""Which copies between registers the assembler removes: those whose two registers can be one.

PTX is not in SSA form any more: where values of several paths meet, a register is written on each path, mostly by a
copy. If a copy's source and destination never hold different values that are both still needed, the assembler gives
them one register, and the copy disappears (Chaitin et al., "Register Allocation via Coloring", 1981).
"""

from kernrec.ptx.analysis.liveness import live_after
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.ir.program import Function, Instruction


def copied(function: Function, ins: Instruction) -> tuple[str, str] | None:
    """(destination, source) of an instruction that copies one register of the program into another."""
    if ins.opcode != "mov" or ins.predicate is not None or len(ins.operands) != 2:
        return None
    to, source = ins.operands
    if not (isinstance(to, Register) and isinstance(source, Register)):
        return None
    return None if function.register_type(source.name) is None else (to.name, source.name)


def removed_copies(function: Function) -> set[int]:
    """Positions of the copies that the assembler removes."""
    copies = {i: pair for i, ins in enumerate(function.instructions) if (pair := copied(function, ins)) is not None}
    named = {name for pair in copies.values() for name in pair}
    if not named:
        return set()
    conflicts = _conflicts(function, named)
    group = {name: name for name in named}

    def find(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    removed = set()
    for position, (to, source) in copies.items():
        first, second = find(to), find(source)
        if first == second:
            removed.add(position)
        elif second not in conflicts[first]:
            group[second] = first
            for other in conflicts[second]:
                conflicts[other].discard(second)
                conflicts[other].add(first)
            conflicts[first] |= conflicts.pop(second)
            removed.add(position)
    return removed


def _conflicts(function: Function, named: set[str]) -> dict[str, set[str]]:
    """For each register of `named`: those others that hold another value while it is needed."""
    conflicts: dict[str, set[str]] = {name: set() for name in named}
    for block, after in zip(function.blocks, live_after(function), strict=True):
        live = after & named
        for ins in reversed(block.instructions):
            pair = copied(function, ins)
            for name in ins.results & named:
                others = live - {name} - ({pair[1]} if pair else set())
                conflicts[name] |= others
                for other in others:
                    conflicts[other].add(name)
                if ins.predicate is None:
                    live = live - {name}
            live = live | (ins.sources & named)
    return conflicts
