"""How many bytes a launch moves between L2 and DRAM, from the order in which it walks its tiles.

Blocks that run at the same time share what they load: a wave of W blocks touches, of each tensor, as many tiles as
the walk spreads over the axes that select them. Between waves a tensor is found again in L2 as far as the working
set fits there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray | float


def covered(order: Sequence[tuple[str, Array]], wave: Array) -> list[Array]:
    """How much of each extent of the walk `wave` consecutive blocks cover, elementwise.

    order: (axis, extent), fastest-varying first; an axis may come twice (a grouped walk).
    """
    remaining = wave
    found: list[Array] = []
    for _, extent in order[:-1]:
        found.append(np.minimum(remaining, extent))
        remaining = np.maximum(remaining / extent, 1.0)
    if order:
        found.append(np.minimum(remaining, order[-1][1]))
    return found


@dataclass(frozen=True, slots=True)
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
        blocks: thread blocks of the launch.
        concurrent_blocks: blocks that run on the GPU at the same time.
        l2_bytes: size of L2.
    """
    reads, writes, tensor_bytes = access.reads, access.writes, access.size_bytes
    working_set: Array = sum([tensor_bytes[name] for name in dict.fromkeys((*reads, *writes))])
    miss = np.maximum(1.0 - l2_bytes / working_set, 0.0)
    wave = np.minimum(concurrent_blocks, blocks)
    waves = blocks / wave
    total: Array = 0.0
    # Share of each axis that a wave covers; a tensor's tiles are selected by some of the axes.
    walked = [step for step in order if not (isinstance(step[1], int) and step[1] == 1)]
    shares = [(axis, cover / extent) for cover, (axis, extent) in zip(covered(walked, wave), walked, strict=True)]
    for name, axes in reads.items():
        size = tensor_bytes[name]
        touched = waves
        for axis, share in shares:
            if axis in axes:
                touched = touched * share
        again = np.maximum(touched - 1.0, 0.0)
        first = miss if name in access.scratch else 1.0
        total = total + size * (first + miss * again)
    for name in writes:
        total = total + tensor_bytes[name] * (miss if name in access.scratch else 1.0)
    return total


@dataclass(frozen=True)
class Footprint:
    """What each block of a launch touches of one tensor, as a sample of blocks has shown it; arrays (C,).

    own_bytes: distinct bytes of one block. fresh: for each axis of the grid, the share of them that the next block
    along it does not find among those of the block before. size_bytes: of the tensor. written: it writes them.
    scratch: the tensor lives between launches only.
    """

    own_bytes: Array
    fresh: tuple[Array, Array, Array]
    size_bytes: Array
    written: bool
    scratch: bool = False

    def distinct(self, extents: Sequence[Array]) -> Array:
        """Bytes that so many blocks along each axis touch, each counted once."""
        found = self.own_bytes
        for share, extent in zip(self.fresh, extents, strict=True):
            found = found * (1.0 + share * (extent - 1.0))
        return np.minimum(found, self.size_bytes)


def sampled_dram_bytes(
    grid: tuple[Array, Array, Array], footprints: Sequence[Footprint], concurrent_blocks: Array, l2_bytes: float
) -> Array:
    """Bytes between L2 and DRAM of one launch whose tensors are known from a sample of blocks.

    As `dram_bytes`: blocks of a wave share what they load, and between waves L2 keeps as much as it holds. The axes
    that select a tile are not declared but seen, and may share a part (the halo of a stencil).
    """
    order = tuple(zip("xyz", grid, strict=True))
    blocks = grid[0] * grid[1] * grid[2]
    wave = np.minimum(concurrent_blocks, blocks)
    cover = covered(order, wave)
    whole = [footprint.distinct(grid) for footprint in footprints]
    miss = np.maximum(1.0 - l2_bytes / np.maximum(sum(whole, 0.0), 1.0), 0.0)
    total: Array = 0.0
    for footprint, once in zip(footprints, whole, strict=True):
        first = miss if footprint.scratch else 1.0
        again = 0.0 if footprint.written else miss * np.maximum(footprint.distinct(cover) * (blocks / wave) - once, 0.0)
        total = total + once * first + again
    return total
