"""Which sectors of global memory each thread block touches: what blocks share is what caches can save.

Counting requests says how much a block requests; how much of that another block requests too is seen only in the
addresses. `TouchedSectors` marks, for each buffer and block, the 32-byte sectors that were read and written.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.ptx.state.types import Array

SECTOR = 32
"""Bytes that move between caches and memory together."""


class TouchedSectors:
    """Sectors touched by each of the thread blocks with the linear numbers `blocks`; other blocks are ignored."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self._rows = {block: row for row, block in enumerate(dict.fromkeys(blocks))}
        self._batch: Array = np.zeros(0, np.int64)  # row of each block of the present batch
        self._idle = False  # whether the present batch has none of the blocks
        self._marks: dict[tuple[str, bool], Array] = {}
        self._spans: dict[tuple[str, bool], tuple[int, int]] = {}  # first and last sector that any block touched

    def start_batch(self, block_numbers: Sequence[int]) -> None:
        """The thread blocks with these linear numbers run next."""
        rest = len(self._rows)  # one row for all the others
        self._idle = not any(block in self._rows for block in block_numbers)
        self._batch = np.array([self._rows.get(block, rest) for block in block_numbers], np.int64)

    def record(self, buffer: str, size: int, block_of: Array, where: Array, kind: str) -> None:
        """Marks what an access touches.

        Args:
            buffer: name of the buffer.
            size: bytes of the buffer.
            block_of: position of each lane's block in the batch; (lanes).
            where: byte of the buffer that each lane accesses; (lanes).
            kind: `read`, `write` or `atomic` (both).
        """
        if self._idle:
            return
        for written in (False, True) if kind == "atomic" else (kind == "write",):
            marks = self._marks.get((buffer, written))
            if marks is None:
                # Pages of a bitmap that are never marked cost no memory.
                marks = self._marks[buffer, written] = np.zeros((len(self._rows) + 1, -(-size // SECTOR)), np.bool_)
            sectors = where >> 5
            marks[self._batch[block_of], sectors] = True
            low, high = self._spans.get((buffer, written), (marks.shape[1], 0))
            self._spans[buffer, written] = min(low, int(sectors.min())), max(high, int(sectors.max()))

    def by_block(self, written: bool) -> dict[str, dict[int, Array]]:
        """By buffer and block: the sectors that the block read, or wrote; bool, from the first that any block did."""
        result = {}
        for (buffer, write), marks in self._marks.items():
            if write == written:
                low, high = self._spans[buffer, write]
                result[buffer] = {block: marks[row, low : high + 1] for block, row in self._rows.items()}
        return result
