"""Derive metrics of caches, DRAM and atomic units from the trace of a block's requests.

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
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernrec.ptx.execution.watched import BlockTrace, among
from kernrec.ptx.state.results import Array

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
