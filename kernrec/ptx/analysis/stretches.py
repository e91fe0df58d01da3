"""Stretches of a kernel's code that the warps of a block run through one after another.

The warps of a block begin together behind a barrier and stay close to each other, so pipes that one stretch needs idle
while the block is in another: of a kernel that loads a tile, meets at a barrier and then computes, those of loads while
it computes. Only other blocks use them meanwhile.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kernrec.ptx.analysis.barrier_phases import ends_phase
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction

LENGTH = 16
MOST = 12


def issued_by_stretch(
    function: Function, issue: Sequence[Mapping[str, int]], ran: Mapping[int, int]
) -> list[dict[str, float]]:
    """Machine instructions by class that warps issued in each stretch, in the order of the text.

    Args:
        function: without calls.
        issue: machine instructions by class of each basic block.
        ran: how often a warp ran each basic block, by its index.
    """
    executed = [block for block in function.blocks if ran.get(block.index)]
    length = max(LENGTH, -(-sum(len(block.instructions) for block in executed) // MOST))
    stretches: list[dict[str, float]] = [{}]
    room = length
    for block in executed:
        for part, share in _parts(block, issue[block.index], length):
            if room < len(part) and room < length:
                stretches.append({})
                room = length
            room -= len(part)
            for name, count in share.items():
                stretches[-1][name] = stretches[-1].get(name, 0.0) + count * ran[block.index]
        if ends_phase(block) and stretches[-1]:
            stretches.append({})
            room = length
    return [stretch for stretch in stretches if stretch]


def _parts(
    block: BasicBlock, issue: Mapping[str, int], length: int
) -> Iterator[tuple[Sequence[Instruction], dict[str, float]]]:
    """A basic block in pieces of at most so many instructions, with the share of each in its machine instructions."""
    count = -(-len(block.instructions) // length)
    if count == 1:
        yield block.instructions, dict(issue)
        return
    size = -(-len(block.instructions) // count)
    parts = [block.instructions[i : i + size] for i in range(0, len(block.instructions), size)]
    by_class = [Counter(name for ins in part for name, times in classify(ins) for _ in range(times)) for part in parts]
    for part, classes in zip(parts, by_class, strict=True):
        shares = {}
        for name, total in issue.items():
            everywhere = sum(other[name] for other in by_class)
            shares[name] = total * (classes[name] / everywhere if everywhere else len(part) / len(block.instructions))
        yield part, shares
