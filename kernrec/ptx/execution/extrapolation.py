"""Long loops from a few of their trips, where only counts are asked for.

Trips of a steady loop (`kernrec.ptx.analysis.loops`) are watched. Once the last `p` of them did what the `p` before did
(the same basic blocks, the same counts, the same access patterns at addresses moved by a constant each), and the
steering registers that a trip leaves for the next changed by the same amounts, the comparisons of the loop tell how
often these trips repeat before one of them comes out another way: the one that ends the loop, or that of a guard. But
for the last two, these repetitions are not executed: their counts are added, their accesses to global memory are
recorded at the addresses that they would have, and the steering registers are set to where they would be. The next `p`
trips have to go on as foretold, or `UnsteadyError` is raised; then the loop is watched again.

Values are wrong afterwards: this is not for results. Of a loop with steering registers that are not linear (remainders,
bits, minima) more trips have to show that they repeat, which is no proof that they go on to.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernrec.ptx.analysis.loops import Loop, steady_loops
from kernrec.ptx.execution.barriers import Barriers
from kernrec.ptx.instructions.decoder import DecodedBlock, OperandResolver
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.state.global_request import GlobalRequest
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.types import Array

_LONGEST_PERIOD = 64
_MOST_REQUESTS = 4096  # that are remembered: some 8 KiB each
_FEWEST_LEFT_OUT = 16  # trips
_EVIDENCE = 16  # trips that have to follow the rule, where the code does not show that they always do
_MOST_FAILURES = 2  # runs of a loop that were watched to no end, before it is left alone


class UnsteadyError(Exception):
    """Trips that were left out would not have been like those before them: the counts are wrong."""


class _Totals(NamedTuple):
    """What was done so far."""

    counts: dict[str, int]
    """All counts."""

    runs: list[tuple[int, int]]
    """Warps and lanes that ran each basic block of a loop."""

    barriers: int
    """Barriers that blocks passed."""

    requests: int
    """Accesses to global memory in the trace."""


@dataclass(frozen=True, slots=True)
class _Trip:
    """What one trip of a loop did."""

    work: int
    """Hash of all that it did, apart from addresses: trips with the same hash did the same."""

    counts: dict[str, int]
    """What it added to the counts, but for global memory."""

    runs: tuple[tuple[int, int], ...]
    """Warps and lanes that ran each basic block of the loop."""

    barriers: int
    """Barriers that blocks passed."""

    requests: list[GlobalRequest]
    """Its accesses to global memory, in order."""

    differences: list[Array]
    """Left minus right operand of each comparison, in the live lanes, at its end."""

    remainders: list[Array]
    """Each register that may only move by multiples of a number, at its end."""

    state: list[Array]
    """The carried registers at its end."""


@dataclass(frozen=True)
class _Forecast:
    """The trips that have to follow those that were left out."""

    trips: list[_Trip]
    """Those that repeat."""

    moves: list[list[int]]
    """Bytes that each access of each of them moves until it repeats."""

    times: int
    """How often they repeat until they are executed again."""


class _Watch:
    """One loop while all lanes run it together."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.watching = False
        self.failures = 0
        self.trips: list[_Trip] = []
        self.forecast: _Forecast | None = None
        self.begin = _Totals({}, [], 0, 0)  # when the trip began
        self.live: Array | None = None  # lanes that run the loop


class Extrapolation:
    """Watches the loops of one kernel, and leaves out trips; see this module's description."""

    def __init__(
        self, operands: OperandResolver, memory: Memory, barriers: Barriers, decoded: list[DecodedBlock | None]
    ) -> None:
        self.issued = 0  # machine instructions of the trips that were left out
        self._operands = operands
        self._memory = memory
        self._barriers = barriers
        self._decoded = decoded
        self._watches = {header: _Watch(loop) for header, loop in steady_loops(operands.function).items()}
        self.headers = frozenset(self._watches)

    def start_batch(self) -> None:
        """Forgets the trips of the last batch."""
        for watch in self._watches.values():
            self._stop(watch)

    def arrive(self, header: int, previous: int, live: Array) -> None:
        """All live lanes are at the header of a loop; `previous`: the basic block that ran before.

        Raises:
            UnsteadyError: trips that were left out were not what they were taken for.
        """
        watch = self._watches[header]
        if previous not in watch.loop.blocks or watch.live is not live:
            if watch.failures < _MOST_FAILURES:
                self._start(watch, live)
            return
        if not watch.watching:
            return
        trip = self._finish_trip(watch)
        watch.trips.append(trip)
        if watch.forecast is not None:
            self._check(watch, trip)
        elif not self._leave_out(watch):
            too_much = sum(len(t.requests) for t in watch.trips) > _MOST_REQUESTS
            if too_much or len(watch.trips) > 2 * _LONGEST_PERIOD + _EVIDENCE:
                watch.failures += 1
                self._stop(watch)

    # Watching

    def _start(self, watch: _Watch, live: Array) -> None:
        watch.watching, watch.live = True, live
        watch.trips, watch.forecast = [], None
        if self._memory.trace is None:
            self._memory.trace = []
        watch.begin = self._totals(watch)

    def _stop(self, watch: _Watch) -> None:
        watch.watching, watch.live = False, None
        watch.trips, watch.forecast = [], None
        if not any(other.watching for other in self._watches.values()):
            self._memory.trace = None

    def _totals(self, watch: _Watch) -> _Totals:
        counts, trace = self._memory.counts, self._memory.trace
        assert counts is not None
        assert trace is not None
        return _Totals(dict(counts), self._runs(watch.loop), self._barriers.passed, len(trace))

    def _runs(self, loop: Loop) -> list[tuple[int, int]]:
        """Warps and lanes that ran each basic block so far."""
        codes = [self._decoded[block] for block in loop.blocks]
        return [(0, 0) if code is None else (code.warps, code.lanes) for code in codes]

    def _finish_trip(self, watch: _Watch) -> _Trip:
        """What was done since the last arrival."""
        begin = watch.begin
        watch.begin = end = self._totals(watch)
        ran = tuple((new[0] - old[0], new[1] - old[1]) for new, old in zip(end.runs, begin.runs, strict=True))
        added = {
            name: value - begin.counts.get(name, 0)
            for name, value in end.counts.items()
            if value != begin.counts.get(name, 0) and not name.startswith("global.")
        }
        passed = end.barriers - begin.barriers
        trace, row = self._memory.trace, self._operands.row
        assert trace is not None
        differences = [
            (row(c.left, c.type).astype(np.int64) - row(c.right, c.type).astype(np.int64))[watch.live]
            for c in watch.loop.comparisons
        ]
        remainders = [self._register(register.name).copy() for register, _ in watch.loop.moduli]
        requests = trace[begin.requests : end.requests]
        work = hash((frozenset(added.items()), ran, passed, tuple([request.shape for request in requests])))
        state = [self._register(name).copy() for name in watch.loop.carried]
        return _Trip(work, added, ran, passed, requests, differences, remainders, state)

    def _register(self, name: str) -> Array:
        """The lanes of a register as unsigned integers, or flags."""
        width = self._operands.registers.rows.register(name)[0]
        return self._operands.row(Register(name), "pred" if width == 1 else f"u{width}")

    # Leaving out

    def _leave_out(self, watch: _Watch) -> bool:
        """Leaves out trips that repeat the last ones, if that are enough of them."""
        if any(other.forecast is not None for other in self._watches.values()):
            return False
        trips, evidence = watch.trips, 0 if watch.loop.linear else _EVIDENCE
        for period in range(1, min(_LONGEST_PERIOD, (len(trips) - 1) // 2) + 1):
            if _is_period(trips, period, evidence) and _moves_by_multiples(watch.loop, trips[-1], trips[-1 - period]):
                last, before = trips[-period:], trips[-2 * period : -period]
                times = _repetitions(watch.loop, last, before)
                if times * period >= _FEWEST_LEFT_OUT:
                    self._skip(watch, last, before, times)
                    return True
        return False

    def _skip(self, watch: _Watch, last: list[_Trip], before: list[_Trip], times: int) -> None:
        """Puts the loop behind `times` repetitions of the trips `last`; `before`: those that they repeat."""
        moves = [
            [a.first - b.first for a, b in zip(trip.requests, earlier.requests, strict=True)]
            for trip, earlier in zip(last, before, strict=True)
        ]
        self._add(watch, last, moves, times)
        for name, now, then in zip(watch.loop.carried, last[-1].state, before[-1].state, strict=True):
            if now.dtype != bool:
                self._register(name)[:] += (now - then) * now.dtype.type(times)
        for other in self._watches.values():
            if other is not watch and other.watching:
                self._stop(other)
        watch.forecast = _Forecast(last, moves, times)
        watch.trips = []
        watch.begin = self._totals(watch)

    def _add(self, watch: _Watch, trips: list[_Trip], moves: list[list[int]], times: int) -> None:
        """Adds what `times` repetitions of some trips do."""
        memory = self._memory
        assert memory.counts is not None
        codes = [self._decoded[block] for block in watch.loop.blocks]
        for trip in trips:
            for name, value in trip.counts.items():
                memory.counts.bump(name, value * times)
            for code, (warps, lanes) in zip(codes, trip.runs, strict=True):
                if code is not None:
                    code.warps += warps * times
                    code.lanes += lanes * times
                    self.issued += sum(code.issue.values()) * warps * times
            self._barriers.passed += trip.barriers * times
        requests = [request for trip in trips for request in trip.requests]
        memory.repeat(requests, [move for of_trip in moves for move in of_trip], times)

    def _check(self, watch: _Watch, trip: _Trip) -> None:
        """Compares a trip behind those that were left out with what it should be."""
        forecast = watch.forecast
        assert forecast is not None
        number = len(watch.trips) - 1
        expected, moves = forecast.trips[number], forecast.moves[number]
        as_foretold = expected.work == trip.work and all(
            then.first + move * (forecast.times + 1) == now.first
            for then, now, move in zip(expected.requests, trip.requests, moves, strict=True)
        )
        if not as_foretold:
            raise UnsteadyError
        if number + 1 == len(forecast.trips):
            watch.forecast = None


def _is_period(trips: list[_Trip], period: int, evidence: int) -> bool:
    """Whether trips do the same again after `period` of them, with the state changed by the same.

    `evidence`: the fewest trips that have to show it.
    """
    shown = max(period, evidence)
    return shown + 2 * period <= len(trips) + 1 and all(_repeats(trips, i, period) for i in range(1, shown + 1))


def _moves_by_multiples(loop: Loop, now: _Trip, then: _Trip) -> bool:
    """Whether the registers of `Loop.moduli` moved by multiples of their number from one trip to another."""
    return all(
        not ((a.view(f"i{a.dtype.itemsize}") - b.view(f"i{a.dtype.itemsize}")).astype(np.int64) % modulus).any()
        for a, b, (_, modulus) in zip(now.remainders, then.remainders, loop.moduli, strict=True)
    )


def _repeats(trips: list[_Trip], back: int, period: int) -> bool:
    """Whether the trip that is `back` from the end did what the one a period before did, and changed as much."""
    now, then = trips[-back], trips[-back - period]
    if now.work != then.work:
        return False
    if back > 1 and len(trips) < back + 2 * period:
        return True  # too early to tell how much it changed
    before = trips[-back - 2 * period]
    return all(_goes_on(*values) for values in zip(now.state, then.state, before.state, strict=True))


def _goes_on(now: Array, then: Array, before: Array) -> bool:
    """Whether a register changed by the same amount twice; a predicate: not at all."""
    if now.dtype == bool:
        return np.array_equal(now, then)
    return np.array_equal(now - then, then - before)


def _repetitions(loop: Loop, last: list[_Trip], before: list[_Trip]) -> int:
    """How often some trips repeat until a comparison comes out another way in a lane; 0 where none ever does.

    The last two are left: one is executed and checked, and values at the end of a trip may be those of the next.
    """
    changes = [
        _first_change(comparison.kind, now, now - then)
        for trip, earlier in zip(last, before, strict=True)
        for comparison, now, then in zip(loop.comparisons, trip.differences, earlier.differences, strict=True)
    ]
    return max(min((change for change in changes if change), default=0) - 3, 0)


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
        if ((difference < 0) != (difference - step < 0)).any():
            return 1
        up = (difference < 0) & (step > 0)
        down = (difference >= 0) & (step < 0)
        rise, fall = np.where(up, step, 1), np.where(down, -step, 1)
        counts = np.where(up, (-difference + rise - 1) // rise, np.where(down, difference // fall + 1, 0))
    counts = counts[counts > 0]
    return int(counts.min()) if len(counts) else 0
