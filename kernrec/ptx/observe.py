"""Which sectors of global memory each thread block touches: what blocks share is what caches can save.

Counting requests says how much a block asks for; how much of that another block asks for too is seen only by looking
at the addresses. An `Observer` marks, for each buffer and block, the 32-byte sectors that were read and written.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.ptx.state import Array

SECTOR = 32
"""Bytes that move between caches and memory together."""


class Observer:
    """Sectors touched by each of at most `blocks` thread blocks."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._rows: dict[int, int] = {}
        self._batch: Array = np.zeros(0, np.int64)
        self._marks: dict[tuple[str, bool], Array] = {}
        self._spans: dict[tuple[str, bool], tuple[int, int]] = {}  # first and last sector that any block touched

    def start_batch(self, ids: Sequence[int]) -> None:
        """The blocks that run next."""
        for block in ids:
            self._rows.setdefault(block, len(self._rows))
        self._batch = np.array([self._rows[block] for block in ids], np.int64)

    def access(self, buffer: str, size: int, blocks: Array, where: Array, what: str) -> None:
        """Lanes in `blocks` (places in the batch) access bytes `where` of a buffer: `read`, `write` or `atomic`."""
        for written in (False, True) if what == "atomic" else (what == "write",):
            marks = self._marks.get((buffer, written))
            if marks is None:
                # Pages of a bitmap that are never marked cost no memory.
                marks = self._marks[buffer, written] = np.zeros((self._blocks, -(-size // SECTOR)), np.bool_)
            sectors = where >> 5
            marks[self._batch[blocks], sectors] = True
            low, high = self._spans.get((buffer, written), (marks.shape[1], 0))
            self._spans[buffer, written] = min(low, int(sectors.min())), max(high, int(sectors.max()))

    def touched(self, written: bool) -> dict[str, dict[int, Array]]:
        """By buffer and block: the sectors that the block read, or wrote; bool, from the first that any block did."""
        found = {}
        for (buffer, write), marks in self._marks.items():
            if write == written:
                low, high = self._spans[buffer, write]
                found[buffer] = {block: marks[row, low : high + 1] for block, row in self._rows.items()}
        return found
