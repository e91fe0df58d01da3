"""Phases of a kernel: parts of its code that a warp can run through without a block-wide barrier in between.

The warps of a block are in the same phase at the same time. While some of them wait for memory, the others can only
work at what the phase has: in a kernel that loads a tile, meets at a barrier and then computes, next to nothing.
"""

from collections.abc import Mapping, Sequence

from kernrec.ptx.analysis.dependence import load_chain
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.ir.program import BasicBlock, Function


def barrier_phases(function: Function) -> list[tuple[BasicBlock, ...]]:
    """The phases of a kernel, in the order of the text. A barrier is the last instruction of its basic block."""
    phase_of = list(range(len(function.blocks)))

    def first_of(index: int) -> int:
        while phase_of[index] != index:
            index = phase_of[index]
        return index

    for block in function.blocks:
        if not ends_phase(block):
            for index in successors(function, block.index):
                low, high = sorted((first_of(block.index), first_of(index)))
                phase_of[high] = low
    phases: dict[int, list[BasicBlock]] = {}
    for block in function.blocks:
        phases.setdefault(first_of(block.index), []).append(block)
    return [tuple(blocks) for blocks in phases.values()]


def waits_for_loads(piece: Sequence[BasicBlock], ran: Mapping[int, float]) -> float:
    """How often warps waited for global memory in basic blocks that the assembler makes one of; loads wait together.

    Args:
        piece: the basic blocks.
        ran: how often a warp ran each basic block, by its index.
    """
    if not (loading := [ran.get(block.index, 0) for block in piece if load_chain(block)]):
        return 0
    return max(loading) * load_chain(as_one(piece))


def as_one(piece: Sequence[BasicBlock]) -> BasicBlock:
    """Several basic blocks as one."""
    return BasicBlock(piece[0].index, tuple(ins for block in piece for ins in block.instructions), ())


def overlapped_waits(
    function: Function, pieces: Sequence[Sequence[BasicBlock]], waited: Sequence[float], ran: Mapping[int, float]
) -> float:
    """Share of the waits for global memory beside which other warps of the block have work to do.

    A phase with a share `w` of the waits and a share `n` of the instructions has min(w, n), but for one wait of each
    time that it is run through: all warps begin together, so the first one finds all of them waiting. Without barriers
    all code is one phase, which no barrier begins, and the share is 1.

    Args:
        function: the kernel.
        pieces: its basic blocks, together where the assembler makes one of them.
        waited: how often warps waited in each piece, as `waits_for_loads` says.
        ran: how often a warp ran each basic block, by its index.
    """
    phases = barrier_phases(function)
    place = {block.index: number for number, phase in enumerate(phases) for block in phase}
    work, waits, begun, ended = ([0.0] * len(phases) for _ in range(4))
    for piece, times in zip(pieces, waited, strict=True):
        waits[place[piece[0].index]] += times
    for block in function.blocks:
        times, phase = ran.get(block.index, 0), place[block.index]
        work[phase] += times * sum(count for ins in block.instructions for _, count in classify(ins))
        if ends_phase(block):
            ended[phase] += times
            for following in {place[index] for index in successors(function, block.index)}:
                begun[following] += times
    if not (all_work := sum(work)) or not (all_waits := sum(waits)):
        return 1.0
    return sum(
        min(n / all_work, w / all_waits) * max(1.0 - passes / w, 0.0)
        for n, w, passes in zip(work, waits, map(max, begun, ended), strict=True)
        if w
    )


def ends_phase(block: BasicBlock) -> bool:
    """Whether a basic block ends with a barrier at which its warps wait."""
    last = block.instructions[-1]
    return last.opcode in ("bar", "barrier") and not {"arrive", "cluster"}.intersection(last.modifiers)
