"""Divide a kernel's code into stretches that the warps of a block run one after another.

The warps of a block start together after a barrier and stay close. So a pipe that only one stretch uses is idle while
the warps run another, except for other blocks on the SM. For example, a kernel loads a tile, waits at a barrier and
then computes: its load pipes are idle during the computation. A stretch ends at a barrier or at its maximum length.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kernrec.ptx.analysis.barrier_phases import ends_phase
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction

LENGTH = 16
"""Maximum PTX instructions of a stretch: the distance that warps are assumed to run ahead of each other. It was fitted
to two recorded convolutions (RTX 3080, tiles in shared memory, one block per SM, bound by f64). Their time is the sum
of the times of f64, DRAM and issue within 1 to 2 %. Estimates are 6 % below to 1 % above that sum at this length, and
11 to 18 % below it if only barriers end a stretch.
"""
MOST = 12
"""Approximate number of stretches per kernel; in long code, stretches are longer and may span several barriers."""


def issued_by_stretch(
    function: Function, issue: Sequence[Mapping[str, float]], ran: Mapping[int, float]
) -> list[dict[str, float]]:
    """Return the machine instructions by class that warps issued in each stretch, in text order.

    Args:
        function: function without calls.
        issue: machine instructions by class of each basic block.
        ran: executions of each basic block by a warp, by block index.
    """
    executed = [block for block in function.blocks if ran.get(block.index)]
    # Lengthen stretches instead of adding more, because a profile stores one number per class and stretch.
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
    """Merge neighboring stretches if there are more than twice `MOST`."""
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
    block: BasicBlock, issue: Mapping[str, float], length: int
) -> Iterator[tuple[Sequence[Instruction], dict[str, float]]]:
    """Yield a basic block in pieces of at most `length` instructions, with the fraction of its machine instructions."""
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
