"""Which registers may differ between the threads of a warp, and which branches may split it.

A register is divergent if it follows from the number of the thread, from a load whose address is divergent, from an
atomic operation or an exchange within the warp, or if it is written under a divergent branch and elsewhere as well, or
in a loop that threads leave at different times and read behind it. Code between a forward branch and its target, or
between the target of a backward branch and the branch, counts as under the branch: compilers lay code out that way.
"""

from kernrec.ptx.analysis.def_use import DefUse
from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import Function

_VARYING = ("%tid", "%laneid", "%lanemask", "%clock", "%globaltimer")
_MIXING = frozenset({"atom", "shfl", "ldmatrix", "mma", "wgmma", "tcgen05", "movmatrix"})


def divergent_registers(function: Function, def_use: DefUse) -> set[str]:
    """The registers that may differ between the threads of a warp."""
    instructions = function.instructions
    divergent: set[str] = set()
    regions: set[int] = set()  # divergent branches that were spread over the code below them
    work = [
        position
        for position, ins in enumerate(instructions)
        if ins.opcode in _MIXING or any(name.startswith(_VARYING) for name in ins.sources)
    ]
    while work:
        position = work.pop()
        ins = instructions[position]
        names = ins.results - divergent
        divergent |= names
        for name in names:
            work += def_use.readers.get(name, ())
        if ins.opcode == "bra" and position not in regions:
            regions.add(position)
            region = _under(function, position)
            backward = region.stop == position
            for inside in region:
                for name in instructions[inside].results:
                    # Threads disagree where some wrote a register and others did not, or left a loop earlier.
                    places = def_use.readers[name] if backward else def_use.writers[name]
                    if name not in divergent and any(place not in region for place in places):
                        divergent.add(name)
                        work += def_use.readers.get(name, ())
    return divergent


def _under(function: Function, position: int) -> range:
    """The instructions that only some threads run if a branch parts them."""
    label = function.instructions[position].operands[0]
    target = function.labels.get(label.name, position) if isinstance(label, Symbol) else position
    return range(target, position) if target <= position else range(position + 1, target)
