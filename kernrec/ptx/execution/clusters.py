"""Clusters of thread blocks: which blocks make one, and the barrier of a cluster (PTX ISA, section 9.7.13.4)."""

from collections.abc import Sequence

import numpy as np

from kernrec.errors import UsageError
from kernrec.ptx.execution.barriers import WAITS
from kernrec.ptx.instructions.registry import UnsupportedFormError
from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.batch import BatchShape, Lanes
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.launch_layout import KernelLaunch
from kernrec.ptx.state.types import Array

_MOST_BLOCKS = 16  # of a cluster (CUDA C++ Programming Guide: 8, and 16 where the kernel asks for it)


def cluster_of(function: Function, launch: KernelLaunch, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """The blocks of a cluster, x first: what the kernel was compiled for, or what the launch says.

    Raises:
        UsageError: the two disagree, or the grid is not made of whole clusters.
    """
    required = function.directives.get("reqnctapercluster")
    given = tuple(int(n) for n in launch.cluster) or required or (1,)
    x, y, z = (*given, 1, 1)[:3]
    if required and (*required, 1, 1)[:3] != (x, y, z):
        raise UsageError(f"cluster {tuple(launch.cluster)} of a kernel that was compiled for clusters of {required}")
    if not 1 <= len(given) <= 3 or min(x, y, z) < 1 or x * y * z > _MOST_BLOCKS:
        raise UsageError(f"cluster {given} is not one to three positive numbers, {_MOST_BLOCKS} blocks at most")
    if grid[0] % x or grid[1] % y or grid[2] % z:
        raise UsageError(f"grid {grid} is not a multiple of the cluster {(x, y, z)}")
    return x, y, z


def in_clusters(shape: BatchShape, block_numbers: Sequence[int]) -> Sequence[int]:
    """Linear block numbers in the order in which a batch has them: cluster by cluster, by rank in each.

    Raises:
        UsageError: a cluster of which not all blocks are there.
    """
    size = shape.cluster_blocks
    if size == 1:
        return block_numbers
    numbers = np.unique(np.asarray(block_numbers))
    cluster, rank = shape.cluster_and_rank(numbers)
    clusters, counts = np.unique(cluster, return_counts=True)
    if (counts != size).any():
        lacking = int(numbers[cluster == clusters[counts != size][0]][0])
        raise UsageError(f"block {lacking} runs together with all {size} blocks of its cluster; give whole clusters")
    ordered: list[int] = numbers[np.lexsort((rank, cluster))].tolist()
    return ordered


class ClusterBarrier:
    """Which lanes wait at the barriers of their clusters; exited threads count as arrived."""

    def __init__(self, shape: BatchShape) -> None:
        self._by_cluster = (shape.blocks // shape.cluster_blocks, shape.cluster_blocks * shape.lanes_per_block)
        self._blocks = shape.cluster_blocks
        self._arrivals = np.zeros(shape.lanes, np.int64)  # how often each lane arrived
        self._waits = np.zeros(shape.lanes, np.int64)  # how often each lane waited
        self.waiting = np.zeros(shape.lanes, np.bool_)
        """Lanes that wait."""
        self.resume = np.zeros(shape.lanes, np.int64)
        """Basic block where each goes on."""

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._arrivals[:] = 0
        self._waits[:] = 0
        self.waiting[:] = False

    def reach(self, ins: Instruction, mask: Array, positions: Array, after: int) -> None:
        """The lanes of `mask` run `barrier.cluster.arrive` or `.wait`; those that wait go on at basic block `after`."""
        if "arrive" in ins.modifiers:
            if (self._arrivals[mask] != self._waits[mask]).any():
                raise UnsupportedFormError("a thread that arrives twice and does not wait between")
            self._arrivals[mask] += 1
        else:
            if (self._arrivals[mask] != self._waits[mask] + 1).any():
                raise UnsupportedFormError("a thread that waits and did not arrive")
            positions[mask] = WAITS
            self.resume[mask] = after
            self.waiting[mask] = True

    def release(self, live: Array, positions: Array) -> Array | None:
        """Lets the lanes of every cluster whose threads all arrived go on; the blocks that did, bool by position, or
        None where none did."""
        if not self.waiting.any():
            return None
        arrivals = np.where(live, self._arrivals, np.iinfo(np.int64).max).reshape(self._by_cluster)
        everyone = arrivals.min(axis=1).repeat(self._by_cluster[1])
        going = self.waiting & (everyone > self._waits)
        if not going.any():
            return None
        positions[going] = self.resume[going]
        self._waits[going] += 1
        self.waiting &= ~going
        blocks: Array = going.reshape(self._by_cluster).any(axis=1).repeat(self._blocks)
        return blocks

    def refuse_waiting(self, function: Function, lanes: Lanes) -> None:
        """Raises for a lane that waits, where all others do."""
        if self.waiting.any():
            lane = int(np.flatnonzero(self.waiting)[0])
            block, thread = lanes.coordinates(lane)
            ins = function.blocks[int(self.resume[lane]) - 1].instructions[-1]
            raise EmulationError(
                f"{location(function, ins)}: deadlock: block {block} thread {thread} waits at the barrier of its"
                " cluster, and others never arrive"
            )
