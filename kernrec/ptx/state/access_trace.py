"""In which order the warps of a few thread blocks touch sectors of global memory: what caches and DRAM make of it.

Counts say how much a block requests. Whether L1 still holds a sector when it is requested again, whether DRAM is asked
for long runs of bytes or for scattered sectors, and whether atomic operations meet at one address, is seen in the order
and the addresses of the requests alone. `AccessTrace` keeps them for the blocks that it is told to watch.
"""

from collections.abc import Sequence

import numpy as np

from kernrec.ptx.state.access_cost import AccessPattern
from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass

MOST_ENTRIES = 1 << 18
"""Sectors that are kept of a batch of blocks: of a longer one its beginning."""


@dataclass(frozen=True)
class BlockTrace:
    """The sectors that a block requested, in order: each warp's request with its distinct sectors; arrays (N,)."""

    step: Array
    """Which run of a piece of machine code the request was part of, counted from the start of the block's batch."""
    warp: Array
    """Warp of the block."""
    sector: Array
    """Address of the sector / 32; buffers are far apart."""
    is_read: Array
    """Whether it was a load."""


_Event = tuple[int, bool, Array, Array, int]  # step, whether a load, warps, sectors less the base's, the base's sector


class AccessTrace:
    """Requests of each of the thread blocks with the linear numbers `blocks`; other blocks are ignored."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self._watched = frozenset(blocks)
        self._batch: Sequence[int] = ()
        self._warps = 1
        self._first_step = 0
        self._room = 0  # entries that the present batch may still keep
        self._events: list[_Event] = []
        self._traces: dict[int, BlockTrace] = {}
        self._atomics: list[tuple[Array, Array]] = []

    def start_batch(self, block_numbers: Sequence[int], warps: int, step: int) -> None:
        """The thread blocks with these linear numbers run next, each of so many warps, from this step on."""
        self._finish()
        self._batch, self._warps, self._first_step = block_numbers, warps, step
        self._room = MOST_ENTRIES if self._watched & {*block_numbers} else 0

    @property
    def full(self) -> bool:
        """Whether no more is kept of the present batch."""
        return self._room <= 0

    def skip_steps(self, count: int) -> None:
        """As many steps were recorded that were not run."""
        self._first_step -= count

    def record(self, step: int, pattern: AccessPattern, base: int, is_read: bool) -> None:
        """Keeps one load or store, whose lanes access `pattern` relative to address `base`."""
        if self._room > 0:
            warps, sectors = pattern.sectors_by_warp(base)
            self._events.append((step - self._first_step, is_read, warps, sectors, base >> 5))
            self._room -= len(sectors)

    def record_sectors(self, step: int, is_read: bool, warps: Array, sectors: Array) -> None:
        """Keeps one load or store: the distinct sectors of each warp, by address / 32."""
        if self._room > 0:
            self._events.append((step - self._first_step, is_read, warps, sectors, 0))
            self._room -= len(sectors)

    def record_atomic(self, addresses: Array, block_of: Array) -> None:
        """Keeps an atomic operation: of each lane its address and the position of its block in the batch."""
        if self._room > 0:
            watched = np.array([block in self._watched for block in self._batch])[block_of]
            self._atomics.append((addresses[watched], np.asarray(self._batch)[block_of[watched]]))
            self._room -= len(addresses)

    def blocks(self) -> dict[int, BlockTrace]:
        """The traces by block."""
        self._finish()
        return self._traces

    def atomics(self) -> tuple[Array, Array]:
        """Addresses of all atomic lane operations, and the linear number of each one's block."""
        if not self._atomics:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        addresses, blocks = zip(*self._atomics, strict=True)
        return np.concatenate(addresses), np.concatenate(blocks)

    def _finish(self) -> None:
        """Makes the traces of the batch that ran."""
        # Accesses of trips that were left out are told after those that follow them.
        events, self._events = sorted(self._events, key=lambda event: event[0]), []
        if not events:
            return
        sizes = [len(sectors) for _, _, _, sectors, _ in events]
        step = np.repeat([event[0] for event in events], sizes)
        is_read = np.repeat([event[1] for event in events], sizes)
        warp = np.concatenate([event[2] for event in events])
        sector = np.concatenate([event[3] for event in events]) + np.repeat([event[4] for event in events], sizes)
        for place, block in enumerate(self._batch):
            if block in self._watched:
                own = warp // self._warps == place
                self._traces[block] = BlockTrace(step[own], warp[own] % self._warps, sector[own], is_read[own])
