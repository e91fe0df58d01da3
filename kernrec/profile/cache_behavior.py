"""Derive metrics of caches, DRAM and atomic units from the traces of blocks' requests.

    reuse.<KiB>          fraction of load sectors that an L1 of this size still holds when they are requested again
    reuse.wait.<KiB>     fraction of loads (of a warp, in one run of a basic block) whose sectors are all in this L1
                         before any warp requests them in that run
    again.<KiB>          fraction of load sectors that the block accessed before, with more than this many KiB of other
                         data in between; missing if it is 0 for every size
    run.read             average length in bytes of the contiguous runs that a block reads; run.write likewise
    run.read.x, .y, .z   fraction of these runs that the next block along the axis continues; likewise for writes
    atomic.own           probability that two atomic operations of one block access the same sector
    atomic.meet          probability that two atomic operations of different blocks access the same sector
    atomic.own.512       probability that two atomic operations of one block access the same aligned 512 bytes
    atomic.meet.512      probability that two atomic operations of different blocks access the same aligned 512 bytes

Reuse is computed from reuse times. A window of w requests contains fp(w) distinct lines on average. fp(w + 1) - fp(w)
is the fraction of requests whose line was not requested within the last w (Xiang et al., "HOTL: a higher order theory
of locality", ASPLOS 2013). A sector requested again after w requests hits in an LRU cache that holds fp(w) lines of 128
bytes. The requests are in the emulator's order: each instruction runs for all warps. `reuse` ignores stores, because L1
forwards them without allocation. `again` includes them, because L2 keeps them.

A kernel may number its tiles in its own order: bands of `GROUP_M` rows, for example, column by column. Then the reads
that two neighbors share do not determine what a hundred blocks share. So a window of consecutive blocks runs, and their
reads before the first barrier are compared:

    wave.<buffer>.<n>    distinct sectors that n consecutive blocks read of a buffer, over those of one block

for n = 2, 4, 8 and so on. Only one warp of each block runs. The ratio is assumed to hold for the other warps and for
the rest of the block. If blocks read a buffer only after a barrier, for example because threads exchange addresses,
whole blocks run up to later barriers.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.dependence import data_dependences, global_pointers
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import BlockAccesses, BlockTrace, EmulationOptions, among, without_repeats
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array, EmulationError

CACHE_KIB = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""L1 sizes in KiB for which reuse is computed."""

AGAIN_KIB = tuple(1 << power for power in range(3, 15))
"""Sizes in KiB of a block's part of L2 for which repeated loads are counted."""

_SECTOR_BYTES = 32
_SECTORS_PER_LINE = 4
_LINES_PER_KIB = 8
_NEVER = np.int64(1) << 40


def reuse_times(units: Array) -> Array:
    """Return, for each request, the number of requests since the same unit was last requested; a large number for
    never.
    """
    order = np.argsort(units, kind="stable")
    times = np.full(len(units), _NEVER)
    again = np.flatnonzero(units[order[1:]] == units[order[:-1]]) + 1
    times[order[again]] = order[again] - order[again - 1]
    return times


def lines_between(sectors: Array) -> Array:
    """Return, for each request, the average number of distinct lines in a window as long as the sector's reuse time."""
    count = len(sectors)
    lines = reuse_times(sectors // _SECTORS_PER_LINE)
    # Number of requests whose line was not among the last w requests, for w = 0, 1 and so on.
    longer = count - np.cumsum(np.bincount(np.minimum(lines, count), minlength=count + 1)[: count + 1])
    footprint = np.concatenate([[0.0], np.cumsum(longer / count)])
    times = reuse_times(sectors)
    return np.where(times < _NEVER, footprint[np.minimum(times, count)], np.inf)


def reuse_metrics(trace: BlockTrace) -> Iterator[tuple[str, float]]:
    """Yield `reuse.<KiB>` and `reuse.wait.<KiB>`."""
    loads = trace.is_read
    if not loads.any():
        return
    sectors, steps = trace.sector[loads], trace.step[loads]
    distance = lines_between(sectors)
    # A warp that requests a sector just after another warp waits as long as that warp.
    _, first, place = np.unique(steps * (1 << 44) + sectors, return_index=True, return_inverse=True)
    request = steps * (1 << 20) + trace.warp[loads]
    order = np.argsort(request, kind="stable")
    starts = np.flatnonzero(np.diff(request[order], prepend=-1))
    farthest = np.maximum.reduceat(distance[first][place][order], starts)
    for size in CACHE_KIB:
        yield f"reuse.{size}", float((distance <= size * _LINES_PER_KIB).mean())
        yield f"reuse.wait.{size}", float((farthest <= size * _LINES_PER_KIB).mean())


def again_metrics(trace: BlockTrace) -> Iterator[tuple[str, float]]:
    """Yield `again.<KiB>`."""
    if not trace.is_read.any():
        return
    distance = lines_between(trace.sector)[trace.is_read]
    repeated = distance[np.isfinite(distance)]
    far = [float((repeated > size * _LINES_PER_KIB).sum() / len(distance)) for size in AGAIN_KIB]
    if far[0] > 0.0:
        yield from ((f"again.{size}", share) for size, share in zip(AGAIN_KIB, far, strict=True))


def run_metrics(trace: BlockTrace, neighbors: Mapping[str, BlockTrace]) -> Iterator[tuple[str, float]]:
    """Yield `run.read` and `run.write`, each also with the suffix `.<axis>` for each neighboring block."""
    for kind in ("read", "write"):
        own = _first_touches(trace, kind == "read")
        if len(own):
            broken = _broken(own, own)
            yield f"run.{kind}", 32.0 * len(own) / broken
            for axis, neighbor in neighbors.items():
                yield f"run.{kind}.{axis}", 1.0 - _broken(own, _first_touches(neighbor, kind == "read")) / broken


def _first_touches(trace: BlockTrace, read: bool) -> Array:
    """Return ascending numbers that combine each sector a block reads (or writes) with the step of its first access."""
    chosen = trace.is_read == read
    sectors, first = np.unique(trace.sector[chosen], return_index=True)
    step: Array = trace.step[chosen][first]
    return np.sort(step * (1 << 44) + sectors)


def _broken(own: Array, other: Array) -> int:
    """Return the number of runs of sectors in `own` that `other` does not continue at either end.

    Along a row of blocks, this is the number of runs that each block starts. Two blocks that share the last sector of a
    run also continue it.
    """
    goes_on = among(own, other) if other is not own else np.zeros(len(own), np.bool_)
    return min(int((~(among(own + side, own) | among(own + side, other)) & ~goes_on).sum()) for side in (-1, 1))


def atomic_metrics(addresses: Sequence[Array]) -> Iterator[tuple[str, float]]:
    """Yield `atomic.own` and `atomic.meet` for sectors and for 512 bytes.

    Args:
        addresses: for each block, the addresses of its atomic operations, one per lane.
    """
    blocks = [block for block in addresses if len(block)]
    for ending, size in (("", _SECTOR_BYTES), (".512", 512)) if blocks else ():
        pieces, place = np.unique(np.concatenate(blocks) // size, return_inverse=True)
        places = np.split(place, np.cumsum([len(block) for block in blocks])[:-1])
        counts = [np.bincount(block, minlength=len(pieces)) for block in places]
        yield f"atomic.own{ending}", float(np.mean([_meet(count, count) for count in counts]))
        if len(counts) > 1:
            yield f"atomic.meet{ending}", float(np.mean([_meet(counts[0], other) for other in counts[1:]]))


def _meet(first: Array, second: Array) -> float:
    return float((first / first.sum()) @ (second / second.sum()))


WINDOW = 256
"""Number of consecutive blocks that are started."""
_WARP = 32
_FEWEST = 8
_SHARED = 0.5


class FirstReads:
    """First sectors that consecutive blocks read, by buffer."""

    def __init__(self, accesses: Mapping[int, BlockAccesses]) -> None:
        """Collect the reads of blocks with ascending numbers."""
        self._reads: dict[str, list[Array]] = {}
        for place, block in enumerate(sorted(accesses)):
            for name, read in accesses[block].read.items():
                self._reads.setdefault(name, []).append(read.sector_numbers * WINDOW + place)

    @property
    def buffers(self) -> set[str]:
        """Names of the buffers that were read."""
        return set(self._reads)

    def by_window(self, count: int) -> Iterator[tuple[str, int, float]]:
        """Yield (buffer, n, distinct sectors of n consecutive blocks / distinct sectors of one block), n = 2, 4 to
        `count`.
        """
        for name, parts in self._reads.items():
            # Sort reads by sector, then by block, so that blocks of one window are adjacent.
            reads = np.sort(np.concatenate(parts))
            size = 2
            while size <= count:
                yield name, size, len(without_repeats(reads // size)) * size / len(reads)
                size *= 2


def wave_metrics(
    module: Module,
    launch: KernelLaunch,
    budget: int,
    next_is_new: Sequence[float],
    busy: int | None = None,
    wanted: Collection[str] = (),
) -> dict[str, float]:
    """Return `wave.<buffer>.<n>` of a launch. The result is empty if neighboring blocks give the same information.

    Args:
        budget: maximum number of instructions of a block.
        next_is_new: for each buffer, the fraction of a block's reads that the next block does not repeat.
        busy: number of blocks with work, from the start of the grid, or None for all.
        wanted: buffers that the metrics must cover.
    """
    blocks = math.prod(launch.grid) if busy is None else busy
    if launch.grid[0] != math.prod(launch.grid) or blocks < _FEWEST or min(next_is_new, default=1.0) >= _SHARED:
        return {}
    count = 1 << min(int(math.log2(blocks)), int(math.log2(WINDOW)))
    first = blocks // 2 // count * count
    window = range(first, first + count)
    one_warp = replace(launch, block=(min(_WARP, math.prod(launch.block)), 1, 1))
    function = inlined(module, launch.entry)
    ends = _barriers(function)
    most = 1 << (len(ends) - 1).bit_length() - 1 if len(ends) > 1 else 0  # Latest barrier up to which blocks run.
    number = most if most and _can_be_repeated(function, launch) and set(wanted) - _can_be_read(function, launch) else 0
    reads: FirstReads | None = None
    while number <= most:
        started = one_warp if number == 0 else launch
        reads = _first_reads(module, started, window, min(budget, ends[number]))
        if reads is None or not set(wanted) - reads.buffers:
            break
        number = 2 * number or 1
    return {} if reads is None else {f"wave.{name}.{n}": ratio for name, n, ratio in reads.by_window(count)}


def _first_reads(module: Module, launch: KernelLaunch, window: range, budget: int) -> FirstReads | None:
    """Return the reads of a window's blocks, each within an instruction budget, or None for clusters.

    Blocks of a cluster wait for each other, which a single warp per block cannot do.
    """
    options = EmulationOptions(batch_lanes=_WARP, count=False, budget=budget, most_blocks=len(window), watched=window)
    emulation = Emulation(module, launch, options)
    if len(emulation.whole_clusters([0])) > 1:
        return None
    for block in window:
        with contextlib.suppress(EmulationError):  # Most blocks exceed the budget, and some lack other warps.
            emulation.run([block])
    return FirstReads(emulation.accesses())


def _can_be_repeated(function: Function, launch: KernelLaunch) -> bool:
    """Return whether a block can run again, because its global writes do not change what it reads."""
    if not data_dependences(function):
        return True
    pointers, buffers = global_pointers(function), [a for a in launch.arguments if isinstance(a, str)]
    return len(set(buffers)) == len(buffers) and pointers is not None and pointers[0].isdisjoint(pointers[1])


def _can_be_read(function: Function, launch: KernelLaunch) -> set[str]:
    pointers = global_pointers(function)
    names = zip(function.parameters, launch.arguments, strict=False)
    return {name for p, name in names if isinstance(name, str) and (pointers is None or p.name in pointers[0])}


def _barriers(function: Function) -> list[int]:
    instructions = function.instructions
    barriers = [max(i, _WARP) for i, ins in enumerate(instructions) if ins.opcode in ("bar", "barrier")]
    return [*barriers, max(len(instructions), _WARP)]
