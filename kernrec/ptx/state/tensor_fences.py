"""Fences around the synchronization of threads that use tensor memory (PTX ISA, section "tcgen05.fence").

What a thread loaded from tensor memory or stored there may be overwritten or read by another one after it ran
`tcgen05.fence::before_thread_sync`, the two synchronized, and the other ran `::after_thread_sync`. What was computed
needs the second fence alone, for a `tcgen05.commit` has the effect of the first. Allocating and releasing columns are
not asynchronous and need none.

Every event has a time. Before a warp uses cells that another warp used, there must have been a fence of each since. So
a fence that stands at the wrong place is not always found, and a correct kernel is never refused. Compilers that leave
all fences out rely on their barriers (Triton 3.9 does): only a kernel that has some is held to them.
"""

from typing import NoReturn

import numpy as np

from kernrec.ptx.state.batch import WARP, BatchShape
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.tensor_memory import COLUMNS, LANES, Cells
from kernrec.ptx.state.types import Array

LOADED, STORED, COMPUTED = range(3)
_QUARTER = 32  # lanes that one warp reaches
_DID = ("loaded", "stored", "computed")


class TensorFences:
    """When each warp of a batch used which part of tensor memory, and fenced."""

    def __init__(self, shape: BatchShape) -> None:
        self._shape = shape
        self._warps_per_block = shape.lanes_per_block // WARP
        self._of_cluster = self._warps_per_block * shape.cluster_blocks
        self._used: Array | None = None  # time: (3, blocks, warps of the cluster, quarters of the lanes, columns)
        self._before = np.zeros(shape.lanes // WARP, np.int64)
        self._after = np.zeros(shape.lanes // WARP, np.int64)
        self._now = 0

    def start_batch(self) -> None:
        """Forgets the last batch."""
        for times in (self._used, self._before, self._after):
            if times is not None:
                times[:] = 0
        self._now = 0

    def watch(self) -> None:
        """The kernel has fences: it is held to them from now on."""
        if self._used is None:
            self._used = np.zeros((3, self._shape.blocks, self._of_cluster, LANES // _QUARTER, COLUMNS), np.int64)

    def fence(self, warps: Array, *, before: bool) -> None:
        """Warps run a fence: that before they synchronize with others, or that after."""
        self._now += 1
        (self._before if before else self._after)[warps] = self._now

    def note(self, warp: int, kind: int, accesses: list[Cells]) -> None:
        """What a warp did to these cells is done."""
        if self._used is None:
            return
        self._now += 1
        for cells in accesses:
            self._used[kind, cells.block, warp % self._of_cluster, cells.lane // _QUARTER, cells.column] = self._now

    def check(self, where: str, warp: int, kinds: tuple[int, ...], cells: Cells) -> None:
        """A warp is about to use cells, which must not conflict with what others did there.

        Raises:
            EmulationError: there was no fence since, of the other warp or of this one.
        """
        if self._used is None:
            return
        quarters, columns = np.unique(cells.lane // _QUARTER), np.unique(cells.column)
        columns = columns[columns < COLUMNS]
        for kind in kinds:
            part = self._used[kind, cells.block][:, quarters][:, :, columns]
            last = part.max(axis=(1, 2), initial=0)
            last[warp % self._of_cluster] = 0
            first = warp // self._of_cluster * self._of_cluster
            fenced = np.full(len(last), self._now) if kind == COMPUTED else self._before[first : first + len(last)]
            for late, fence in ((last > fenced, "before"), (last > self._after[warp], "after")):
                if late.any():
                    self._fail(where, (int(columns[0]), int(columns[-1])), (int(late.argmax()), kind), fence)

    def _fail(self, where: str, columns: tuple[int, int], done: tuple[int, int], fence: str) -> NoReturn:
        other, kind = done
        raise EmulationError(
            f"{where}: race: columns {columns[0]} to {columns[1]} of tensor memory, which warp"
            f" {other % self._warps_per_block} {_DID[kind]} with no tcgen05.fence::{fence}_thread_sync since"
        )
