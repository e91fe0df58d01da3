"""Long loops from a few of their trips, where only counts are asked for.

Trips of a loop are watched; `kernrec.ptx.analysis.loops` says of which. Of a *steady* loop a few foretell the others.
Once the last `p` trips did what the `p` before did (the same basic blocks, the same counts, the same access patterns at
addresses moved by a constant each), and the steering registers that a trip leaves for the next changed by the same
amounts, the comparisons of the loop tell how often these trips repeat before one of them comes out another way: the
one that ends the loop, or that of a guard. But for the last two, these repetitions are not executed: their counts are
added, their accesses to global memory are recorded at the addresses that they would have, and the steering registers
are set to where they would be. The next `p` trips have to go on as foretold, or `UnsteadyError` is raised; then the
loop is watched again.

A loop that is counted but not steady is *sampled*. Its trips follow data, so none foretells another; but where
the state that they carry changes evenly, the comparisons tell how many are to come. Some in a row are executed, those
behind them are left out, and so on to the end, with the same distance between: each left-out trip counts as an executed
one, with accesses on a straight line from where that one made them to where the next executed ones do. This is an
estimate, with an error where trips differ much; `sampled` says how much of the counts it is.

Values are wrong afterwards: this is not for results. Of a loop with steering registers that are not linear (remainders,
bits, minima) more trips have to show that they repeat, which is no proof that they go on to.
"""

from typing import NamedTuple

import numpy as np

from kernrec.ptx.analysis.loops import Loop, counted_loops
from kernrec.ptx.execution.barriers import Barriers
from kernrec.ptx.execution.trips import Trip, is_period, moves_by_multiples, repetitions
from kernrec.ptx.instructions.decoder import DecodedBlock, OperandResolver
from kernrec.ptx.ir.operand import Register
from kernrec.ptx.state.access_counters import GlobalRequest, between
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.types import Array

_LONGEST_PERIOD = 64
_MOST_REQUESTS = 4096  # that are remembered: some 8 KiB each
_FEWEST_LEFT_OUT = 16  # trips
_EVIDENCE = 16  # trips that have to follow the rule, where the code does not show that they always do
_FEWEST_TO_SAMPLE = 96  # trips to come of a loop whose trips follow data
_SAMPLES = 24  # of such a loop: pieces of it that begin with trips that are executed
_SHORTEST_PIECE = 15  # trips of a piece that are left out
_MOST_FAILURES = 2  # runs of a loop that were watched to no end, before it is left alone


class UnsteadyError(Exception):
    """Trips that were left out would not have been like those before them: the counts are wrong."""


class _Totals(NamedTuple):
    """The work done so far."""

    counts: dict[str, int]
    runs: list[tuple[int, int]]
    """Warps and lanes that ran each basic block of a loop."""

    barriers: int
    """Barriers that blocks passed."""

    requests: int
    """Accesses to global memory in the trace."""


class _Forecast(NamedTuple):
    """The trips that have to follow those that were left out."""

    trips: list[Trip]
    moves: list[list[int]]
    """Bytes that each access of each trip moves until it repeats; nothing where they are a sample."""

    times: int
    """How often the trips repeat until they are executed again."""

    turns: int
    """Runs of basic blocks that were left out for it."""


class _Rows(NamedTuple):
    """The rows of registers that are kept of every trip."""

    compared: list[tuple[Array, Array]]
    remainders: list[Array]
    state: list[Array]


class _Watch:
    """One loop while the same lanes run it together."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.watching = False
        self.failures = 0
        self.trips: list[Trip] = []
        self.repeats: dict[tuple[int, int], bool] = {}  # of (trip, period), as far as it is known
        self.rows: _Rows | None = None
        self.forecast: _Forecast | None = None
        self.distance: int | None = None  # trips between those of a sample and the next, once that is known
        self.begin = _Totals({}, [], 0, 0)  # when the trip began
        self.lanes: Array | None = None  # that run the loop

    def forget_trips(self) -> None:
        """Begins to look at trips anew."""
        self.trips, self.repeats = [], {}

    def runs_with(self, lanes: Array) -> bool:
        """Whether these are the lanes that ran the last trip."""
        return self.lanes is lanes or (self.lanes is not None and np.array_equal(self.lanes, lanes))


class Extrapolation:
    """Watches the loops of one kernel, and leaves out trips; see this module's description."""

    def __init__(
        self, operands: OperandResolver, memory: Memory, barriers: Barriers, decoded: list[DecodedBlock | None]
    ) -> None:
        self.issued = 0  # machine instructions of the trips that were left out
        self.sampled = 0  # those of loops that are not steady
        self._operands = operands
        self._memory = memory
        self._barriers = barriers
        self._decoded = decoded
        self._watches = {header: _Watch(loop) for header, loop in counted_loops(operands.function).items()}
        self.headers = frozenset(self._watches)

    def start_batch(self) -> None:
        """Forgets the trips of the last batch."""
        for watch in self._watches.values():
            self._stop(watch)

    def end_batch(self) -> None:
        """All lanes exited.

        Raises:
            UnsteadyError: trips that had to follow those that were left out never came.
        """
        if any(watch.forecast is not None for watch in self._watches.values()):
            raise UnsteadyError

    def arrive(self, header: int, previous: int, lanes: Array, others: int | None = None) -> None:
        """Lanes are at the header of a loop.

        Args:
            header: the basic block that it begins with.
            previous: the basic block that ran before.
            lanes: which; they run while all others stay where they are.
            others: the lowest basic block of the other live lanes; None: there are none.

        Raises:
            UnsteadyError: trips that were left out were not what they were taken for.
        """
        watch = self._watches[header]
        if others is not None and (others <= watch.loop.blocks[-1] or watch.loop.barriers):
            return
        if previous not in watch.loop.blocks or not watch.runs_with(lanes):
            if watch.failures < _MOST_FAILURES:
                self._start(watch, lanes)
            return
        if not watch.watching:
            return
        trip = self._finish_trip(watch)
        watch.trips.append(trip)
        if watch.forecast is not None:
            self._reach(watch, trip, watch.forecast)
            if watch.forecast is not None or watch.loop.steady:
                return
        if not self._leave_out(watch):
            too_much = sum(len(t.requests) for t in watch.trips) > _MOST_REQUESTS
            if too_much or len(watch.trips) > 2 * _LONGEST_PERIOD + _EVIDENCE:
                watch.failures += 1
                self._stop(watch)

    # Watching

    def _start(self, watch: _Watch, lanes: Array) -> None:
        if watch.forecast is not None:
            raise UnsteadyError
        watch.watching, watch.lanes, watch.distance = True, lanes, None
        watch.forget_trips()
        if watch.rows is None:
            watch.rows = self._rows(watch.loop)
        if self._memory.counters.trace is None:
            self._memory.counters.trace = []
        watch.begin = self._totals(watch)

    def _stop(self, watch: _Watch) -> None:
        watch.watching, watch.lanes = False, None
        watch.forecast, watch.distance = None, None
        watch.forget_trips()
        if not any(other.watching for other in self._watches.values()):
            self._memory.counters.trace = None

    def _totals(self, watch: _Watch) -> _Totals:
        counts, trace = self._memory.counters.counts, self._memory.counters.trace
        assert counts is not None
        assert trace is not None
        return _Totals(dict(counts), self._runs(watch.loop), self._barriers.passed, len(trace))

    def _runs(self, loop: Loop) -> list[tuple[int, int]]:
        """Warps and lanes that ran each basic block so far."""
        codes = [self._decoded[block] for block in loop.blocks]
        return [(0, 0) if code is None else (code.warps, code.lanes) for code in codes]

    def _finish_trip(self, watch: _Watch) -> Trip:
        """The trip since the last arrival."""
        begin = watch.begin
        watch.begin = end = self._totals(watch)
        ran = tuple((new[0] - old[0], new[1] - old[1]) for new, old in zip(end.runs, begin.runs, strict=True))
        added = {
            name: value - begin.counts.get(name, 0)
            for name, value in end.counts.items()
            if value != begin.counts.get(name, 0) and not name.startswith("global.")
        }
        passed = end.barriers - begin.barriers
        trace, rows, lanes = self._memory.counters.trace, watch.rows, watch.lanes
        assert trace is not None
        assert rows is not None
        assert lanes is not None
        compared = [(left.copy(), right.copy()) for left, right in rows.compared]
        remainders = [row.copy() for row in rows.remainders]
        requests = trace[begin.requests : end.requests]
        work = hash((frozenset(added.items()), ran, passed, tuple([request.shape for request in requests])))
        state = [row.copy() for row in rows.state]
        return Trip(work, added, ran, passed, requests, compared, lanes, remainders, state)

    def _rows(self, loop: Loop) -> _Rows:
        row = self._operands.row
        return _Rows(
            [(row(c.left, c.type), row(c.right, c.type)) for c in loop.comparisons],
            [self._register(register.name) for register, _ in loop.moduli],
            [self._register(name) for name in loop.carried],
        )

    def _register(self, name: str) -> Array:
        """The lanes of a register as unsigned integers, or flags."""
        width = self._operands.registers.rows.register(name)[0]
        return self._operands.row(Register(name), "pred" if width == 1 else f"u{width}")

    # Leaving out

    def _leave_out(self, watch: _Watch) -> bool:
        """Leaves out trips that repeat the last ones, if that are enough of them."""
        if any(other.forecast is not None for other in self._watches.values()):
            return False
        loop, trips, evidence = watch.loop, watch.trips, 0 if watch.loop.linear else _EVIDENCE
        leave_out = self._leave_out_repetitions if loop.steady else self._leave_out_to_next_sample
        for period in range(1, min(_LONGEST_PERIOD, (len(trips) - 1) // 2) + 1):
            if (least := self._least(watch, period)) is None:
                continue
            if is_period(loop, trips, period, evidence, watch.repeats) and moves_by_multiples(
                loop, trips[-1], trips[-1 - period]
            ):
                times = repetitions(loop, trips[-period:], trips[-2 * period : -period], least)
                if leave_out(watch, period, times):
                    return True
        return False

    def _least(self, watch: _Watch, period: int) -> int | None:
        """The fewest repetitions of `period` trips that let some be left out; None where no number of them does."""
        if watch.loop.steady or watch.distance is None:
            return -(-(_FEWEST_LEFT_OUT if watch.loop.steady else _FEWEST_TO_SAMPLE) // period)
        together = len(watch.trips) // period
        return 3 * together if watch.distance // period // together >= 2 else None

    def _leave_out_repetitions(self, watch: _Watch, period: int, times: int) -> bool:
        """Leaves out repetitions of the last `period` trips of a steady loop; whether `times` of them are enough."""
        if times * period < _FEWEST_LEFT_OUT:
            return False
        last, before = watch.trips[-period:], watch.trips[-2 * period : -period]
        moves = [
            [a.first - b.first for a, b in zip(trip.requests, earlier.requests, strict=True)]
            for trip, earlier in zip(last, before, strict=True)
        ]
        offsets = [move * np.arange(1, times + 1) for of_trip in moves for move in of_trip]
        turns = self._add_work(watch, last, times)
        self._memory.counters.repeat(_requests(last), offsets, turns)
        self._go_on_behind(watch, period, times, _Forecast(last, moves, times, turns))
        return True

    def _leave_out_to_next_sample(self, watch: _Watch, period: int, periods: int) -> bool:
        """Leaves out trips behind those that were executed last; whether there are enough to come.

        Args:
            watch: of a loop that is not steady.
            period: trips after which the state changes by the same again.
            periods: how many of them are to come.
        """
        if watch.distance is None:
            if periods * period < _FEWEST_TO_SAMPLE:
                return False
            watch.distance = max(periods * period // _SAMPLES, _SHORTEST_PIECE)
        together = len(watch.trips) // period  # periods that stand for those to come
        times = min(watch.distance // period, periods - together) // together
        if times < 2:  # as many as are executed
            return False
        sample = watch.trips[-together * period :]
        turns = self._add_work(watch, sample, times)
        self._go_on_behind(watch, period, times * together, _Forecast(sample, [], times, turns))
        return True

    def _go_on_behind(self, watch: _Watch, period: int, periods: int, forecast: _Forecast) -> None:
        """Sets the carried registers to where they are behind some periods, and expects what `forecast` says."""
        last, before = watch.trips[-1], watch.trips[-1 - period]
        for name, now, then in zip(watch.loop.carried, last.state, before.state, strict=True):
            if now.dtype != bool:
                self._register(name)[:] += (now - then) * now.dtype.type(periods)
        for other in self._watches.values():
            if other is not watch and other.watching:
                self._stop(other)
        watch.forecast = forecast
        watch.forget_trips()
        watch.begin = self._totals(watch)

    def _add_work(self, watch: _Watch, trips: list[Trip], times: int) -> int:
        """Adds what `times` repetitions of some trips do, but for their accesses to global memory.

        Returns:
            Their runs of basic blocks, which `Memory.repeat` is to know.
        """
        memory = self._memory
        assert memory.counters.counts is not None
        codes = [self._decoded[block] for block in watch.loop.blocks]
        issued = 0
        for trip in trips:
            for name, value in trip.counts.items():
                memory.counters.counts.bump(name, value * times)
            for code, (warps, lanes) in zip(codes, trip.runs, strict=True):
                if code is not None:
                    code.warps += warps * times
                    code.lanes += lanes * times
                    issued += sum(code.issue.values()) * warps * times
            self._barriers.passed += trip.barriers * times
        self.issued += issued
        if not watch.loop.steady:
            self.sampled += issued
        return memory.counters.leave_turns_out(_requests(trips), times)

    def _reach(self, watch: _Watch, trip: Trip, forecast: _Forecast) -> None:
        """Takes the next trip behind those that were left out; the last that was waited for ends the forecast."""
        if watch.loop.steady:
            self._check(trip, forecast, len(watch.trips) - 1)
        if len(watch.trips) < len(forecast.trips):
            return
        watch.forecast = None
        if not watch.loop.steady:
            sample, following = _requests(forecast.trips), _requests(watch.trips)
            self._memory.counters.repeat(sample, between(sample, following, forecast.times), forecast.turns)

    def _check(self, trip: Trip, forecast: _Forecast, number: int) -> None:
        """Compares a trip behind those that were left out with the one of this number that it should repeat."""
        expected, moves = forecast.trips[number], forecast.moves[number]
        as_foretold = expected.work == trip.work and all(
            then.first + move * (forecast.times + 1) == now.first
            for then, now, move in zip(expected.requests, trip.requests, moves, strict=True)
        )
        if not as_foretold:
            raise UnsteadyError


def _requests(trips: list[Trip]) -> list[GlobalRequest]:
    """All accesses to global memory of some trips, in order."""
    return [request for trip in trips for request in trip.requests]
