"""The lanes of a batch of thread blocks: the shape of the batch, and which lanes run at present.

A lane is a thread. A batch has room for some thread blocks; each has its threads rounded up to whole warps, so no warp
mixes blocks. Lanes are numbered through: those of the first block, then those of the second, and so on.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass
from kernrec.util.light_property import cached_property

WARP = 32
"""Threads of a warp."""

WARPGROUP = 128
"""Threads of a warpgroup: four warps of a block that follow one another, the first one's number a multiple of four."""


@dataclass(frozen=True)
class BatchShape:
    """How many lanes a batch has, and how they are numbered."""

    grid: tuple[int, int, int]
    """Thread blocks of the launch, x first."""

    block: tuple[int, int, int]
    """Threads of a block, x first."""

    blocks: int
    """Thread blocks that the batch has room for: whole clusters."""

    cluster: tuple[int, int, int] = (1, 1, 1)
    """Thread blocks of a cluster, x first."""

    @cached_property
    def cluster_blocks(self) -> int:
        """Thread blocks of a cluster; those of one are side by side in a batch, in the order of their ranks."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def cluster_and_rank(self, block_numbers: Array) -> tuple[Array, Array]:
        """Of blocks by their linear numbers, the linear number of the cluster of each, and its rank there."""
        cluster, rank = np.zeros_like(block_numbers), np.zeros_like(block_numbers)
        scale, blocks, rest = 1, 1, block_numbers
        for extent, along in zip(self.grid, self.cluster, strict=True):
            position, rest = rest % extent, rest // extent
            cluster, rank = cluster + position // along * scale, rank + position % along * blocks
            scale, blocks = scale * (extent // along), blocks * along
        return cluster, rank

    def blocks_of_clusters(self, clusters: Array) -> Array:
        """The linear numbers of the blocks of clusters by their linear numbers, by rank; (clusters, blocks)."""
        ranks = np.arange(self.cluster_blocks)
        numbers, scale, rest = np.zeros((len(clusters), len(ranks)), np.int64), 1, clusters
        for extent, along in zip(self.grid, self.cluster, strict=True):
            numbers += (rest % (extent // along) * along)[:, None] * scale + ranks % along * scale
            rest, ranks, scale = rest // (extent // along), ranks // along, scale * extent
        return numbers

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @cached_property
    def lanes_per_block(self) -> int:
        """Threads of a block rounded up to whole warps."""
        return -(-self.threads // WARP) * WARP

    @cached_property
    def lanes(self) -> int:
        """Lanes of the batch."""
        return self.blocks * self.lanes_per_block

    @cached_property
    def numbers(self) -> Array:
        """The number of each lane; int64 (lanes)."""
        return np.arange(self.lanes, dtype=np.int64)

    @cached_property
    def block_of(self) -> Array:
        """For each lane the position of its block in the batch; int64 (lanes)."""
        return self.numbers // self.lanes_per_block

    @cached_property
    def warpgroups(self) -> Array:
        """The first lane of each warpgroup, of those of fewer than four warps, too; int64 (warpgroups)."""
        within = np.arange(0, self.lanes_per_block, WARPGROUP)
        first: Array = (np.arange(self.blocks)[:, None] * self.lanes_per_block + within).reshape(-1)
        return first

    @cached_property
    def warpgroup_of(self) -> Array:
        """For each lane the number of its warpgroup in the batch; int64 (lanes)."""
        return np.searchsorted(self.warpgroups, self.numbers, "right") - 1

    @cached_property
    def is_thread(self) -> Array:
        """For each lane whether a thread of the block stands behind it; bool (lanes)."""
        mask: Array = self.numbers % self.lanes_per_block < self.threads
        return mask


class Lanes:
    """The thread blocks of the present batch, and the lanes that run at present."""

    def __init__(self, shape: BatchShape) -> None:
        self.shape = shape
        self.block_numbers = np.zeros(shape.blocks, np.int64)  # linear number in the grid, by position in the batch
        # The scheduler sets these before each basic block.
        self.partial: Array | None = None  # lanes that run, where some live lane does not; None: all live lanes run
        self.active: Array | None = None  # lanes that run; None: every lane of the batch
        self.step = 0  # basic blocks run so far: tells one run of a basic block from the next
        self.turn = 0  # the step in which the present piece of machine code began: its loads wait together
        self._active_numbers: tuple[Array | None, Array | None] = (None, None)  # of which mask, the lanes' numbers

    def start_batch(self, block_numbers: Sequence[int]) -> None:
        """Gives the batch the thread blocks with these linear numbers; where they are fewer than it has room for, the
        rest of its lanes is dead."""
        self.block_numbers[:] = 0
        self.block_numbers[: len(block_numbers)] = block_numbers

    def start_block(self, goes_on: bool) -> None:
        """The next basic block runs; `goes_on`: it is one piece of machine code with the one before."""
        self.step += 1
        if not goes_on:
            self.turn = self.step

    def active_numbers(self) -> Array | None:
        """Numbers of the lanes that run, or None when all of the batch do."""
        if self.active is None:
            return None
        mask, numbers = self._active_numbers
        if mask is not self.active:
            numbers = np.flatnonzero(self.active)
            self._active_numbers = self.active, numbers
        return numbers

    def coordinates(self, lane: int) -> tuple[str, str]:
        """Block and thread coordinates of a lane, as text."""
        shape = self.shape
        block = int(self.block_numbers[lane // shape.lanes_per_block])
        thread = lane % shape.lanes_per_block
        gx, gy, _ = shape.grid
        bx, by, _ = shape.block
        return (
            f"({block % gx}, {block // gx % gy}, {block // (gx * gy)})",
            f"({thread % bx}, {thread // bx % by}, {thread // (bx * by)})",
        )
