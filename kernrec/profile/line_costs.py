"""Compute the instructions and memory accesses of each source line of a kernel by emulating a few blocks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.issue_cost import classify
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import CheckedMemory, EmulationOptions
from kernrec.ptx.ir.program import Instruction, Place

SAMPLED_BLOCKS = 8
"""Number of emulated blocks, from the middle of the grid."""
_BUDGET = 2_000_000
SPACES = ("global", "shared", "local")


@dataclass
class Access:
    """Accesses of a source line to global, shared or local memory."""

    space: str
    what: str
    """`read`, `write` or `atomic`."""
    requests: int = 0
    lanes: int = 0
    bytes: int = 0
    moved: int = 0
    """Number of sectors, or of wavefronts of shared memory."""
    ideal: int = 0
    """Wavefronts of shared memory without bank conflicts."""
    widest: int = 0
    """Bytes of the widest access by one thread."""
    count: int = 0
    """Number of the line's PTX instructions with accesses of this kind."""


@dataclass
class LineCost:
    """Cost of a source line, summed over the emulated blocks."""

    place: Place
    issue: dict[str, float] = field(default_factory=dict)
    """Machine instructions that warps issued, by class."""
    active: float = 0.0
    """Machine instructions, weighted by the fraction of lanes that are active."""
    accesses: dict[tuple[str, str], Access] = field(default_factory=dict)
    division: float = 0.0
    """Machine instructions for integer divisions and remainders."""
    f64: float = 0.0
    """Machine instructions for f64 arithmetic."""

    @property
    def issued(self) -> float:
        return sum(self.issue.values())


def line_costs(module: Module, launch: KernelLaunch, place_of: Callable[[int], Place]) -> list[LineCost]:
    """Emulate a few blocks, and return the cost of each source line, most instructions first.

    Args:
        launch: launch to emulate. The contents of its buffers change.
        place_of: function that maps a PTX line to a source line, with line number 0 if unknown.
    """
    total = prod(launch.grid)
    start = max(0, total // 2 - SAMPLED_BLOCKS // 2)
    numbers = range(start, min(total, start + SAMPLED_BLOCKS))
    checked = CheckedMemory(shared=False, global_races=False, values=False)
    options = EmulationOptions(len(numbers), budget=_BUDGET, checked=checked)
    emulation = Emulation(module, launch, options)
    emulation.run(numbers)
    sites = emulation.sites
    costs: dict[Place, LineCost] = {}
    number = 0
    for block, warps, lanes in emulation.activity():
        for ins in block.instructions:
            counts = sites[number] if number < len(sites) else None
            number += 1
            place = place_of(ins.line)
            if not place.line or not warps:
                continue
            cost = costs.setdefault(place, LineCost(place))
            for name, amount in classify(ins):
                cost.issue[name] = cost.issue.get(name, 0.0) + amount * warps
                cost.active += amount * lanes / 32
                if ins.opcode in ("div", "rem") and ins.modifiers[-1][0] in "us":
                    cost.division += amount * warps
                if name == "f64" or (ins.opcode == "cvt" and "f64" in ins.modifiers):
                    cost.f64 += amount * warps
            if counts is not None and counts.requests and (space := _space(ins)):
                what = "atomic" if counts.atomics else "write" if ins.opcode == "st" else "read"
                access = cost.accesses.setdefault((space, what), Access(space, what))
                access.requests += counts.requests
                access.lanes += counts.lanes
                access.bytes += counts.bytes
                # In local memory, the words of a warp's lanes are adjacent, so an access moves only full sectors.
                access.moved += counts.bytes // 32 if space == "local" else counts.moved
                access.ideal += counts.ideal
                access.widest = max(access.widest, counts.bytes // counts.lanes)
                access.count += 1
    return sorted(costs.values(), key=lambda cost: -cost.issued)


def _space(ins: Instruction) -> str:
    if {"param", "argument", "const"} & set(ins.modifiers):
        return ""
    return next((space for space in SPACES if space in ins.modifiers), "global")
