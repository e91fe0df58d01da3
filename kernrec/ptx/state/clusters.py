"""Group thread blocks into clusters, and order them within a batch."""

from collections.abc import Sequence

import numpy as np

from kernrec.errors import UsageError
from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass


@dataclass(frozen=True)
class Clusters:
    """Clusters of a grid's blocks."""

    grid: tuple[int, int, int]
    """Thread blocks of the launch, x first."""
    extents: tuple[int, int, int]
    """Thread blocks per cluster, x first."""

    @property
    def size(self) -> int:
        """Number of thread blocks per cluster."""
        return self.extents[0] * self.extents[1] * self.extents[2]

    def complete(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """Return all blocks of every cluster that contains one of the given blocks."""
        if self.size == 1 or not len(block_numbers):
            return block_numbers
        clusters = np.unique(self._cluster_and_rank(np.asarray(block_numbers))[0])
        ranks = np.arange(self.size)
        numbers, scale, rest = np.zeros((len(clusters), self.size), np.int64), 1, clusters
        for extent, along in zip(self.grid, self.extents, strict=True):
            numbers += (rest % (extent // along) * along)[:, None] * scale + ranks % along * scale
            rest, ranks, scale = rest // (extent // along), ranks // along, scale * extent
        blocks: list[int] = numbers.reshape(-1).tolist()
        return blocks

    def ordered(self, block_numbers: Sequence[int]) -> Sequence[int]:
        """Return blocks cluster by cluster, in order of rank.

        Raises:
            UsageError: blocks of a cluster are missing.
        """
        if self.size == 1:
            return block_numbers
        numbers = np.unique(np.asarray(block_numbers))
        cluster, rank = self._cluster_and_rank(numbers)
        clusters, counts = np.unique(cluster, return_counts=True)
        if (counts != self.size).any():
            lacking = int(numbers[cluster == clusters[counts != self.size][0]][0])
            raise UsageError(
                f"block {lacking} runs together with all {self.size} blocks of its cluster; give whole clusters"
            )
        blocks: list[int] = numbers[np.lexsort((rank, cluster))].tolist()
        return blocks

    def _cluster_and_rank(self, block_numbers: Array) -> tuple[Array, Array]:
        """Return (linear number of each block's cluster, rank of each block in its cluster)."""
        cluster, rank = np.zeros_like(block_numbers), np.zeros_like(block_numbers)
        scale, blocks, rest = 1, 1, block_numbers
        for extent, along in zip(self.grid, self.extents, strict=True):
            position, rest = rest % extent, rest // extent
            cluster, rank = cluster + position // along * scale, rank + position % along * blocks
            scale, blocks = scale * (extent // along), blocks * along
        return cluster, rank
