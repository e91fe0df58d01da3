"""Traffic between L2 and DRAM of a launch, from the order in which its blocks visit the tiles.

Blocks that run at the same time share what they load: of each tensor, a wave of concurrent blocks loads as many
distinct tiles as the wave covers along the axes that select them. In later waves, a tensor hits in L2 as far as the
working set fits there.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kernrec.util.light_dataclass import dataclass

Array = np.ndarray | float


def covered(order: Sequence[tuple[str, Array]], wave: Array) -> list[Array]:
    """How far a wave of consecutive blocks reaches along each step of the order; elementwise.

    Args:
        order: (axis, extent), fastest-varying first; in a grouped order an axis appears twice.
        wave: number of consecutive blocks.

    Returns:
        For each step, the number of distinct tile indices, at most its extent.
    """
    remaining = wave
    covers: list[Array] = []
    for _, extent in order[:-1]:
        covers.append(np.minimum(remaining, extent))
        remaining = np.maximum(remaining / extent, 1.0)
    if order:
        covers.append(np.minimum(remaining, order[-1][1]))
    return covers


@dataclass(frozen=True)
class TensorAccess:
    """Which tensors a launch reads and writes, as its kernel's spec declares it."""

    reads: Mapping[str, frozenset[str]]
    """Tensor read -> the axes of the grid that select its tile."""
    writes: Mapping[str, frozenset[str]]
    """Tensor written -> the axes of the grid that select its tile."""
    size_bytes: Mapping[str, Array]
    """Size of each tensor; more tensors than the launch uses may be listed."""
    scratch: frozenset[str] = frozenset()
    """Tensors that live between launches only: they reach DRAM only as far as they do not fit in L2."""


def dram_bytes(
    order: Sequence[tuple[str, Array]],
    access: TensorAccess,
    blocks: Array,
    concurrent_blocks: Array,
    l2_bytes: float,
) -> Array:
    """Bytes between L2 and DRAM of one launch: inputs are read at least once, outputs are written once.

    Args:
        order: (axis, extent) of the grid's tiles, fastest-varying first.
        access: the tensors that the launch reads and writes.
        blocks: thread blocks of the launch; the tiles that they visit, where each goes on to several.
        concurrent_blocks: blocks that run on the GPU at the same time.
        l2_bytes: size of L2.
    """
    reads, writes, tensor_bytes = access.reads, access.writes, access.size_bytes
    working_set: Array = sum([tensor_bytes[name] for name in dict.fromkeys((*reads, *writes))])
    missing = 1.0 - l2_bytes / working_set
    miss = max(missing, 0.0) if isinstance(missing, float) else np.maximum(missing, 0.0)
    wave = np.minimum(concurrent_blocks, blocks)
    waves = blocks / wave
    total: Array = 0.0
    # Share of each axis that a wave covers; a tensor's tiles are selected by some of the axes.
    steps = [step for step in order if not (isinstance(step[1], int) and step[1] == 1)]
    shares = [(axis, cover / extent) for cover, (axis, extent) in zip(covered(steps, wave), steps, strict=True)]
    for name, axes in reads.items():
        size = tensor_bytes[name]
        loads = waves  # how often the tensor is loaded, over all waves
        for axis, share in shares:
            if axis in axes:
                loads = loads * share
        again = np.maximum(loads - 1.0, 0.0)
        first = miss if name in access.scratch else 1.0
        total = total + size * (first + miss * again)
    for name in writes:
        total = total + tensor_bytes[name] * (miss if name in access.scratch else 1.0)
    return total


@dataclass(frozen=True)
class Footprint:
    """Which bytes of one tensor each block of a launch accesses, from a sample of blocks; arrays (C,)."""

    own_bytes: Array
    """Distinct bytes that one block accesses."""
    fresh: tuple[Array, Array, Array]
    """For each axis of the grid, the share of a block's bytes that its predecessor along the axis did not access."""
    size_bytes: Array
    written: bool
    """Whether the launch writes these bytes; else it reads them."""
    scratch: bool = False
    in_window: tuple[Array, ...] = ()
    """For 2, 4, 8 and so on blocks in a row: distinct bytes that they access, over `own_bytes`, where the order of the
    tiles was sampled; 0 or nothing where `fresh` tells as much."""

    def together(self, cover: Sequence[Array], blocks: Array) -> Array:
        """Distinct bytes that consecutive blocks access; cover: how far they reach along each axis."""
        distinct = self.distinct(cover)
        if not self.in_window:
            return distinct
        ratios = np.stack([np.ones_like(self.in_window[0]), *self.in_window])
        steps = np.log2(np.maximum(blocks, 1.0))
        low = np.minimum(steps.astype(np.int64), len(ratios) - 2)
        row = np.arange(ratios.shape[1])
        below, above = ratios[low, row], ratios[low + 1, row]
        # Beyond the window it goes on as in its last step.
        ratio = below * (np.maximum(above, 1e-9) / np.maximum(below, 1e-9)) ** (steps - low)
        return np.where(above > 0.0, np.minimum(self.own_bytes * ratio, self.size_bytes), distinct)

    def whole(self, grid: Sequence[Array], blocks: Array) -> Array:
        """Distinct bytes that all blocks of the grid access: a window may see less of it than neighbors do."""
        return np.maximum(self.distinct(grid), self.together(grid, blocks))

    def distinct(self, extents: Sequence[Array]) -> Array:
        """Distinct bytes that a box of blocks accesses; extents: its blocks along each axis."""
        distinct_bytes = self.own_bytes
        for share, extent in zip(self.fresh, extents, strict=True):
            distinct_bytes = distinct_bytes * (1.0 + share * (extent - 1.0))
        return np.minimum(distinct_bytes, self.size_bytes)


def sampled_dram_bytes(
    grid: tuple[Array, Array, Array], footprints: Sequence[Footprint], concurrent_blocks: Array, l2_bytes: float
) -> Array:
    """Bytes between L2 and DRAM of one launch whose accesses are known from a sample of blocks.

    Like `dram_bytes`: blocks of a wave share what they load, and L2 keeps between waves as much as it holds. How tiles
    of neighboring blocks overlap (the halo of a stencil, say) was sampled instead of declared.

    Args:
        grid: blocks along each axis.
        footprints: of each tensor that the launch reads or writes.
        concurrent_blocks: blocks that run on the GPU at the same time.
        l2_bytes: size of L2.
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
    return total
