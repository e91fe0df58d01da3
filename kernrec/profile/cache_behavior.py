"""Compute metrics of caches, DRAM and atomic units from the memory requests of emulated thread blocks.

    reuse.<KiB>          fraction of sector loads that hit in an L1 of this size
    reuse.wait.<KiB>     fraction of warp loads whose sectors all hit in this L1. Warps that load a sector in the same
                         run of a basic block share one hit or miss
    again.<KiB>          fraction of sector loads that repeat an earlier access of the block. Between both accesses, the
                         block accessed more than <KiB> of other data. Missing if 0 for every size
    run.read, run.write  average length in bytes of the contiguous runs that a block reads or writes
    run.read.x, .y, .z   fraction of read runs that the next block along this axis continues. For writes: run.write.x
    atomic.own           probability that two atomic operations of one block access the same sector
    atomic.meet          probability that two atomic operations of different blocks access the same sector
    atomic.own.512       like atomic.own, for the same aligned 512 bytes
    atomic.meet.512      like atomic.meet, for the same aligned 512 bytes
    wave.<buffer>.<n>    distinct sectors of a buffer that n = 2, 4, 8, ... consecutive blocks read before their first
                         barrier, divided by the number for one block

Hits follow from reuse times: the number of requests from one request of a sector to the next. fp(w) is the average
number of distinct cache lines in w consecutive requests. fp(w + 1) - fp(w) is the fraction of requests whose line was
not among the last w (Xiang et al., "HOTL: a higher order theory of locality", ASPLOS 2013). A request with reuse time w
hits in an LRU cache of fp(w) lines of 128 bytes. `reuse` ignores stores, because L1 forwards stores without allocating
a line. `again` includes stores, because L2 keeps stored data.

`wave` exists because a kernel may assign tiles to blocks in its own order, for example in bands of `GROUP_M` rows. Only
one warp of each block is emulated, and only up to the first barrier: the rest of the block is assumed to have the same
ratio. If blocks read a buffer only after a barrier, all warps are emulated up to a later barrier.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.ptx import KernelLaunch, Module
from kernrec.ptx.analysis.dependence import data_dependences, global_pointers
from kernrec.ptx.execution.emulator import Emulation
from kernrec.ptx.execution.watched import BlockTrace, EmulationOptions
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.results import Array
from kernrec.util.engine import module as engine

CACHE_KIB = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Sizes of L1 in KiB for `reuse` metrics."""

AGAIN_KIB = tuple(1 << power for power in range(3, 15))
"""Sizes in KiB of a block's part of L2, for `again` metrics."""

_SECTOR_BYTES = 32
_LINES_PER_KIB = 8


def reuse_metrics(trace: BlockTrace) -> Iterator[tuple[str, float]]:
    """Yield the `reuse.*` and `again.*` metrics of a block."""
    loads = trace.only(is_read=True)
    if not (count := len(loads.sector)):
        return
    lines = [float(size * _LINES_PER_KIB) for size in (*CACHE_KIB, *AGAIN_KIB)] + [math.inf]
    hits, warp_hits, warps = engine().reuse(loads.step, loads.warp, loads.sector, loads.is_read, lines)
    for size, requests, steps in zip(CACHE_KIB, hits, warp_hits, strict=False):
        yield f"reuse.{size}", requests / count
        yield f"reuse.wait.{size}", steps / warps
    if loads is not trace:
        hits = engine().reuse(trace.step, trace.warp, trace.sector, trace.is_read, lines)[0]
    *hits, repeats = hits[len(CACHE_KIB) :]
    if repeats > hits[0]:
        yield from ((f"again.{size}", (repeats - hit) / count) for size, hit in zip(AGAIN_KIB, hits, strict=True))


def run_metrics(trace: BlockTrace, neighbors: Mapping[str, BlockTrace]) -> Iterator[tuple[str, float]]:
    """Yield the `run.*` metrics of a block. `neighbors` has the requests of the next block along each axis."""
    for kind in ("read", "write"):
        own = _first_touches(trace, kind == "read")
        if len(own):
            # A run is a series of adjacent sectors. `first` and `last` mark the first and last sector of each run.
            apart = np.diff(own) != 1
            first, last = np.append(True, apart), np.append(apart, True)
            runs = int(first.sum())
            yield f"run.{kind}", 32.0 * len(own) / runs
            for axis, neighbor in neighbors.items():
                other = _first_touches(neighbor, kind == "read")
                ends_of_runs = ((-1, own[first]), (1, own[last]))
                broken = min(_not_continued(ends, side, other) for side, ends in ends_of_runs)
                yield f"run.{kind}.{axis}", 1.0 - broken / runs


def _first_touches(trace: BlockTrace, read: bool) -> Array:
    """Return the sectors that a block reads (or writes), each combined with the time of its first request."""
    chosen = trace.only(read)
    first = engine().first_requests(chosen.sector)
    return np.sort(chosen.step[first] * (1 << 44) + chosen.sector[first])


def _not_continued(ends: Array, side: int, other: Array) -> int:
    """Return the number of runs that `other` does not continue.

    The sectors `other` continue a run if they contain its outermost sector or the adjacent sector beyond.

    Args:
        ends: outermost sector of each run.
        side: 1 if `ends` are the last sectors of the runs, and -1 if they are the first.
        other: sectors that another block requests, ascending.
    """
    return int((~(_among(ends, other) | _among(ends + side, other))).sum())


def _among(values: Array, ascending: Array) -> Array:
    """Return for each value of a sorted array whether the sorted array `ascending` contains it."""
    present = np.zeros(len(values), np.bool_)
    if len(values) and len(ascending):
        # Search only the range that both arrays share.
        low, high = np.searchsorted(values, (ascending[0], ascending[-1] + 1))
        shared = values[low:high]
        place = np.searchsorted(ascending, shared)
        present[low:high] = ascending[place] == shared
    return present


def atomic_metrics(addresses: Sequence[Array]) -> Iterator[tuple[str, float]]:
    """Yield the `atomic.*` metrics. `addresses` has an array for each block, with one address per lane."""
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
"""Maximum number of consecutive blocks whose reads are compared."""
_WARP = 32
_FEWEST = 8
_SHARED = 0.5


def wave_metrics(
    module: Module,
    launch: KernelLaunch,
    options: EmulationOptions,
    next_is_new: Sequence[float],
    busy: int | None = None,
    wanted: Collection[str] = (),
) -> dict[str, float]:
    """Return the metrics `wave.<buffer>.<n>`, or none if the grid is small or neighboring blocks share few reads.

    Args:
        options: options of the sample's emulation. `budget` is the maximum number of PTX instructions of a block.
        next_is_new: fraction of a block's reads that the next block does not repeat, by buffer.
        busy: number of blocks with work at the start of the grid, or None for all blocks.
        wanted: buffers that the metrics must cover.
    """
    blocks = math.prod(launch.grid) if busy is None else busy
    if launch.grid[0] != math.prod(launch.grid) or blocks < _FEWEST or min(next_is_new, default=1.0) >= _SHARED:
        return {}
    count = 1 << min(int(math.log2(blocks)), int(math.log2(WINDOW)))
    first = blocks // 2 // count * count
    window = range(first, first + count)
    options = replace(options, batch_lanes=_WARP, count=False, lowering=None, most_blocks=count, watched=window)
    one_warp = replace(launch, block=(min(_WARP, math.prod(launch.block)), 1, 1))
    function = inlined(module, launch.entry)
    ends = _barriers(function)

    def can_never_suffice() -> bool:
        """Return whether no run can read all `wanted` buffers, so that only the longest run is needed."""
        return _can_be_repeated(function, launch) and not _can_be_read(function, launch).issuperset(wanted)

    # The analysis is slow, so do it only if the first run does not suffice. If the kernel has atomics, do it now: the
    # engine counts them as reads, so the first run may seem to suffice.
    is_long = any(ins.opcode in ("atom", "red") for ins in function.instructions) and can_never_suffice()
    # Emulate up to barrier 0, then 1, 2, 4, ... until all `wanted` buffers were read, but at most up to barrier `most`.
    most = 1 << (len(ends) - 1).bit_length() - 1 if len(ends) > 1 else 0
    reads: dict[str, list[int]] | None = None
    for number in (0, *(1 << power for power in range(most.bit_length()))):
        is_long = is_long or (number == 1 and can_never_suffice())
        if is_long and number < most:
            continue
        started = one_warp if number == 0 else launch
        reads = _first_reads(module, started, replace(options, budget=min(options.budget, ends[number])))
        if reads is None or not set(wanted) - reads.keys():
            break
    return {
        f"wave.{name}.{1 << n}": (total << n) / totals[0]
        for name, totals in (reads or {}).items()
        for n, total in enumerate(totals)
        if n
    }


def _first_reads(module: Module, launch: KernelLaunch, options: EmulationOptions) -> dict[str, list[int]] | None:
    """Emulate the start of each watched block. Return `Emulation.shared_reads()`, or None for clusters."""
    emulation = Emulation(module, launch, options)
    if len(emulation.whole_clusters([0])) > 1:
        return None
    # Ignore errors: most blocks exceed the budget, and some wait for warps that do not run here.
    emulation.run_each(options.watched)
    return emulation.shared_reads()


def _can_be_repeated(function: Function, launch: KernelLaunch) -> bool:
    """Return whether a block can be emulated twice without changing its own inputs."""
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
