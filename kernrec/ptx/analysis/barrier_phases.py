"""Divide a kernel into phases, which are the parts of its code between block-wide barriers.

All warps of a block are in the same phase, so waits for memory only overlap with code of that phase.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernrec.ptx.analysis.dependence import load_depths
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.analysis.liveness import successors
from kernrec.ptx.ir.program import BasicBlock, Function, Instruction, cached_analysis, cached_by_form

Array = np.ndarray[Any, Any]


@cached_analysis
def barrier_phases(function: Function) -> list[tuple[BasicBlock, ...]]:
    """Return the phases of a kernel in text order. Each phase is a list of basic blocks."""
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


def grouped_loads(piece: Sequence[BasicBlock]) -> list[list[int]]:
    """Group loads from global memory by depth in a chain of dependent loads, and return the basic blocks of each group.

    Args:
        piece: basic blocks that the assembler merges into one piece of machine code.
    """
    guarded = [(block.index, ins) for block, instructions in _guarded(piece) for ins in instructions]
    groups: dict[int, list[int]] = {}
    for place, depth in load_depths(ins for _, ins in guarded):
        groups.setdefault(depth, []).append(guarded[place][0])
    return list(groups.values())


def waits_for_loads(groups: Sequence[Sequence[int]], runs: Array) -> Array:
    """Return how often each warp waits for global memory. The loads of a group share a wait.

    Args:
        groups: `grouped_loads` of a piece of machine code.
        runs: number of executions of each basic block by each warp, an array of shape (basic blocks, warps).
    """
    total: Array = sum((runs[blocks].max(axis=0) for blocks in groups), np.zeros(runs.shape[1]))
    return total


def of_slowest_warps(function: Function, pieces: Sequence[Sequence[BasicBlock]], by_warp: Sequence[Array]) -> float:
    """Return the cost of the slowest warp in each phase, summed over all phases.

    Args:
        pieces: basic blocks of the kernel, in groups that the assembler merges into one piece of machine code.
        by_warp: cost (clock cycles or waits) of each warp for each piece, an array of shape (warps,) per piece.
    """
    place = {block.index: number for number, phase in enumerate(barrier_phases(function)) for block in phase}
    phases: dict[int, Array] = {}
    for piece, each in zip(pieces, by_warp, strict=True):
        number = place[piece[0].index]
        phases[number] = phases[number] + each if number in phases else each
    return float(sum(each.max() for each in phases.values()))


def as_one(piece: Sequence[BasicBlock]) -> BasicBlock:
    return BasicBlock(piece[0].index, tuple(ins for _, instructions in _guarded(piece) for ins in instructions), ())


def _guarded(piece: Sequence[BasicBlock]) -> Iterator[tuple[BasicBlock, Sequence[Instruction]]]:
    """Yield each basic block and its instructions. Instructions that a branch skips get the branch's predicate."""
    guard = None
    for block in piece:
        yield block, block.instructions if guard is None else [_with(guard, ins) for ins in block.instructions]
        last = block.instructions[-1]
        guard = last.predicate if guard is None and last.opcode == "bra" else None


def _with(guard: tuple[str, bool], ins: Instruction) -> Instruction:
    return replace(ins, predicate=guard) if ins.predicate is None else ins


def overlapped_waits(
    function: Function, pieces: Sequence[Sequence[BasicBlock]], waited: Sequence[float], ran: Mapping[int, float]
) -> float:
    """Return the fraction of a kernel's waits for global memory that overlap with work of other warps of the block.

    Each phase adds min(w, n), where w is its fraction of all waits and n its fraction of all machine instructions. The
    first wait of a phase does not overlap, because all warps reach it together. Without barriers, the result is 1.

    Args:
        pieces: groups of basic blocks that the assembler merges into one piece of machine code.
        waited: number of waits of all warps, for each piece.
        ran: number of executions of each basic block by a warp, keyed by the block's index.
    """
    phases = barrier_phases(function)
    place = {block.index: number for number, phase in enumerate(phases) for block in phase}
    work, waits, begun, ended = ([0.0] * len(phases) for _ in range(4))
    for piece, times in zip(pieces, waited, strict=True):
        waits[place[piece[0].index]] += times
    for block, issued in zip(function.blocks, _issued(function), strict=True):
        times, phase = ran.get(block.index, 0), place[block.index]
        work[phase] += times * issued
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


@cached_by_form
def _issued(function: Function) -> list[int]:
    return [sum(count for ins in block.instructions for _, count in classify(ins)) for block in function.blocks]


def ends_phase(block: BasicBlock) -> bool:
    last = block.instructions[-1]
    return last.opcode in ("bar", "barrier") and not {"arrive", "cluster"}.intersection(last.modifiers)


LENGTH = 16
"""Number of consecutive PTX instructions in which the work of all warps is assumed to overlap.

The value was fitted to two convolutions on an RTX 3080. The estimates are 6 % below to 1 % above the measured time.
"""
MOST = 12
"""Approximate maximum number of parts into which a kernel's code is split. Long code has parts longer than `LENGTH`."""


def issued_by_stretch(
    function: Function, issue: Sequence[Mapping[str, float]], ran: Mapping[int, float]
) -> list[dict[str, float]]:
    """Return the machine instructions that warps issue in each part of the code, in text order.

    Args:
        function: function without calls.
        issue: for each basic block, the machine instructions of one execution, keyed by class.
        ran: number of executions of each basic block by a warp, keyed by the block's index.
    """
    executed = [block for block in function.blocks if ran.get(block.index)]
    # A profile stores a number for each class and part, so divide long code into longer parts.
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
    """Split a basic block into parts of at most `length` PTX instructions. Yield (part, machine instructions) pairs."""
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
