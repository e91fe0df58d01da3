"""Find computations that affect neither the event counts of a kernel nor its accesses to memory.

Most are floating-point arithmetic. The emulator skips these computations if nobody needs the kernel's results.
"""

from kernrec.ptx.analysis.def_use import DefUse, reachable
from kernrec.ptx.analysis.dependence import COMPUTES
from kernrec.ptx.ir.program import Function, Instruction, cached_by_form

_VOTES = frozenset({"shfl", "vote", "match", "redux"})
"""Opcodes whose last operand names the lanes that wait for each other."""
_ALL_COMPUTES = COMPUTES | _VOTES | {"cos", "dp2a", "dp4a", "ex2", "lg2", "rcp", "rsqrt", "sin", "sqrt", "tanh"}
_COUNTED = frozenset({"ld", "ldu", "st", "red", "atom", "ldmatrix", "stmatrix", "mma"})
"""Opcodes whose counts depend only on addresses and the guard."""
_ONLY_COUNTED = frozenset({"ld", "ldu", "mma"})
"""Opcodes that the engine can count without writing a result."""


@cached_by_form
def unneeded_results(function: Function) -> frozenset[int]:
    """Return the indices of loads and computations whose results affect no branch, no address and no count.

    The set is empty if a branch, an address or a count may depend on the contents of memory.
    """
    uses, instructions = DefUse.of(function), function.instructions
    needed: list[str] = []
    for ins in instructions:
        if ins.opcode in _COUNTED and "sp" not in ins.modifiers:
            needed += ins.addresses if ins.predicate is None else {*ins.addresses, ins.predicate[0]}
        elif not _computes(ins):
            needed += ins.sources
        elif ins.opcode in _VOTES:
            needed += ins.operands[-1].registers
    names = reachable(needed, lambda name: [s for ins in uses.writing(name) if _computes(ins) for s in ins.sources])
    writers = [ins for name in names for ins in uses.writing(name)]
    # A tensor map that the kernel itself writes affects addresses.
    writes_map = any(ins.opcode == "tensormap" or "tensormap" in ins.modifiers for ins in instructions)
    if writes_map or not all(map(_is_independent, writers)):
        return frozenset()
    return frozenset(
        place
        for place, ins in enumerate(instructions)
        if (_computes(ins) or ins.opcode in _ONLY_COUNTED) and names.isdisjoint(ins.results)
    )


def _computes(ins: Instruction) -> bool:
    return ins.opcode in _ALL_COMPUTES and "cc" not in ins.modifiers


def _is_independent(ins: Instruction) -> bool:
    """Return whether an instruction's result is independent of memory contents if its operands are."""
    return _computes(ins) or (ins.opcode in ("ld", "ldu") and not {"param", "const"}.isdisjoint(ins.modifiers))
