"""Barriers in shared memory: `mbarrier.*` (PTX ISA, sections 9.7.13.15.9 to 9.7.13.15.18).

`test_wait` and `try_wait` both wait here until the phase completes: a thread that polls may be delayed as long as one
likes. Where nothing else can go on they run into their time limit, and their result is false; so a program that tests
a barrier before it does what completes the phase goes on, too. Where races are checked, the first test of a phase that
did not complete is false at once, as it may be on the machine: a kernel that takes a test for a wait is found.
"""

from collections.abc import Callable

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Operand, Register
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.mbarriers import BarrierMisuseError, parity_of, phase_of
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.types import Array

_WORD = 8
_MODIFIERS = frozenset(
    {
        *("shared", "cta", "cluster", "b64", "release", "acquire", "relaxed", "noComplete", "expect_tx", "parity"),
        *("init", "inval", "arrive", "arrive_drop", "complete_tx", "test_wait", "try_wait", "pending_count"),
    }
)


class Barriers:
    """The barriers that an instruction's lanes name."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction, address: Operand) -> None:
        self.memory: Memory = decoder.memory
        self._row, offset = decoder.address(address_of(address))
        space = "shared" if "shared" in ins.modifiers else "generic"
        self.access = Access(decoder.function, ins, space, offset, _WORD, _WORD)

    def of(self, numbers: Array) -> tuple[Array, Array]:
        """Lanes of those with these `numbers`, and the place of each one's barrier."""
        if not len(numbers):
            return numbers, numbers
        lanes, places = self.memory.shared_places(self.access, self.memory.select(numbers, self._row[numbers]))
        if isinstance(self.memory.races, PhaseRaceDetector):
            changes = self.access.ins.modifiers[0] in ("init", "inval")
            note = self.memory.races.initialize if changes else self.memory.races.use
            note(self.access.location, lanes, places)
        return lanes, places

    def each(self, numbers: Array, act: Callable[[int, int], None]) -> None:
        """Runs `act(lane, place)` for each of the lanes with these `numbers` in turn."""
        self.each_of(self.of(numbers), act)

    def each_of(self, barriers: tuple[Array, Array], act: Callable[[int, int], None]) -> None:
        """Runs `act(lane, place)` for each lane and the place of its barrier."""
        lanes, places = barriers
        for lane, place in zip(lanes.tolist(), places.tolist(), strict=True):
            try:
                act(lane, place)
            except BarrierMisuseError as error:
                raise self.misuse(error, lane, place) from None

    def misuse(self, error: BarrierMisuseError, lane: int, place: int) -> EmulationError:
        """The error for a lane and the place of its barrier."""
        block, thread = self.memory.lanes.coordinates(lane)
        name = self.memory.cluster.name(place)
        return EmulationError(
            f"{self.access.location}: block {block} thread {thread} uses the barrier at {name}, {error}"
        )


def _values(decoder: BlockDecoder, operands: tuple[Operand, ...], missing: int) -> Callable[[int], int]:
    """The count of each lane: an operand, or where there is none a number."""
    if not operands:
        return lambda lane: missing
    row = decoder.row(operands[0], "u32")
    return lambda lane: int(row[lane])


@steps("mbarrier")
def _mbarrier(decoder: BlockDecoder, ins: Instruction) -> Step:
    unknown = [m for m in ins.modifiers if m not in _MODIFIERS]
    if unknown or ins.modifiers[-1] != "b64":
        raise UnsupportedFormError(f".{unknown[0]}" if unknown else "")
    kind = ins.modifiers[0]
    if kind in ("test_wait", "try_wait"):
        return _test(decoder, ins)
    if kind in ("arrive", "arrive_drop"):
        return _arrive(decoder, ins)
    if kind == "pending_count":
        return _pending_count(decoder, ins)
    barriers = Barriers(decoder, ins, ins.operands[0])
    mbarriers = decoder.memory.mbarriers
    count = _values(decoder, ins.operands[1:], 0)
    running = decoder.running_numbers(ins)
    acts: dict[str, Callable[[int, int], None]] = {
        "init": lambda lane, place: mbarriers.initialize(place, count(lane)),
        "inval": lambda lane, place: mbarriers.invalidate(place),
        "expect_tx": lambda lane, place: mbarriers.expect(place, count(lane)),
        "complete_tx": lambda lane, place: mbarriers.expect(place, -count(lane)),
    }
    act = acts[kind]
    return lambda: barriers.each(running(), act)


def _arrive(decoder: BlockDecoder, ins: Instruction) -> Step:
    operands = ins.operands
    target: Array | None = None
    if isinstance(operands[0], Register):
        target = None if operands[0] == Register("_") else decoder.row(operands[0], "b64")
        operands = operands[1:]
    barriers = Barriers(decoder, ins, operands[0])
    memory, mbarriers = decoder.memory, decoder.memory.mbarriers
    expects = "expect_tx" in ins.modifiers
    releases = "relaxed" not in ins.modifiers and memory.races is not None
    amount = _values(decoder, operands[1:], 1)
    drop, completes = ins.modifiers[0] == "arrive_drop", "noComplete" not in ins.modifiers
    running = decoder.running_numbers(ins)

    released: set[tuple[int, int, int]] = set()  # what lanes of a warp that arrive together need to tell once

    def act(lane: int, place: int) -> None:
        if expects:
            mbarriers.expect(place, amount(lane))
        if releases and (of_warp := (lane // WARP, place, mbarriers.completed)) not in released:
            released.add(of_warp)
            memory.release(lane, place)
        word = mbarriers.arrive(place, 1 if expects else amount(lane), drop=drop, completes=completes)
        if target is not None:
            target[lane] = word

    def run() -> None:
        released.clear()
        barriers.each(running(), act)

    return run


def _pending_count(decoder: BlockDecoder, ins: Instruction) -> Step:
    target, token = decoder.row(ins.operands[0], "b32"), decoder.row(ins.operands[1], "b64")
    running = decoder.running_numbers(ins)

    def run() -> None:
        for lane in running().tolist():
            try:
                target[lane] = phase_of(int(token[lane])).pending
            except BarrierMisuseError:
                raise EmulationError(f"{Access(decoder.function, ins, 'shared', 0, 8, 8).location}: no state") from None

    return run


class PhaseTest:
    """The test of a phase: which lanes may run it, and what comes out."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction) -> None:
        self.barriers = Barriers(decoder, ins, ins.operands[1])
        self.is_parity = "parity" in ins.modifiers
        self._wanted = decoder.row(ins.operands[2], "u32" if self.is_parity else "b64")
        self._guard, self._negated = decoder.predicate(ins)

    def completed(self, numbers: Array) -> tuple[Array, Array, Array]:
        """Lanes of those with these `numbers`, the places of their barriers, and whether each one's phase completed."""
        lanes, places = self.barriers.of(numbers)
        wanted = self._wanted[lanes]
        parities = wanted & np.uint32(1) if self.is_parity else parity_of(wanted)
        try:
            return lanes, places, self.barriers.memory.mbarriers.passed(places, parities)
        except BarrierMisuseError as error:
            for lane, place in zip(lanes.tolist(), places.tolist(), strict=True):
                try:
                    self.barriers.memory.mbarriers.phase(place)
                except BarrierMisuseError:
                    raise self.barriers.misuse(error, lane, place) from None
            raise

    def waiting(self, mask: Array) -> tuple[Array, Array]:
        """The lanes of a mask whose phase did not complete: their numbers, and the places of their barriers."""
        if self._guard is not None:
            mask = mask & (~self._guard if self._negated else self._guard)
        numbers = np.flatnonzero(mask)
        if not len(numbers):
            return numbers, numbers
        lanes, places, done = self.completed(numbers)
        return lanes[~done], places[~done]


def _test(decoder: BlockDecoder, ins: Instruction) -> Step:
    test = PhaseTest(decoder, ins)
    target = decoder.row(ins.operands[0], "pred")
    running = decoder.running_numbers(ins)
    memory = decoder.memory

    def run() -> None:
        numbers = running()
        if not len(numbers):
            return
        lanes, places, done = test.completed(numbers)
        target[lanes] = done
        memory.acquire(lanes[done], places[done])
        if memory.counters.counts is not None:
            memory.counters.counts.bump("mbarrier.waits", len(np.unique(lanes[done] >> 5)))

    return run
