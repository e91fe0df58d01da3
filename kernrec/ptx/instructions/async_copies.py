"""Asynchronous copies to shared memory: `cp.async`, and what waits for them; copies in bulk are in `bulk_copies`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.bulk_copies import bulk_step
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.mbarrier import Barriers
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Immediate, Register
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.selection import Selection, SharedSelection
from kernrec.ptx.state.types import Array


@steps("cp")
def _copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    if "bulk" in ins.modifiers:
        return bulk_step(decoder, ins)
    if ins.modifiers[:1] != ("async",):
        raise UnsupportedFormError
    if "mbarrier" in ins.modifiers:
        return _arrive_after_copies(decoder, ins)
    copies = decoder.memory.pending.copies
    all_lanes = decoder.lanes.shape.numbers
    running_lanes = decoder.running_lanes(ins)

    def running() -> Array:
        numbers = running_lanes()
        return all_lanes if numbers is None else numbers

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
            given = decoder.row(operand, "u32")
            bytes_read = lambda lanes: np.minimum(given[lanes], size)  # noqa: E731
    target, source = ends
    return _AsyncCopyStep(decoder.memory, target, source, bytes_read)


@dataclass(frozen=True)
class _AsyncCopyStep:
    """Starts an asynchronous copy from global to shared memory."""

    memory: Memory
    """All memories."""

    target: tuple[SharedSelection, Access]
    """Lanes and access to shared memory."""

    source: tuple[SharedSelection, Access]
    """Lanes and access to global memory."""

    bytes_read: Callable[[Array], Array] | None
    """For lanes, the bytes that each reads, the rest being zeros; None: all lanes read all."""

    def __call__(self) -> None:
        memory, access = self.memory, self.target[1]
        target, source = self.target[0].get(), self.source[0].get()
        if target is None or source is None:
            return
        [(region, _)] = memory.resolve(access, target)
        memory.record(access, region, target, True)
        lanes = memory.lanes.shape.numbers if target.lanes is None else target.lanes
        size, unit = access.size, access.unit
        data = np.zeros((len(lanes), size // unit), f"u{unit}")
        amounts = None if self.bytes_read is None else self.bytes_read(lanes)
        if amounts is None or (amounts == size).all():
            self._fetch(self.source[1], source, data, np.arange(len(lanes)))
        else:
            for amount in np.unique(amounts).tolist():
                if amount:
                    rows = np.flatnonzero(amounts == amount)
                    part = memory.select(lanes[rows], source.addresses[rows])
                    partial_access = replace(self.source[1], size=amount, unit=1 if amount % unit else unit)
                    self._fetch(partial_access, part, data, rows)
        index, shift = target.index(region, unit, access.offset)
        memory.pending.copies.start(lanes, region.views[unit], index + shift, data)

    def _fetch(self, access: Access, selection: Selection, data: Array, rows: Array) -> None:
        """Reads what the lanes of `selection` copy into these rows of `data` (lanes, elements)."""
        memory, size, unit = self.memory, access.size, access.unit
        into = data.view(f"u{unit}")
        # Of a size that is no power of two, first and last byte are checked.
        whole = size & (size - 1) == 0
        checked = access if whole else replace(access, size=1)
        for region, part in memory.resolve(checked, selection):
            if not whole:
                memory.resolve(replace(checked, offset=access.offset + size - 1), part)
            index, shift = part.index(region, unit, access.offset)
            if part is selection:
                where = rows
            else:
                all_lanes = memory.lanes.shape.numbers
                owners = all_lanes if selection.lanes is None else selection.lanes
                numbers = all_lanes if part.lanes is None else part.lanes
                where = rows[np.searchsorted(owners, numbers)]
            for k in range(size // unit):
                into[where, k] = region.views[unit][shift + k :].take(index, None, None, "clip")
            memory.counters.count_global(access, region, part, "read")


def _arrive_after_copies(decoder: BlockDecoder, ins: Instruction) -> Step:
    """Arrivals at barriers once the copies of their threads are done (PTX ISA, section 9.7.13.15.17)."""
    barriers = Barriers(decoder, ins, ins.operands[0])
    memory, mbarriers = decoder.memory, decoder.memory.mbarriers
    running = decoder.running_lanes(ins)
    everyone = decoder.lanes.shape.numbers

    def arrive(lane: int, place: int) -> None:
        memory.release(lane, place)
        mbarriers.arrive(place, 1)

    def run() -> None:
        numbers = running()
        lanes = everyone if numbers is None else numbers
        if "noinc" not in ins.modifiers:
            barriers.each(lanes, lambda lane, place: mbarriers.await_more(place, 1))
        where = barriers.of(lanes)  # the registers may hold something else once the copies are done

        def finish() -> None:
            memory.pending.copies.wait(lanes, None)
            barriers.each_of(where, arrive)

        memory.pending.engine.start(finish, where[1].tolist())

    return run
