"""The profile of a launch from a sample of its thread blocks, for kernels whose spec says nothing of loops and probes.

The problem itself is emulated, but only a few blocks of it: one in the middle of the grid, its neighbours along each
axis, and blocks at both ends of each axis, where tiles may be partial. Each stands for the blocks at its place:

    counts of the launch = sum over places (counts of the block there * blocks at that place)

exact where a block does the same work as the others at its place, which is checked nowhere and said in every answer.
Where blocks are long, the corners are left out, then all the ends; those count as the middle.

Beside the emulator's counts a sample has: `rounds`, how often a block waits for global memory, loads in flight together
counted once; `blocks.sampled`; and for each buffer `touch.<buffer>.read`, the distinct sectors that a block reads, with
`.x`, `.y` and `.z`: the share of them that is new from one block to the next along that axis (and the same of writes);
`depends.branch`, `depends.load` and `depends.store`: instructions whose condition or address depends on data.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kernrec.compile.compiled import Compiled, Resources
from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, bind_launches, workspaces
from kernrec.kernel.spec import Config, Kernel, config_text
from kernrec.op import Problem
from kernrec.profile.fit_profile import Profile
from kernrec.profile.probe_profile import LaunchProfile, emulator_arguments, kernel_launch
from kernrec.profile.tensor_values import Tensors
from kernrec.ptx import KernelLaunch, Module, parse
from kernrec.ptx.analysis.dependence import data_dependences, load_chain
from kernrec.ptx.execution.emulator import Emulation, EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.state.touched_sectors import TouchedSectors

AXES = ("x", "y", "z")
TERMS = ("block", "rounds")
BLOCK_BUDGET = 2_000_000
"""Instructions that one block may execute before it is taken for an endless loop."""
_EDGE_STEPS = 40_000
"""Instructions worth spending on the blocks at the ends of the grid, per launch."""
_MOST_PLACES = 12

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """The blocks to emulate, by linear number. weights: how many blocks of the grid each block of `ends` stands for.

    middle: the block that stands for the rest, then its neighbours along `axes`. crosses: those of `ends` that are at
    the end of one axis only.
    """

    middle: tuple[int, ...]
    axes: tuple[int, ...]
    ends: Mapping[int, int]
    crosses: frozenset[int]
    total: int


def plan(grid: Place) -> Plan:
    """Which blocks of a grid to emulate."""
    gx, gy, gz = grid

    def number(place: tuple[int, ...]) -> int:
        return place[0] + gx * (place[1] + gy * place[2])

    middle = tuple(extent // 2 for extent in grid)
    classes = [
        {0: 1} if extent == 1 else {0: 1, 1: 1} if extent == 2 else {0: 1, extent // 2: extent - 2, extent - 1: 1}
        for extent in grid
    ]
    if len(classes[0]) * len(classes[1]) * len(classes[2]) > _MOST_PLACES:
        classes[2] = {middle[2]: gz}
    ends, crosses = {}, set()
    for x, wx in classes[0].items():
        for y, wy in classes[1].items():
            for z, wz in classes[2].items():
                off = sum(a != b for a, b in zip((x, y, z), middle, strict=True))
                if off:
                    ends[number((x, y, z))] = wx * wy * wz
                if off == 1:
                    crosses.add(number((x, y, z)))
    blocks, axes = [number(middle)], []
    for axis, extent in enumerate(grid):
        if extent > 1:
            step = 1 if middle[axis] + 1 < extent else -1
            blocks.append(number(tuple(m + step * (a == axis) for a, m in enumerate(middle))))
            axes.append(axis)
    return Plan(tuple(blocks), tuple(axes), ends, frozenset(crosses), gx * gy * gz)


def entry_name(functions: Mapping[str, object], name: str) -> str:
    """The name in the PTX of the kernel `name` of a source, which C++ may have given its parameters' types.

    Raises `KernrecError` where there is none, or several.
    """
    if name in functions:
        return name
    mangled = [known for known in functions if known.startswith("_Z") and f"{len(name)}{name}" in known]
    if len(mangled) == 1:
        return mangled[0]
    if mangled:
        raise KernrecError(f'kernel {name} is overloaded in its source; declare it extern "C"')
    raise KernrecError(f"the source has no kernel {name} (it has {', '.join(functions) or 'none'})")


def argument_mismatch(module: Module, name: str, bound: BoundLaunch) -> str | None:
    """How the arguments of a launch differ from what the kernel `name` of the PTX takes; None where they do not."""
    given = [np.asarray(a).nbytes if isinstance(a, np.generic) else 8 for a in emulator_arguments(bound)]
    taken = [parameter.size for parameter in module.functions[name].parameters]
    if given == taken:
        return None
    sizes = [", ".join(map(str, some)) or "none" for some in (taken, given)]
    return f"{bound.entry} takes arguments of {sizes[0]} bytes, given are {sizes[1]}"


def sample_config(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    sm: int,
    compiled: Compiled,
    tensors: Tensors,
    budget: int = BLOCK_BUDGET,
) -> list[LaunchProfile]:
    """Profiles of the launches of a compiled config from blocks of `problem`; outputs in `tensors` are written.

    What the tensors hold is looked at only where an address or a branch of the code depends on it.

    Raises `KernrecError` naming kernel and config when a block cannot be emulated.
    """
    module = parse(compiled.ptx)
    ptx_hash = code_hash(compiled.ptx)
    names = {launch.entry: entry_name(module.functions, launch.entry) for launch in kernel.launches}
    depends = {entry: data_dependences(inlined(module, name)) for entry, name in names.items()}
    content = tensors.filled if any(depends.values()) else tensors.blank
    buffers = dict(content)
    for scratch in workspaces(kernel, config, problem, sm):
        buffers[scratch.name] = np.zeros(scratch.bytes, np.uint8)
    constants = {symbol: content[name] for name, symbol in kernel.constants.items() if symbol in module.variables}
    found = []
    for bound in bind_launches(kernel, config, problem, sm):
        name = names[bound.entry]
        try:
            counts = sampled_counts(module, kernel_launch(bound, buffers, constants, name), budget)
        except KernrecError as error:
            raise KernrecError(f"{kernel.name} {config_text(config)}: {error}") from None
        for dependence in depends[bound.entry]:
            metric = f"depends.{dependence.what}"
            counts[metric] = counts.get(metric, 0.0) + 1.0
        metrics = tuple(sorted(counts))
        values = np.array([[counts[metric], 0.0] for metric in metrics])
        profile = Profile(metrics, TERMS, values)
        resources: Resources = compiled.resources[name]
        found.append(LaunchProfile(bound.index, bound.entry, resources, profile, ptx_hash, compiled.compiler))
    return found


def code_hash(ptx: str) -> str:
    """16 hex digits of PTX; its header (compiler, target) does not count."""
    return hashlib.sha256(ptx.partition(".address_size")[2].encode()).hexdigest()[:16]


def sampled_counts(module: Module, launch: KernelLaunch, budget: int = BLOCK_BUDGET) -> dict[str, float]:
    """Mean counts of a block of a launch, by metric; see this module's description."""
    x, y, z = launch.grid
    chosen = plan((x, y, z))
    # On a small grid a neighbour of the middle is an end of the grid, and counts as that.
    inner = [block for block in chosen.middle if block not in chosen.ends]
    touched = TouchedSectors(chosen.middle)
    options = EmulationOptions(len(inner), budget=budget, touched=touched)
    emulation = Emulation(module, launch, options)
    warps = -(-math.prod(launch.block) // 32)
    first = emulation.run(inner)
    rounds = _rounds(emulation) / (warps * len(inner))
    middle = {metric: value / len(inner) for metric, value in first.items()}
    steps = middle["issue"] / warps
    ends = dict(chosen.ends)
    for kept in (chosen.crosses, frozenset()):
        if len(ends) * steps > _EDGE_STEPS:
            ends = {block: weight for block, weight in ends.items() if block in kept or block in chosen.middle}
    totals = {metric: value * (chosen.total - sum(ends.values())) for metric, value in middle.items()}
    for weight in dict.fromkeys(ends.values()):  # those that stand for as many are run together: it takes as long
        for metric, value in emulation.run([block for block, stands in ends.items() if stands == weight]).items():
            totals[metric] = totals.get(metric, 0.0) + value * weight
    extra = {"rounds": rounds, "blocks.sampled": float(len(inner) + len(ends))}
    extra |= dict(_touch_metrics(touched, chosen, written=False))
    extra |= dict(_touch_metrics(touched, chosen, written=True))
    return {metric: value / chosen.total for metric, value in totals.items()} | extra


def _rounds(emulation: Emulation) -> float:
    """How often warps waited for global memory so far."""
    blocks = emulation.function.blocks
    return float(sum(count * load_chain(blocks[index]) for index, count in emulation.warps_by_block().items()))


def _touch_metrics(touched: TouchedSectors, chosen: Plan, written: bool) -> Iterator[tuple[str, float]]:
    what = "write" if written else "read"
    for buffer, marks in touched.by_block(written).items():
        own = marks[chosen.middle[0]]
        count = int(own.sum())
        yield f"touch.{buffer}.{what}", float(count)
        for axis, neighbour in zip(chosen.axes, chosen.middle[1:], strict=True):
            other = marks[neighbour]
            new = int((other & ~own).sum()) / max(int(other.sum()), 1)
            yield f"touch.{buffer}.{what}.{AXES[axis]}", new
