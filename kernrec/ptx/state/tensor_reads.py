"""Shared memory that tensor cores read by themselves: what must not be overwritten yet, and what they must not see yet.

`wgmma.mma_async` and `tcgen05.mma` read their operands through the async proxy some time after they were issued (PTX
ISA, sections "Async proxy" and "Asynchronous operations"). So a tile must not be written until they completed, and what
threads stored must be made visible by `fence.proxy.async`: of the thread that stored it, or of another past a barrier.
Asynchronous copies (`cp.async`) count as visible: compilers put no fence behind them.

Granularity is a piece of 16 bytes, which is what matrices in shared memory are made of.
"""

import numpy as np

from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import Array

PIECE = 16
"""Bytes of a piece."""
_SHARED_BY_BARRIER = -1  # stored by some thread, and a barrier of the block passed since


class TensorReads:
    """The pieces of a batch's shared memory that tensor cores read at present, and those stored with no fence since."""

    def __init__(self, pieces_per_block: int, blocks: int) -> None:
        self._readers = np.zeros(pieces_per_block * blocks, np.int16)
        self._stored = np.zeros((blocks, pieces_per_block), np.int16)  # 0: visible; n + 1: warp n of the batch
        self._in_flight = 0

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._readers[:] = 0
        self._stored[:] = 0
        self._in_flight = 0

    def pass_barrier(self, blocks: Array) -> None:
        """The threads of these blocks passed a barrier; bool, by position in the batch."""
        self._stored[blocks[:, None] & (self._stored > 0)] = _SHARED_BY_BARRIER

    def fence(self, lanes: Array, lanes_per_block: int) -> None:
        """These lanes make what they stored, and what others stored before a barrier, visible to tensor cores."""
        warps = np.unique(lanes // WARP)
        for block in np.unique(lanes // lanes_per_block):
            stored = self._stored[block]
            stored[(stored == _SHARED_BY_BARRIER) | np.isin(stored, warps + 1)] = 0

    def write(self, where: str, index: Array, lanes: Array, is_copy: bool) -> None:
        """Threads write shared memory.

        Args:
            where: the instruction, for messages.
            index: byte of the batch's shared memory of each lane.
            lanes: their numbers.
            is_copy: whether they copy asynchronously.

        Raises:
            EmulationError: tensor cores may still read it.
        """
        pieces = index // PIECE
        if self._in_flight and self._readers[pieces].any():
            raise EmulationError(
                f"{where}: writes shared memory that an operation in flight reads; it was not waited for"
            )
        if not is_copy:
            self._stored.reshape(-1)[pieces] = lanes // WARP + 1

    def pieces(self, index: Array) -> Array:
        """The pieces that bytes of the batch's shared memory are in, each once."""
        present = np.zeros(len(self._readers), np.bool_)
        present[index // PIECE] = True
        return np.flatnonzero(present)

    def begin(self, where: str, pieces: Array) -> Array:
        """Tensor cores, or a copy in bulk, begin to read pieces; what `end` takes.

        Raises:
            EmulationError: some of it was stored and may not be visible.
        """
        if self._stored.reshape(-1)[pieces].any():
            raise EmulationError(
                f"{where}: reads shared memory that threads stored to with no fence.proxy.async in between"
            )
        self._readers[pieces] += 1
        self._in_flight += 1
        return pieces

    def fill(self, pieces: Array) -> None:
        """A copy in bulk wrote these pieces: what threads stored there is gone."""
        self._stored.reshape(-1)[pieces] = 0

    def end(self, pieces: Array) -> None:
        """Tensor cores have read what `begin` said."""
        self._readers[pieces] -= 1
        self._in_flight -= 1
