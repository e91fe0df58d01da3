"""Trips of a loop, and whether, and how often, they repeat."""

from typing import NamedTuple

import numpy as np

from kernrec.ptx.analysis.loops import Loop
from kernrec.ptx.state.access_counters import GlobalRequest
from kernrec.ptx.state.types import Array


class Trip(NamedTuple):
    """One trip of a loop."""

    work: int
    """Hash of all that it did, apart from addresses: trips with the same hash did the same."""

    counts: dict[str, int]
    """Its share of the counts, but for global memory."""

    runs: tuple[tuple[int, int], ...]
    """Warps and lanes that ran each basic block of the loop."""

    barriers: int
    """Barriers that blocks passed."""

    requests: list[GlobalRequest]
    """Its accesses to global memory, in order."""

    compared: list[tuple[Array, Array]]
    """Left and right operand of each comparison at its end, in all lanes."""

    lanes: Array
    """Those that ran it; bool."""

    remainders: list[Array]
    """Each register that may only move by multiples of a number, at its end."""

    state: list[Array]
    """The carried registers at its end."""

    def differences(self) -> list[Array]:
        """Left minus right operand of each comparison, in the lanes that ran it."""
        return [left.astype(np.int64)[self.lanes] - right.astype(np.int64)[self.lanes] for left, right in self.compared]


def is_period(loop: Loop, trips: list[Trip], period: int, evidence: int, repeats: dict[tuple[int, int], bool]) -> bool:
    """Whether trips do the same again after `period` of them, with the state changed by the same.

    Args:
        loop: of which one that is not steady is told by its state alone.
        trips: of it.
        period: in trips.
        evidence: the fewest trips that have to show it.
        repeats: what was found of (trip, period) before, which is added to.
    """
    shown = max(period, evidence)
    if shown + 2 * period > len(trips) + 1:
        return False
    for back in range(1, shown + 1):
        key = len(trips) - back, period
        repeating = repeats.get(key)
        if repeating is None:
            repeating = repeats[key] = _repeats(trips, back, period, loop.steady)
        if not repeating:
            return False
    return True


def moves_by_multiples(loop: Loop, now: Trip, then: Trip) -> bool:
    """Whether the registers of `Loop.moduli` moved by multiples of their number from one trip to another."""
    return all(
        not ((a.view(f"i{a.dtype.itemsize}") - b.view(f"i{a.dtype.itemsize}")).astype(np.int64) % modulus).any()
        for a, b, (_, modulus) in zip(now.remainders, then.remainders, loop.moduli, strict=True)
    )


def _repeats(trips: list[Trip], back: int, period: int, steady: bool) -> bool:
    """Whether the trip that is `back` from the end did what the one a period before did, and changed as much.

    `steady`: False: what it did does not matter.
    """
    now, then = trips[-back], trips[-back - period]
    if steady and now.work != then.work:
        return False
    if back > 1 and len(trips) < back + 2 * period:
        return True  # too early to tell how much it changed
    before = trips[-back - 2 * period]
    return all(_goes_on(*values) for values in zip(now.state, then.state, before.state, strict=True))


def _goes_on(now: Array, then: Array, before: Array) -> bool:
    """Whether a register changed by the same amount twice; a predicate: not at all."""
    same = now == then if now.dtype == bool else now - then == then - before  # `np.array_equal` takes twice as long
    return bool(same.all())


def repetitions(loop: Loop, last: list[Trip], before: list[Trip], least: int = 0) -> int:
    """How often some trips repeat until a comparison comes out another way in a lane; 0 where none ever does.

    The last two are left: one is executed and checked, and values at the end of a trip may be those of the next.

    least: fewer repetitions are as good as none, and 0 is returned.
    """
    fewest = 0
    for trip, earlier in zip(last, before, strict=True):
        for comparison, now, then in zip(loop.comparisons, trip.differences(), earlier.differences(), strict=True):
            if change := _first_change(comparison.kind, now, now - then):
                if change - 3 < least:
                    return 0
                fewest = min(fewest or change, change)
    return max(fewest - 3, 0)


def _first_change(kind: str, difference: Array, step: Array) -> int:
    """The least number of steps from 1 after which `difference <kind> 0` comes out another way in a lane; 0: never.

    1 too where the last step changed it: the trip that it was for is still to come.
    """
    moving = step != 0
    difference, step = difference[moving], step[moving]
    if kind == "eq":
        if ((difference == 0) | (difference == step)).any():
            return 1
        counts = np.where(difference % step == 0, -difference // step, 0)
    else:
        if kind == "le":
            difference = difference - 1
        if len(step) and (step == step[0]).all():  # of lanes that move alike those nearest to zero come first
            below, above = difference[difference < 0], difference[difference >= 0]
            nearest = [*([below.max()] if len(below) else []), *([above.min()] if len(above) else [])]
            difference, step = np.array(nearest), step[: len(nearest)]
        if ((difference < 0) != (difference - step < 0)).any():
            return 1
        up = (difference < 0) & (step > 0)
        down = (difference >= 0) & (step < 0)
        rise, fall = np.where(up, step, 1), np.where(down, -step, 1)
        counts = np.where(up, (-difference + rise - 1) // rise, np.where(down, difference // fall + 1, 0))
    counts = counts[counts > 0]
    return int(counts.min()) if len(counts) else 0
