"""Which sectors of global memory each thread block touches: what blocks share is what caches can save.

Counting requests says how much a block asks for; how much of that another block asks for too is seen only by looking
at the addresses. An `Observer` marks, for each buffer and block, the 32-byte sectors that were read and written.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.ptx.state.registers import Array

SECTOR = 32
"""Bytes that move between caches and memory together."""


class Observer:
    """Sectors touched by each of the thread blocks with the linear numbers `blocks`; others are not looked at."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self._rows = {block: row for row, block in enumerate(dict.fromkeys(blocks))}
        self._batch: Array = np.zeros(0, np.int64)
        self._idle = False
        self._marks: dict[tuple[str, bool], Array] = {}
        self._spans: dict[tuple[str, bool], tuple[int, int]] = {}  # first and last sector that any block touched

    def start_batch(self, ids: Sequence[int]) -> None:
        """The blocks that run next."""
        rest = len(self._rows)  # one row for all the others
        self._idle = not any(block in self._rows for block in ids)
        self._batch = np.array([self._rows.get(block, rest) for block in ids], np.int64)

    def access(self, buffer: str, size: int, blocks: Array, where: Array, what: str) -> None:
        """Lanes in `blocks` (places in the batch) access bytes `where` of a buffer: `read`, `write` or `atomic`."""
        if self._idle:
            return
        for written in (False, True) if what == "atomic" else (what == "write",):
            marks = self._marks.get((buffer, written))
            if marks is None:
                # Pages of a bitmap that are never marked cost no memory.
                marks = self._marks[buffer, written] = np.zeros((len(self._rows) + 1, -(-size // SECTOR)), np.bool_)
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
