"""Barriers in shared memory (`mbarrier` objects): phases, arrivals and bytes of asynchronous copies.

A barrier is a word of 8 bytes (PTX ISA, section 9.7.13.15: the contents are opaque; the layout here is ours): arrivals
pending in bits 0 to 19, expected in each phase in 20 to 39, the transaction count in 40 to 60 (signed), the parity of
the phase in 61, and 01 in the highest two bits, by which a word that no thread initialized is recognized. A phase
completes when neither an arrival nor a byte is pending; then the next begins with the expected arrivals.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernrec.ptx.state.types import Array

MOST_ARRIVALS = (1 << 20) - 1
"""Arrivals of a phase, and bytes pending either way (PTX ISA, sections 9.7.13.15.2 and 9.7.13.15.6)."""

_MARK = np.uint64(1)
_LOW = (1 << 20) - 1
_TX_BITS = 21


class BarrierMisuseError(Exception):
    """A barrier is used as it must not be; the text says how."""


class Phase(NamedTuple):
    """The state of a barrier."""

    pending: int
    """Arrivals that are missing."""

    expected: int
    """Arrivals of the phases that follow."""

    bytes: int
    """Transaction count: bytes that are announced and did not come yet; negative where they came first."""

    parity: int
    """0 in the first phase, 1 in the second, and so on in turn."""

    def word(self) -> int:
        """The 8 bytes in memory."""
        tx = self.bytes & (1 << _TX_BITS) - 1
        return self.pending | self.expected << 20 | tx << 40 | self.parity << 61 | 1 << 62


def phase_of(word: int) -> Phase:
    """The state that a word in memory stands for.

    Raises:
        BarrierMisuseError: no barrier was initialized there, or something wrote over it.
    """
    if word >> 62 != 1:
        raise BarrierMisuseError("which holds no initialized barrier")
    tx = word >> 40 & (1 << _TX_BITS) - 1
    return Phase(word & _LOW, word >> 20 & _LOW, tx - (tx >> _TX_BITS - 1 << _TX_BITS), word >> 61 & 1)


class Mbarriers:
    """The barriers in the shared memory of a batch of blocks; a place is a byte of the memory of the batch."""

    def __init__(self, words: Array, on_completion: Callable[[int], None] | None = None) -> None:
        """`words`: shared memory, 8 bytes at a time; `on_completion` is told the place of a barrier whose phase
        completes."""
        self._words = words
        self._initialized: set[int] = set()  # places
        self.completed = 0
        """Phases that completed so far."""
        self._on_completion = on_completion

    def phase(self, place: int) -> Phase:
        """The state of a barrier."""
        return phase_of(int(self._words[place >> 3]))

    def initialize(self, place: int, count: int) -> None:
        """`mbarrier.init`: a first phase with `count` arrivals.

        Where a barrier is, `mbarrier.inval` must come first (PTX ISA, section "mbarrier.init").
        """
        if place in self._initialized and int(self._words[place >> 3]) >> 62 == 1:
            raise BarrierMisuseError("which is initialized already, with no mbarrier.inval since")
        self._initialized.add(place)
        if not 1 <= count <= MOST_ARRIVALS:
            raise BarrierMisuseError(f"initialized with {count} arrivals, 1 to {MOST_ARRIVALS} are possible")
        self._words[place >> 3] = Phase(count, count, 0, 0).word()

    def invalidate(self, place: int) -> None:
        """`mbarrier.inval`: the memory may be used for something else."""
        self.phase(place)
        self._initialized.discard(place)
        self._words[place >> 3] = 0

    def expect(self, place: int, amount: int) -> None:
        """Adds to the transaction count: bytes announced (positive), or that came (negative)."""
        state = self.phase(place)
        total = state.bytes + amount
        if not -MOST_ARRIVALS <= total <= MOST_ARRIVALS:
            raise BarrierMisuseError(f"whose transaction count would be {total}, beyond {MOST_ARRIVALS} bytes")
        self._settle(place, state._replace(bytes=total))

    def arrive(self, place: int, count: int, *, drop: bool = False, completes: bool = True) -> int:
        """Counts arrivals.

        Args:
            place: of the barrier.
            count: how many arrive.
            drop: whether they are missing in the phases that follow, too (`mbarrier.arrive_drop`).
            completes: whether the phase may complete by it (without `.noComplete`).

        Returns:
            The barrier's word before.
        """
        word = int(self._words[place >> 3])
        state = phase_of(word)
        if not 1 <= count <= state.pending:
            raise BarrierMisuseError(f"where {state.pending} arrivals are pending in this phase, and {count} come")
        if not completes and count == state.pending and not state.bytes:
            raise BarrierMisuseError("whose phase completes by an arrival that says .noComplete")
        expected = state.expected - count if drop else state.expected
        if expected < 0:
            raise BarrierMisuseError(f"that expects {state.expected} arrivals, and {count} are dropped")
        self._settle(place, state._replace(pending=state.pending - count, expected=expected))
        return word

    def await_more(self, place: int, count: int) -> None:
        """One phase waits for `count` more arrivals (`cp.async.mbarrier.arrive` without `.noinc`)."""
        state = self.phase(place)
        if state.pending + count > MOST_ARRIVALS:
            raise BarrierMisuseError(f"whose pending arrivals would be {state.pending + count}")
        self._words[place >> 3] = state._replace(pending=state.pending + count).word()

    def passed(self, places: Array, parities: Array) -> Array:
        """Whether the phase of each parity completed at each barrier: the next one has begun; bool (N)."""
        words = self._words[places >> 3]
        if (words >> np.uint64(62) != _MARK).any():
            raise BarrierMisuseError("which holds no initialized barrier")
        done: Array = (words >> np.uint64(61) & np.uint64(1)) != parities.astype(np.uint64)
        return done

    def _settle(self, place: int, state: Phase) -> None:
        """Keeps a state; where nothing is pending in it, the next phase begins."""
        if not state.pending and not state.bytes:
            state = Phase(state.expected, state.expected, 0, state.parity ^ 1)
            self.completed += 1
            if self._on_completion is not None:
                self._on_completion(place)
        self._words[place >> 3] = state.word()


def parity_of(tokens: Array) -> Array:
    """The parity of the phase that each state token (the word of a barrier before an arrival) is of."""
    parity: Array = tokens >> np.uint64(61) & np.uint64(1)
    return parity
