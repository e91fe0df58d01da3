"""Traffic between L2 and DRAM of a launch, from the order in which its blocks visit the tiles.

Concurrent blocks share what they load. A wave of concurrent blocks loads as many distinct tiles of a tensor as the wave
covers along the axes that select the tiles. In later waves, a tensor hits in L2 to the extent that the working set fits
in L2.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray | float
Floats = NDArray[np.float64]


def covered(order: Sequence[tuple[str, Array]], wave: Array) -> list[Array]:
    """Return how far a wave of consecutive blocks reaches along each step of the order, elementwise.

    Args:
        order: (axis, extent) pairs, fastest-varying first. In a grouped order an axis appears twice.
        wave: Number of consecutive blocks.

    Returns:
        For each step, the number of distinct tile indices, at most its extent.
    """
    covers: list[Array] = []
    for _, extent in order:
        covers.append(np.minimum(wave, extent))
        wave = np.maximum(wave / extent, 1.0)
    return covers


class TensorAccess:
    """Tensors that a launch reads and writes, and the steps of its grid's order that select their tiles."""

    def __init__(
        self,
        order: Sequence[str],
        reads: Mapping[str, Collection[str]],
        writes: Iterable[str],
        scratch: Collection[str] = (),
    ) -> None:
        """Create the accesses from the declarations of a kernel's spec.

        Args:
            order: Axis of each step, fastest-varying first. In a grouped order an axis appears twice.
            reads: Axes of the grid that select the tile, by tensor read.
            writes: Tensors written.
            scratch: Tensors that only live between launches. Only the part that does not fit in L2 reaches DRAM.
        """
        self.tensors = tuple(dict.fromkeys((*reads, *writes)))
        """Tensors in the order of their sizes in `dram_bytes`."""
        number = {name: place for place, name in enumerate(self.tensors)}
        order = order or ("",)
        self.steps = len(order)
        self.reads = np.array([number[name] for name in reads], dtype=np.int64)
        self.writes = np.array([number[name] for name in writes], dtype=np.int64)
        axes = [[axis in selecting for axis in order] for selecting in reads.values()]
        self.axes = np.array(axes, dtype=np.uint8).reshape(len(axes), len(order))
        self.scratch = np.array([name in scratch for name in self.tensors], dtype=np.uint8)
        self.in_engine = query.Access(self.reads, self.axes, self.writes, self.scratch)
        """Tensors in the engine's form."""


def dram_bytes(
    access: TensorAccess,
    extents: Sequence[Array],
    sizes: Sequence[Array],
    blocks: Floats,
    concurrent_blocks: Floats,
    l2_bytes: float,
    moved: Floats | None = None,
) -> Floats:
    """Return bytes between L2 and DRAM of N launches, (N,). Inputs are read at least once, outputs are written once.

    Args:
        access: Tensors that the launches read and write.
        extents: Extent of each step of the order of the grid's tiles; numbers, or arrays (N,).
        sizes: Bytes of each of `TensorAccess.tensors`; numbers, or arrays (N,).
        blocks: Thread blocks of each launch, or visited tiles if each block visits several.
        concurrent_blocks: Blocks that run on the GPU at the same time.
        l2_bytes: Size of L2.
        moved: Array for the result.
    """
    count = len(blocks)
    columns = np.empty((access.steps + len(sizes), count))
    for row, column in zip(columns, (*(extents or (1.0,)), *sizes), strict=True):
        row[:] = column
    moved = np.empty(count) if moved is None else moved
    query.dram_bytes(
        access.in_engine,
        np.asarray(blocks, np.float64),
        np.asarray(concurrent_blocks, np.float64),
        columns[: access.steps],
        columns[access.steps :],
        l2_bytes,
        moved,
    )
    return moved


@dataclass(frozen=True)
class Footprint:
    """Bytes of one tensor that each block of a launch accesses, from a sample of blocks; arrays (C,)."""

    own_bytes: Array
    """Distinct bytes that one block accesses."""
    fresh: tuple[Array, Array, Array]
    """Fraction of a block's bytes that its predecessor along each axis of the grid did not access."""
    size_bytes: Array
    written: bool
    """Whether the launch writes these bytes; otherwise, it reads them."""
    scratch: bool = False
    in_window: tuple[Array, ...] = ()
    """Ratio to `own_bytes` of the distinct bytes that 2, 4, 8, ... consecutive blocks access, if the order of the tiles
    was sampled. 0 or empty if `fresh` is sufficient.
    """

    def together(self, cover: Sequence[Array], blocks: Array) -> Array:
        """Return the distinct bytes that consecutive blocks access.

        Args:
            cover: Reach of the blocks along each axis.
        """
        distinct = self.distinct(cover)
        if not self.in_window:
            return distinct
        ratios = np.stack([np.ones_like(self.in_window[0]), *self.in_window])
        steps = np.log2(np.maximum(blocks, 1.0))
        low = np.minimum(steps.astype(np.int64), len(ratios) - 2)
        row = np.arange(ratios.shape[1])
        below, above = ratios[low, row], ratios[low + 1, row]
        # Extrapolate the last step beyond the window.
        ratio = below * (np.maximum(above, 1e-9) / np.maximum(below, 1e-9)) ** (steps - low)
        return np.where(above > 0.0, np.minimum(self.own_bytes * ratio, self.size_bytes), distinct)

    def whole(self, grid: Sequence[Array], blocks: Array) -> Array:
        """Return the distinct bytes that all blocks of the grid access, at least those by `fresh`."""
        return np.maximum(self.distinct(grid), self.together(grid, blocks))

    def distinct(self, extents: Sequence[Array]) -> Array:
        """Return the distinct bytes that a rectangular box of blocks accesses.

        Args:
            extents: Blocks of the box along each axis.
        """
        distinct_bytes = self.own_bytes
        for share, extent in zip(self.fresh, extents, strict=True):
            distinct_bytes = distinct_bytes * (1.0 + share * (extent - 1.0))
        return np.minimum(distinct_bytes, self.size_bytes)


@dataclass(frozen=True)
class Rereads:
    """Bytes that a block loads again, by the amount of other data that it accesses in between; arrays (C,)."""

    far_bytes: tuple[Array, ...]
    """Bytes per block that are loaded again after more than 1, 2, 4, ... times `first_bytes` of other data."""
    first_bytes: float
    cache_bytes: Array
    """Part of L1 per block, which may hold more than the block's part of L2."""

    def beyond(self, part_bytes: Array) -> Array:
        """Return the bytes per block that are loaded again after they left a cache with this part for each block."""
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
    """Return the bytes between L2 and DRAM of one launch whose accesses were sampled.

    As in `dram_bytes`, blocks of a wave share what they load, and L2 keeps data between waves up to its capacity. The
    overlap of neighboring tiles (such as the halo of a stencil) was sampled instead of declared.

    Concurrent blocks share L2. What a block loads again comes from DRAM if, between the two loads, all blocks together
    access more than L2 holds.

    Args:
        grid: Blocks along each axis.
        footprints: Footprints of the tensors that the launch reads or writes.
        concurrent_blocks: Blocks that run on the GPU at the same time.
        l2_bytes: Size of L2.
        rereads: What each block loads again; None for nothing.
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
        total = total + once * first + again
    if rereads is not None:
        own = sum((footprint.own_bytes for footprint in footprints), 0.0)
        # Blocks that access the same data also load it again only once, and need space for it only once.
        distinct = sum((footprint.together(cover, wave) for footprint in footprints), 0.0) / np.maximum(own, 1.0)
        part = l2_bytes / np.maximum(distinct, 1.0)
        total = total + rereads.beyond(part) * distinct * (blocks / wave)
    return total
