"""Find loops that write global memory."""

from kernrec.ptx.analysis.dependence import stores_global
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.ir.program import Function


def stores_in_loops(function: Function) -> bool:
    """Return whether a loop writes global memory, as a kernel does that computes several result tiles per block."""
    following = [successors(function, index) for index in range(len(function.blocks))]
    for block in function.blocks:
        if any(stores_global(ins) for ins in block.instructions):
            # Natural-loop detection does not work: the header of a loop need not come first in the text.
            reached: set[int] = set()
            waiting = list(following[block.index])
            while waiting:
                index = waiting.pop()
                if index not in reached:
                    reached.add(index)
                    waiting += following[index]
            if block.index in reached:
                return True
    return False
