"""Stores and reductions into the shared memory of a cluster that a barrier counts: `st.async` and `red.async` (PTX ISA,
sections 9.7.9.12 and 9.7.13.10)."""

from dataclasses import replace

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.atomics import OPERATIONS, combination, turns
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.mbarrier import Barriers
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.types import DTYPES


@steps("st.async", "red.async")
def _async_store(decoder: BlockDecoder, ins: Instruction) -> Step:
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
    memory, running = decoder.memory, decoder.running_lanes(ins)
    everyone = decoder.lanes.shape.numbers
    view = memory.cluster.region.views[unit].view(DTYPES[kind])
    races = memory.races if isinstance(memory.races, PhaseRaceDetector) and combine is None else None

    def run() -> None:
        numbers = running()
        lanes = everyone if numbers is None else numbers
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
                    where = places[turn] // unit + i
                    view[where] = value[turn] if combine is None else combine(view[where], value[turn], value[turn])
            if races is not None:
                for place, barrier in ends:
                    races.end_write((place, place + size), barrier)
            barriers.each_of(barrier_places, lambda lane, place: memory.mbarriers.expect(place, -size))

        memory.pending.engine.start(finish, barrier_places[1].tolist())
        if memory.counters.counts is not None:
            memory.counters.counts.bump("bulk.shared_write_bytes", size * len(lanes))

    return run
