"""Asynchronous copies and stores to shared memory: `cp.async` and the instructions that wait for them; `st.async` and
`red.async`, which a barrier counts (PTX ISA, sections 9.7.9.12 and 9.7.13.10). Copies in bulk are in `bulk_copies`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.atomics import OPERATIONS, combination, turns
from kernrec.ptx.instructions.bulk_copies import bulk_step
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.mbarrier import Barriers
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Immediate, Register, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.selection import Selection, SharedSelection
from kernrec.ptx.state.types import DTYPES, Array


@steps("cp")
def _copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    if "bulk" in ins.modifiers:
        return bulk_step(decoder, ins)
    if ins.modifiers[:1] != ("async",):
        raise UnsupportedFormError
    if "mbarrier" in ins.modifiers:
        return _arrive_after_copies(decoder, ins)
    copies, running = decoder.memory.pending.copies, decoder.running_numbers(ins)
    if "commit_group" in ins.modifiers:
        return lambda: copies.commit(running())
    if "wait_all" in ins.modifiers:
        return lambda: copies.wait(running(), None)
    if "wait_group" in ins.modifiers:
        number = ins.operands[0]
        if not isinstance(number, Immediate):
            raise UnsupportedFormError("wait_group without a literal")
        allowed = int(number.value)
        return lambda: copies.wait(running(), allowed)
    return _start_copy(decoder, ins)


def _start_copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    if "shared" not in ins.modifiers or "global" not in ins.modifiers:
        raise UnsupportedFormError
    literal = ins.operands[2]
    if not isinstance(literal, Immediate) or literal.value not in (4, 8, 16):
        raise UnsupportedFormError("a copy of other than 4, 8 or 16 bytes")
    size = int(literal.value)
    if "cg" in ins.modifiers and size != 16:
        raise UnsupportedFormError("a copy of other than 4, 8 or 16 bytes")
    ends = []
    for operand, space in zip(ins.operands, ("shared", "global"), strict=False):
        shared, offset = decoder.selection(ins, address_of(operand))
        ends.append((shared, Access(decoder.function, ins, space, offset, size, min(size, 8))))
    bytes_read: Callable[[Array], Array] | None = None
    extra = ins.operands[3:]
    if "cache_hint" in ins.modifiers:
        extra = extra[:-1]
    if extra:
        operand = extra[0]
        if isinstance(operand, Register) and decoder.function.register_type(operand.name) == "pred":
            ignore = decoder.row(operand, "pred")
            bytes_read = lambda lanes: np.where(ignore[lanes], 0, size)  # noqa: E731
        elif not (isinstance(operand, Immediate) and operand.value == size):
            amounts = decoder.row(operand, "u32")
            bytes_read = lambda lanes: np.minimum(amounts[lanes], size)  # noqa: E731
    target, source = ends
    return partial(_run_copy, decoder.memory, target, source, bytes_read, decoder.stores(ins))


def _run_copy(
    memory: Memory,
    to: tuple[SharedSelection, Access],
    source: tuple[SharedSelection, Access],
    bytes_read: Callable[[Array], Array] | None,
    moves: bool,
) -> None:
    """Starts copies from global to shared memory.

    Args:
        memory: all memories.
        to: lanes and access to shared memory.
        source: lanes and access to global memory.
        bytes_read: for lanes, the bytes that each reads, the rest being zeros; None: all lanes read all.
        moves: whether the bytes are needed; else the copies are counted.
    """
    access, source_access = to[1], source[1]
    target, read = to[0].get(), source[0].get()
    if target is None or read is None:
        return
    [(region, _)] = memory.resolve(access, target)
    memory.record(access, region, target, True)
    lanes = memory.lanes.shape.numbers if target.lanes is None else target.lanes
    size, unit = access.size, access.unit
    data = np.zeros((len(lanes), size // unit), f"u{unit}") if moves else None
    amounts = None if bytes_read is None else bytes_read(lanes)
    if amounts is None or (amounts == size).all():
        _fetch(memory, source_access, read, data, np.arange(len(lanes)))
    else:
        for amount in np.unique(amounts).tolist():
            if amount:
                rows = np.flatnonzero(amounts == amount)
                part = memory.select(lanes[rows], read.addresses[rows])
                partial_access = replace(source_access, size=amount, unit=1 if amount % unit else unit)
                _fetch(memory, partial_access, part, data, rows)
    if data is None:
        return
    index, shift = target.index(region, unit, access.offset)
    memory.pending.copies.start(lanes, region.views[unit], index + shift, data)


def _fetch(memory: Memory, access: Access, selection: Selection, data: Array | None, rows: Array) -> None:
    """Reads what the lanes of `selection` copy into these rows of `data` (lanes, elements); None: counts it."""
    size, unit = access.size, access.unit
    # Of a size that is no power of two, first and last byte are checked.
    whole = size & (size - 1) == 0
    checked = access if whole else replace(access, size=1)
    for region, part in memory.resolve(checked, selection):
        if not whole:
            memory.resolve(replace(checked, offset=access.offset + size - 1), part)
        memory.counters.count_global(access, region, part, "read")
        if data is None:
            continue
        index, shift = part.index(region, unit, access.offset)
        filled = rows
        if part is not selection:
            all_lanes = memory.lanes.shape.numbers
            owners = all_lanes if selection.lanes is None else selection.lanes
            filled = rows[np.searchsorted(owners, all_lanes if part.lanes is None else part.lanes)]
        for k in range(size // unit):
            data.view(f"u{unit}")[filled, k] = region.views[unit][shift + k :].take(index, None, None, "clip")


def _arrive_after_copies(decoder: BlockDecoder, ins: Instruction) -> Step:
    """Arrivals at barriers once the copies of their threads are done (PTX ISA, section 9.7.13.15.17)."""
    barriers = Barriers(decoder, ins, ins.operands[0])
    memory, mbarriers = decoder.memory, decoder.memory.mbarriers
    running = decoder.running_numbers(ins)

    def arrive(lane: int, place: int) -> None:
        memory.release(lane, place)
        mbarriers.arrive(place, 1)

    def run() -> None:
        lanes = running()
        if "noinc" not in ins.modifiers:
            barriers.each(lanes, lambda lane, place: mbarriers.await_more(place, 1))
        places = barriers.of(lanes)  # the registers may hold something else once the copies are done

        def finish() -> None:
            memory.pending.copies.wait(lanes, None)
            barriers.each_of(places, arrive)

        memory.pending.engine.start(finish, places[1].tolist())

    return run


@steps("st.async", "red.async")
def _async_store(decoder: BlockDecoder, ins: Instruction) -> Step:
    """Stores and reductions into the shared memory of a cluster that a barrier counts."""
    marks, kind = {*ins.modifiers}, ins.modifiers[-1]
    if not {"shared", "cluster", "mbarrier"} <= marks or kind not in DTYPES:
        raise UnsupportedFormError
    sources = [decoder.row(item, kind) for item in elements(ins.operands[1])]
    name = next((m for m in ins.modifiers if m in OPERATIONS and m != "exch"), None)
    if (name is None) == (ins.opcode == "red") or (ins.opcode == "red" and kind[0] == "f"):
        raise UnsupportedFormError
    combine = None if name is None else combination(name, kind)
    row, offset = decoder.address(address_of(ins.operands[0]))
    unit = DTYPES[kind].itemsize
    size = unit * len(sources)
    access = Access(decoder.function, ins, "shared", offset, size, unit)
    barriers = Barriers(decoder, ins, ins.operands[2])
    memory, running = decoder.memory, decoder.running_numbers(ins)
    view = memory.cluster.region.views[unit].view(DTYPES[kind])
    races = memory.races if isinstance(memory.races, PhaseRaceDetector) and combine is None else None

    def run() -> None:
        lanes = running()
        if not len(lanes):
            return
        whole = replace(access, size=1 << (size - 1).bit_length())
        lanes, places = memory.shared_places(whole, memory.select(lanes, row[lanes]), True)
        barrier_places = barriers.of(lanes)
        by_lane = dict(zip(*(part.tolist() for part in barrier_places), strict=True))
        values = [source[lanes] for source in sources]
        ends = [(place, by_lane[lane]) for lane, place in zip(lanes.tolist(), places.tolist(), strict=True)]
        if races is not None:
            for lane, (place, barrier) in zip(lanes.tolist(), ends, strict=True):
                races.begin_write(access.location, lane, (place, place + size), barrier)

        def finish() -> None:
            for turn in turns(places):
                for i, value in enumerate(values):
                    index, new = places[turn] // unit + i, value[turn]
                    view[index] = new if combine is None else combine(view[index], new, new)
            if races is not None:
                for place, barrier in ends:
                    races.end_write((place, place + size), barrier)
            barriers.each_of(barrier_places, lambda lane, place: memory.mbarriers.expect(place, -size))

        memory.pending.engine.start(finish, barrier_places[1].tolist())
        if memory.counters.counts is not None:
            memory.counters.counts.bump("bulk.shared_write_bytes", size * len(lanes))

    return run
