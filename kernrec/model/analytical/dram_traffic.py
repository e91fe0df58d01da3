"""Estimate the bytes that a launch moves between L2 and DRAM, from the order in which its blocks visit the tiles.

Blocks that run at the same time (a wave) load each tile only once, because they share L2. A later wave finds a tensor
in L2 if the launch's working set fits in L2.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray | float


def covered(order: Sequence[tuple[str, Array]], wave: Array) -> list[Array]:
    """Return the number of distinct tiles along each axis that `wave` consecutive blocks visit. `order` is (axis,
    extent) pairs, fastest-varying axis first."""
    covers: list[Array] = []
    for _, extent in order:
        covers.append(np.minimum(wave, extent))
        wave = np.maximum(wave / extent, 1.0)
    return covers


class TensorAccess:
    """Tensors that a launch reads and writes, and the axes of the grid that select their tiles."""

    def __init__(
        self,
        order: Sequence[str],
        reads: Mapping[str, Collection[str]],
        writes: Iterable[str],
        scratch: Collection[str] = (),
    ) -> None:
        """Store the values of `Launch.order`, `Launch.reads` and `Launch.writes` in a kernel's spec. `scratch` contains
        the names of temporary tensors, which reach DRAM only if the tensors do not fit in L2."""
        self.tensors = tuple(dict.fromkeys((*reads, *writes)))
        """Names of all tensors. The engine refers to a tensor by its index."""
        number = {name: place for place, name in enumerate(self.tensors)}
        order = order or ("",)
        self.steps = len(order)
        axes = [[axis in selecting for axis in order] for selecting in reads.values()]
        self.in_engine = query.Access(
            np.array([number[name] for name in reads], dtype=np.int64),
            np.array(axes, dtype=np.uint8).reshape(len(axes), len(order)),
            np.array([number[name] for name in writes], dtype=np.int64),
            np.array([name in scratch for name in self.tensors], dtype=np.uint8),
        )


@dataclass(frozen=True)
class Footprint:
    """Bytes of one tensor that blocks access in each of C launches, estimated from a sample of blocks."""

    own_bytes: Array
    """Distinct bytes of the tensor that one block accesses."""
    fresh: tuple[Array, Array, Array]
    """Fraction of a block's bytes that its neighbor along x, y or z does not access."""
    size_bytes: Array
    written: bool
    scratch: bool = False
    in_window: tuple[Array, ...] = ()
    """Distinct bytes that 2, 4, 8, ... consecutive blocks access together, as multiples of `own_bytes`. A value of 0
    means that these blocks were not sampled."""
    stored_bytes: Array = np.inf
    """Bytes that a block's stores write, or infinity if the stores are assumed to fill whole sectors."""

    def filled(self, whole: Array, blocks: Array) -> Array:
        """Return the bytes that L2 reads from DRAM to complete partly written sectors. `whole` is the distinct bytes of
        all written sectors."""
        # L2 exchanges only whole sectors with DRAM (R. Crovella,
        # forums.developer.nvidia.com/t/how-do-gpus-handle-writes/58914). The launch is assumed to write 4 bytes of each
        # partly written sector.
        missing = 1.0 - self.stored_bytes * blocks / np.maximum(whole, 1.0)
        return whole * np.clip(missing / (1.0 - 4.0 / 32.0), 0.0, 1.0)

    def together(self, cover: Sequence[Array], blocks: Array) -> Array:
        """Return the distinct bytes that `blocks` consecutive blocks access together. `cover` is their extent in blocks
        along each axis of the grid."""
        distinct = self.distinct(cover)
        if not self.in_window:
            return distinct
        ratios = np.stack([np.ones_like(self.in_window[0]), *self.in_window])
        steps = np.log2(np.maximum(blocks, 1.0))
        low = np.minimum(steps.astype(np.int64), len(ratios) - 2)
        row = np.arange(ratios.shape[1])
        below, above = ratios[low, row], ratios[low + 1, row]
        # If more blocks run together than in the largest sample, extrapolate from the two largest samples.
        ratio = below * (np.maximum(above, 1e-9) / np.maximum(below, 1e-9)) ** (steps - low)
        return np.where(above > 0.0, np.minimum(self.own_bytes * ratio, self.size_bytes), distinct)

    def whole(self, grid: Sequence[Array], blocks: Array) -> Array:
        """Return the distinct bytes that all blocks of a grid access."""
        return np.maximum(self.distinct(grid), self.together(grid, blocks))

    def distinct(self, extents: Sequence[Array]) -> Array:
        """Return the distinct bytes that a box of neighboring blocks accesses. `extents` is the box's size in
        blocks."""
        distinct_bytes = self.own_bytes
        for share, extent in zip(self.fresh, extents, strict=True):
            distinct_bytes = distinct_bytes * (1.0 + share * (extent - 1.0))
        return np.minimum(distinct_bytes, self.size_bytes)


@dataclass(frozen=True)
class Rereads:
    """Bytes that a block loads more than once in each of C launches. A cache may evict the bytes between two loads."""

    far_bytes: tuple[Array, ...]
    """Bytes that a block loads again after it accessed more than `first_bytes` * 2**i bytes of other data (entry i)."""
    first_bytes: float
    cache_bytes: Array
    """L1 bytes per block."""

    def beyond(self, part_bytes: Array) -> Array:
        """Return the bytes that each block must load again because caches evicted them. `part_bytes` is the capacity of
        L2 per block in bytes."""
        table = np.stack(np.broadcast_arrays(*self.far_bytes))
        steps = np.log2(np.maximum(part_bytes, self.cache_bytes) / self.first_bytes)
        steps = np.clip(steps, 0.0, len(table) - 1.0)
        low = np.minimum(steps.astype(np.int64), len(table) - 2)
        columns = np.arange(table.shape[1])
        return np.asarray(table[low, columns] + (steps - low) * (table[low + 1, columns] - table[low, columns]))


def sampled_dram_bytes(
    grid: tuple[Array, Array, Array],
    footprints: Sequence[Footprint],
    concurrent_blocks: Array,
    l2_bytes: float,
    rereads: Rereads | None = None,
) -> Array:
    """Return the bytes that one launch moves between L2 and DRAM, from a sample of its memory accesses.

    Args:
        grid: Number of blocks along each axis.
        footprints: Footprints of the tensors that the launch reads or writes.
        concurrent_blocks: Number of blocks that run on the GPU at the same time.
        rereads: Bytes that each block loads more than once, or None.
    """
    order = tuple(zip("xyz", grid, strict=True))
    blocks = grid[0] * grid[1] * grid[2]
    wave = np.minimum(concurrent_blocks, blocks)
    cover = covered(order, wave)
    whole = [footprint.whole(grid, blocks) for footprint in footprints]
    miss = np.maximum(1.0 - l2_bytes / np.maximum(sum(whole, 0.0), 1.0), 0.0)
    total: Array = 0.0
    for footprint, once in zip(footprints, whole, strict=True):
        first = miss if footprint.scratch else 1.0
        again = (
            0.0
            if footprint.written
            else miss * np.maximum(footprint.together(cover, wave) * (blocks / wave) - once, 0.0)
        )
        total = total + (once + footprint.filled(once, blocks)) * first + again
    if rereads is not None:
        own = sum((footprint.own_bytes for footprint in footprints), 0.0)
        # L2 holds one copy of data that several blocks share, and one reload serves all these blocks.
        distinct = sum((footprint.together(cover, wave) for footprint in footprints), 0.0) / np.maximum(own, 1.0)
        part = l2_bytes / np.maximum(distinct, 1.0)
        total = total + rereads.beyond(part) * distinct * (blocks / wave)
    return total
