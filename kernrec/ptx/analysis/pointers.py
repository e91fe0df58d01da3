"""Find the kernel parameters that the addresses of its global memory accesses are derived from."""

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.analysis.dependence import COMPUTES
from kernrec.ptx.ir.operand import Address, Symbol, Texel
from kernrec.ptx.ir.program import Function, Instruction

_READ = frozenset({"ld", "ldu", "cp"})
_WRITTEN = frozenset({"st", "red", "atom"})
_ELSEWHERE = frozenset({"shared", "local", "param", "const", "argument"})
_POINTER_BYTES = 8


def global_pointers(function: Function) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return (pointers that are read, pointers that are written) as parameter and variable names; None if some are
    unknown.

    An atomic operation whose result is unused counts as a write. The function caches the result.
    """
    if global_pointers not in function.memo:
        function.memo[global_pointers] = _global_pointers(function)
    pointers: tuple[frozenset[str], frozenset[str]] | None = function.memo[global_pointers]
    return pointers


def _global_pointers(function: Function) -> tuple[frozenset[str], frozenset[str]] | None:
    readers = DefUse.of(function).readers
    read, written = set[str](), set[str]()
    for ins in function.instructions:
        spaces = {mark.partition("::")[0] for mark in ins.modifiers}
        accesses = any(isinstance(operand, Address | Texel) for operand in ins.operands)
        if not accesses or ("global" not in spaces and spaces & _ELSEWHERE):
            continue
        pointers = pointers_of(function, ins)
        if pointers is None or "global" not in spaces or ins.opcode not in _READ | _WRITTEN:
            return None
        if ins.opcode == "atom" and any(readers.get(name) for name in ins.results):
            read |= pointers
        (written if ins.opcode in _WRITTEN else read).update(pointers)
    return frozenset(read), frozenset(written)


def pointers_of(function: Function, ins: Instruction) -> set[str] | None:
    """Return the parameters and variables that an instruction's addresses derive from; None if some are unknown."""
    writers = DefUse.of(function).writers
    sizes = {parameter.name: parameter.size for parameter in function.parameters}
    pointers = _symbols(ins)
    waiting, seen = list(ins.addresses), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for place in writers.get(name, ()):
            writer = function.instructions[place]
            if writer.opcode == "ld" and "param" in writer.modifiers:
                symbols = [
                    o.base.name for o in writer.operands if isinstance(o, Address) and isinstance(o.base, Symbol)
                ]
                if len(symbols) != 1 or symbols[0] not in sizes:
                    return None
                pointers |= {symbol for symbol in symbols if sizes[symbol] >= _POINTER_BYTES}
            elif writer.opcode in COMPUTES:
                waiting += writer.sources
                pointers |= {operand.name for operand in writer.operands if isinstance(operand, Symbol)}
            else:
                return None
    return pointers


def _symbols(ins: Instruction) -> set[str]:
    return {o.base.name for o in ins.operands if isinstance(o, Address) and isinstance(o.base, Symbol)}
