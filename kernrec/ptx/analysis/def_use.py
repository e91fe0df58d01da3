"""Locate the writes and reads of each register of a function."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from kernrec.ptx.analysis.liveness import live_after
from kernrec.ptx.ir.operand import Register, Symbol, with_leaves
from kernrec.ptx.ir.program import Function, Instruction, accumulates, cached_by_form

T = TypeVar("T")


class _Places(dict[str, list[int]]):
    """Indices of instructions by register. Looking up a missing register adds nothing, because threads share them."""

    def __missing__(self, name: str) -> list[int]:
        return []


@dataclass
class DefUse:
    """Instructions that write and read each register of a function."""

    instructions: list[Instruction]
    block_of: list[int]
    """Index of the basic block of each instruction."""
    writers: _Places
    readers: _Places
    """Indices of the instructions that use each register as an operand, in an address or as a predicate."""

    @staticmethod
    def of(function: Function) -> "DefUse":
        """Find the writes and reads in a function, which must not contain calls."""
        return DefUse(function.instructions, *_writes_and_reads(function))

    def writing(self, name: str) -> list[Instruction]:
        """Return the instructions that write a register."""
        return [self.instructions[place] for place in self.writers.get(name, ())]

    def writer(self, name: str) -> int | None:
        """Return the index of the only instruction that writes a register, or None for several writers or none."""
        places = self.writers.get(name, ())
        return places[0] if len(places) == 1 else None

    def only_reader(self, name: str) -> int | None:
        """Return the index of the only instruction that reads a register, or None for several readers or none."""
        places = self.readers.get(name, ())
        return places[0] if len(places) == 1 else None


@cached_by_form
def _writes_and_reads(function: Function) -> tuple[list[int], _Places, _Places]:
    writers, readers = _Places(), _Places()
    for position, ins in enumerate(function.instructions):
        for name in ins.results:
            writers.setdefault(name, []).append(position)
        for name in ins.sources:
            readers.setdefault(name, []).append(position)
    return [block.index for block in function.blocks for _ in block.instructions], writers, readers


def reachable(start: Iterable[T], following: Callable[[T], Iterable[T]]) -> set[T]:
    """Return all items that can be reached from `start`. `following` returns the successors of an item."""
    reached: set[T] = set()
    waiting = list(start)
    while waiting:
        item = waiting.pop()
        if item not in reached:
            reached.add(item)
            waiting += following(item)
    return reached


def with_local_names(function: Function) -> Function:
    """Give each value that only one basic block uses a unique register name.

    Inline assembly and unrolled code reuse a few names, which hides independent values.
    """
    written: set[str] = set()
    several: set[str] = set()
    for ins in function.instructions:
        several |= written & ins.results
        written |= ins.results
    sums = {name for ins in function.instructions if accumulates(ins) for name in ins.results}
    often = {name for name in several - sums if function.register_type(name) is not None}
    if not often:
        return function
    registers = dict(function.registers)
    instructions: list[Instruction] = []
    for block, after in zip(function.blocks, live_after(function), strict=True):
        writes = ((i, ins) for i, ins in enumerate(block.instructions) if ins.predicate is None)
        last = {name: i for i, ins in writes for name in ins.results & often}
        names: dict[str, str] = {}
        for i, ins in enumerate(block.instructions):
            before = dict(names) if names else names
            for name in ins.results & often:
                if ins.predicate is not None:
                    continue
                names.pop(name, None)
                if name not in after or last[name] != i:
                    new = f"{name}'{len(instructions)}"
                    registers[new] = function.register_type(name) or ""
                    names[name] = new
            instructions.append(_renamed(ins, before, names) if before or names else ins)
    return replace(function, registers=registers, instructions=instructions)


def _renamed(ins: Instruction, read: Mapping[str, str], written: Mapping[str, str]) -> Instruction:
    def renamed(names: Mapping[str, str]) -> Callable[[Register | Symbol], Register | Symbol]:
        return lambda leaf: Register(names.get(leaf.name, leaf.name)) if isinstance(leaf, Register) else leaf

    new = [renamed(written if i == 0 and ins.results else read) for i in range(len(ins.operands))]
    operands = tuple(with_leaves(operand, each) for operand, each in zip(ins.operands, new, strict=True))
    predicate = None if ins.predicate is None else (read.get(ins.predicate[0], ins.predicate[0]), ins.predicate[1])
    return replace(ins, operands=operands, predicate=predicate)
