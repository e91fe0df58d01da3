"""The `wgmma.mma_async` in flight of each warpgroup, and the registers that these still read and write.

The emulator multiplies when the instruction is issued. To find missing waits, nothing may look at the
registers before the `wgmma.wait_group` that covers them, and that a `wgmma.fence` must lie between an access to a
register and the `wgmma.mma_async` that uses it (PTX ISA, sections `wgmma.fence`, `wgmma.commit_group` and
`wgmma.wait_group`). Only several of one shape that sum into the same registers need no fence in between.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.batch import WARP, WARPGROUP, Lanes
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.race_detector import RaceDetector, TileRead
from kernrec.ptx.state.types import Array


class Operation(NamedTuple):
    """One `wgmma.mma_async`."""

    function: Function

    ins: Instruction

    accumulators: frozenset[int]
    """Rows of the registers that hold D."""

    inputs: frozenset[int]
    """Rows of the registers that hold A."""

    @property
    def location(self) -> str:
        """The instruction as errors name it."""
        return location(self.function, self.ins)

    def same_kind(self, other: "Operation") -> bool:
        """Whether the other has the same shape and types."""
        return self.ins.modifiers == other.ins.modifiers


class _InFlight(NamedTuple):
    operation: Operation
    group: int  # commit group
    read: TileRead | None  # where races are checked


class _Warpgroup:
    """The state of one warpgroup."""

    def __init__(self) -> None:
        self.committed = 0  # groups
        self.in_flight: list[_InFlight] = []
        self.fenced = False  # whether it ever was
        self.touched: set[int] = set()  # rows of registers accessed since the last fence


class WarpgroupOperations:
    """The matrix operations of all warpgroups of a batch."""

    def __init__(self, lanes: Lanes, races: RaceDetector | None) -> None:
        """`races`: is told what shared memory is read, from the start of an operation until it was waited for."""
        self._lanes = lanes
        self._races = races
        self._groups: list[_Warpgroup] = []

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._groups = [_Warpgroup() for _ in self._lanes.shape.warpgroups]

    def touch(self, function: Function, accesses: Mapping[int, Instruction]) -> None:
        """The lanes that run access registers, by row, with the first instruction that does.

        Raises:
            EmulationError: an operation in flight uses one of them.
        """
        numbers = self._lanes.active_numbers()
        group_of = self._lanes.shape.warpgroup_of
        for number in np.unique(group_of if numbers is None else group_of[numbers]):
            group = self._groups[number]
            for operation, _, _ in group.in_flight:
                used = (operation.accumulators | operation.inputs) & accesses.keys()
                if used:
                    ins = accesses[min(used, key=lambda row: accesses[row].line)]
                    raise EmulationError(
                        f"{location(function, ins)}: accesses a register that {operation.ins.name} in PTX line "
                        f"{operation.ins.line} still uses; a wgmma.wait_group must come first"
                    )
            group.touched.update(accesses)

    def fence(self, warpgroups: Array) -> None:
        """These warpgroups run `wgmma.fence`."""
        for number in warpgroups:
            self._groups[number].fenced = True
            self._groups[number].touched.clear()

    def start(self, warpgroup: int, operation: Operation, index: Array) -> None:
        """A warpgroup starts an operation that reads these bytes of the batch's shared memory.

        Raises:
            EmulationError: a fence or a wait is missing.
        """
        group = self._groups[warpgroup]
        site = operation.location
        if not group.fenced:
            raise EmulationError(f"{site}: no wgmma.fence since the kernel began")
        if not group.touched.isdisjoint(operation.accumulators | operation.inputs):
            raise EmulationError(f"{site}: no wgmma.fence since its registers were accessed")
        for other, _, _ in group.in_flight:
            sums = not operation.accumulators.isdisjoint(other.accumulators)
            if (
                (sums and not operation.same_kind(other))
                or not operation.inputs.isdisjoint(other.accumulators)
                or not operation.accumulators.isdisjoint(other.inputs)
            ):
                raise EmulationError(
                    f"{site}: uses registers that {other.ins.name} in PTX line {other.ins.line} still uses; a "
                    "wgmma.wait_group must come first"
                )
        read = None
        if self._races is not None:
            warps = self._lanes.shape.warpgroups[warpgroup] // WARP + np.arange(WARPGROUP // WARP)
            read = self._races.begin_tile(site, index, warps)
        group.in_flight.append(_InFlight(operation, group.committed, read))

    def commit(self, warpgroups: Array) -> None:
        """These warpgroups end their present commit group."""
        for number in warpgroups:
            self._groups[number].committed += 1

    def wait(self, warpgroups: Array, allowed: int) -> None:
        """These warpgroups wait until at most their `allowed` newest groups are in flight."""
        for number in warpgroups:
            group = self._groups[number]
            left = []
            for entry in group.in_flight:
                if entry.group >= group.committed - allowed:
                    left.append(entry)
                elif self._races is not None and entry.read is not None:
                    self._races.end_tile(entry.read)
            group.in_flight = left
