"""Estimate the registers of a kernel from its PTX, as the maximum number of 32-bit values that are live at once.

The estimate is 0 to 30 % above the assembler's number. kernrec uses it only if no assembler is installed.
"""

from collections.abc import Iterable

from kernrec.ptx.ir.operand import Symbol, words
from kernrec.ptx.ir.program import BasicBlock, Function, cached_by_form


@cached_by_form
def live_before(function: Function) -> list[set[str]]:
    """Return the registers that are live at the start of each basic block."""
    effects = [_effect(block) for block in function.blocks]
    before: list[set[str]] = [set() for _ in effects]
    grown = True
    while grown:
        grown = False
        for index, (read, written) in reversed([*enumerate(effects)]):
            live = (_live_after(function, index, before) - written) | read
            if len(live) > len(before[index]):  # Sets only grow, so equal sizes mean equal sets.
                before[index] = live
                grown = True
    return before


def _effect(block: BasicBlock) -> tuple[set[str], set[str]]:
    read: set[str] = set()
    written: set[str] = set()
    for ins in reversed(block.instructions):
        if ins.predicate is None:
            read -= ins.results
            written |= ins.results
        read |= ins.sources
    return read, written


def live_after(function: Function) -> list[set[str]]:
    """Return the registers that are live at the end of each basic block."""
    before = live_before(function)
    return [_live_after(function, index, before) for index in range(len(function.blocks))]


def _live_after(function: Function, index: int, before: list[set[str]]) -> set[str]:
    return set().union(*(before[next_] for next_ in successors(function, index)))


def live_registers(function: Function) -> int:
    """Return the maximum number of 32-bit registers that are live at the same time."""
    return max(live_by_block(function), default=0)


@cached_by_form
def live_by_block(function: Function) -> list[int]:
    """Return the maximum number of 32-bit registers that are live at the same time in each basic block."""
    sizes: dict[str, int] = {}

    def size(names: Iterable[str]) -> int:
        total = 0
        for name in names:
            if name not in sizes:
                kind = function.register_type(name)
                sizes[name] = 0 if kind is None else words(kind)
            total += sizes[name]
        return total

    peaks = []
    for block, after in zip(function.blocks, live_after(function), strict=True):
        live = set(after)
        most = alive = size(live)
        for ins in reversed(block.instructions):
            if ins.predicate is None and (ended := ins.results & live):
                live -= ended
                alive -= size(ended)
            if new := ins.sources - live:
                live |= new
                alive += size(new)
                most = max(most, alive)
        peaks.append(most)
    return peaks


def successors(function: Function, index: int) -> list[int]:
    """Return the indices of the basic blocks that may follow a block. The target of a branch comes first."""
    return _successors(function)[index]


@cached_by_form
def _successors(function: Function) -> list[list[int]]:
    count = len(function.blocks)
    following = []
    for block in function.blocks:
        last, after = block.instructions[-1], []
        targets = [operand.name for operand in last.operands if isinstance(operand, Symbol)]
        if last.opcode == "bra":
            after += [function.block_index[name] for name in targets if name in function.block_index]
        if last.opcode == "brx":
            after += [function.block_index[label] for name in targets for label in function.tables.get(name, ())]
        leaves = last.opcode in ("bra", "exit", "ret", "trap", "brx") and last.predicate is None
        if not leaves:
            after.append(block.index + 1)
        following.append([number for number in after if number < count])
    return following
