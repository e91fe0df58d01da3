"""Stretches of a kernel's code that the warps of a block run through one after another.

The warps of a block begin together behind a barrier and stay close to each other. So the pipes that one stretch needs
idle while they are in another: of a kernel that loads a tile, meets at a barrier and then computes, those of loads
while it computes, and that of f64 until the sum is ready that it rounds. Only other blocks use them meanwhile.

A stretch ends at a barrier, and where it is long.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kernrec.ptx.analysis.barrier_phases import ends_phase
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction

LENGTH = 16
"""PTX instructions of a stretch that no barrier ends: how far warps are taken to run ahead of each other. Chosen in
view of two recorded convolutions (RTX 3080, tiles in shared memory, one block to an SM, bound by f64), whose time is
the sum of what f64, DRAM and issue take within 1 to 2 %: kernels like them come out 11 to 18 % below that sum where
barriers alone part the code, and from 6 % below to 1 % above it at this length."""
MOST = 12
"""Stretches that are to be distinguished: of long code they are longer, and of many barriers some lie between two."""


def issued_by_stretch(
    function: Function, issue: Sequence[Mapping[str, int]], ran: Mapping[int, float]
) -> list[dict[str, float]]:
    """Machine instructions by class that warps issued in each stretch, in the order of the text.

    Args:
        function: without calls.
        issue: machine instructions by class of each basic block.
        ran: how often a warp ran each basic block, by its index.
    """
    executed = [block for block in function.blocks if ran.get(block.index)]
    # Stretches get longer, not more: a profile has a number for each class of instruction in each.
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
    return _merged([stretch for stretch in stretches if stretch])


def _merged(stretches: list[dict[str, float]]) -> list[dict[str, float]]:
    """Some consecutive stretches as one, where there are more than twice as many as are to be distinguished."""
    together = -(-len(stretches) // (2 * MOST))
    if together <= 1:
        return stretches
    groups = [stretches[i : i + together] for i in range(0, len(stretches), together)]
    names = [dict.fromkeys(name for stretch in group for name in stretch) for group in groups]
    return [
        {name: sum(stretch.get(name, 0.0) for stretch in group) for name in of_group}
        for group, of_group in zip(groups, names, strict=True)
    ]


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
