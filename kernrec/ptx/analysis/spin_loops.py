"""Find loops in which threads only wait for others, such as `while (*flag == 0);`.

Such a loop is one basic block that stores nothing and computes only from its own loads. The emulator runs its lanes
only if no other lane can run. So a wait takes one iteration, regardless of the order of blocks.
"""

from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import BasicBlock

_LOOKS = frozenset({"ld", "atom"})
_NEVER_PROGRESS = frozenset({"cas", "exch"})
"""Atomic operations that, in a waiting loop, do not change memory until another thread does."""
_ACTS = frozenset({"st", "red", "cp", "bar", "barrier", "mbarrier", "wgmma", "tcgen05", "call"})


def spins(block: BasicBlock) -> bool:
    """Return whether a basic block is a loop in which threads only wait for others."""
    last = block.instructions[-1]
    if last.opcode != "bra" or last.predicate is None or not isinstance(last.operands[0], Symbol):
        return False
    if last.operands[0].name not in block.labels or not any(ins.opcode in _LOOKS for ins in block.instructions):
        return False
    written: set[str] = set()
    carried: set[str] = set()  # The block reads these registers before writing them.
    for ins in block.instructions:
        if ins.opcode in _ACTS or (ins.opcode == "atom" and not _NEVER_PROGRESS & set(ins.modifiers)):
            return False
        carried |= ins.sources - written
        if ins.predicate is None:
            written |= ins.results
        else:
            carried |= ins.results
    return not carried & {name for ins in block.instructions for name in ins.results}
