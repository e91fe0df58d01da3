"""Runs the basic blocks of a kernel for a batch of thread blocks.

Scheduling is by basic block. As long as all live lanes agree, a basic block runs for all of them. When they diverge,
each lane has its own position, and the lowest basic block runs first with the lanes that are there, until all agree
again: compilers order basic blocks so that lanes reconverge at the end of an `if` or a loop. A warp executes in the
same order as if it were alone, so what is counted per warp does not depend on the other warps of the batch.

`bar.sync` holds a lane until all threads of its block that have not exited arrived; warp-synchronous instructions
(`shfl.sync`, `vote.sync`, `bar.warp.sync`) wait for the live lanes that their mask names.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from kernrec.ptx.analysis.lowering import straightened
from kernrec.ptx.execution.barriers import WAITS, Barriers, ClusterBarrier
from kernrec.ptx.execution.extrapolation import Extrapolation
from kernrec.ptx.execution.live_lanes import LiveLanes, check_same_way, warps_of
from kernrec.ptx.execution.waits import PhaseWaits, SpinWaits
from kernrec.ptx.instructions.block_plan import cached_plan, plan_block
from kernrec.ptx.instructions.decoder import BlockDecoder, DecodedBlock, OperandResolver, unsupported
from kernrec.ptx.instructions.mbarrier import PhaseTest
from kernrec.ptx.instructions.registry import UnsupportedFormError, UnsupportedInstructionError
from kernrec.ptx.ir.operand import Register, Symbol
from kernrec.ptx.ir.program import BasicBlock, Instruction, is_warpgroup_synchronous, waits_for_phase
from kernrec.ptx.state.access_cost import Counts
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import BudgetError, EmulationError, location
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.types import Array

_CONTROL = frozenset({"bra", "brx", "exit", "ret", "trap", "bar", "barrier"})
_EXITED = np.iinfo(np.int64).max  # position of a lane that exited


class Scheduler:
    """Runs one kernel, batch after batch of thread blocks; decoded basic blocks are kept from batch to batch."""

    def __init__(
        self,
        operands: OperandResolver,
        memory: Memory,
        budget: int,
        extrapolate: bool = False,
        issue: Sequence[Mapping[str, int]] | None = None,
        same_way: bool = False,
    ) -> None:
        """A kernel to run.

        Args:
            operands: its registers and symbols.
            memory: its memory.
            budget: PTX instructions that one batch may execute.
            extrapolate: whether trips of long loops may be left out, which makes values wrong.
            issue: machine instructions by class of each basic block; None: of each PTX instruction by itself.
            same_way: whether blocks of a batch that do not take the same way are an error.
        """
        lanes = operands.lanes.shape.lanes
        self.operands = operands
        self.function = operands.function
        self.memory = memory
        self.budget = budget
        self.issue = issue
        self.same_way = same_way
        self.pieces = [[block] for block in operands.function.blocks]
        """The basic blocks, together where the assembler makes one of them."""
        if issue is not None:
            self.pieces = straightened(operands.function, issue)
        self._goes_on = frozenset(block.index for piece in self.pieces for block in piece[1:])
        self.barriers = Barriers(operands, memory.races)
        self.cluster_barrier = ClusterBarrier(operands.lanes.shape)
        self._guards: dict[str, Array] = {}  # rows of the predicates of branches
        self.decoded: list[DecodedBlock | None] = [None] * len(operands.function.blocks)
        # Trips that are left out would leave phases of barriers in memory out, too.
        steady = not any(ins.opcode == "mbarrier" or "bulk" in ins.modifiers for ins in operands.function.instructions)
        watched = extrapolate and steady
        self.extrapolation = Extrapolation(operands, memory, self.barriers, self.decoded) if watched else None
        self.phase_waits = PhaseWaits(memory)
        self.spins = SpinWaits(operands.function, lanes)
        self.live = LiveLanes(np.zeros(lanes, np.bool_))
        self.positions = np.zeros(lanes, np.int64)  # basic block of each lane, while they disagree
        self.parked = np.zeros(lanes, np.bool_)  # lanes that wait for others of their warp

    def run(self, block_numbers: Sequence[int]) -> None:
        """Runs one batch: the thread blocks with these linear numbers."""
        lanes = self.operands.lanes
        lanes.start_batch(block_numbers)
        self.operands.registers.start_batch()
        self.memory.start_batch()
        self.barriers.start_batch()
        self.cluster_barrier.start_batch()
        self.live = LiveLanes(lanes.shape.is_thread & (lanes.shape.block_of < len(block_numbers)))
        self.positions = np.where(self.live.mask, 0, _EXITED)
        self.parked[:] = False
        self.phase_waits.start_batch()
        self.spins.start_batch()
        position: int | None = 0  # the basic block of all live lanes; None: they disagree, see `positions`
        previous = -1  # the basic block that ran last
        executed = 0
        extrapolation = self.extrapolation
        headers: frozenset[int] = frozenset()
        spinning = self.spins.blocks
        if extrapolation is not None:
            extrapolation.start_batch()
            headers = extrapolation.headers
        while self.live.count:
            live = self.live
            if position is not None:
                code = self.decoded[position] or self._decode(position)
                if code.phase_test is not None and not self._all_ready(code, position):
                    position = None
                    continue
                if position in spinning:
                    self.positions[live.mask], position = position, None
                    continue
                if position in headers and extrapolation is not None:
                    extrapolation.arrive(position, previous, live.mask)
                previous = position
                lanes.partial, lanes.active = None, live.mask_or_none
                code.warps += live.warps
                code.lanes += live.count
                lanes.start_block(position in self._goes_on)
                for step in code.full:
                    step()
                position = position + 1 if code.end is None else self._control(code.end, position, None)
            else:
                lowest = self._lowest()
                code = self.decoded[lowest] or self._decode(lowest)
                mask = self._ready(self.positions == lowest, code)
                if mask is None:
                    continue
                if self.same_way:
                    check_same_way(mask, lanes.shape.lanes_per_block, len(block_numbers))
                running = int(np.count_nonzero(mask))
                if running == live.count and code.phase_test is None and lowest not in spinning:
                    position = lowest
                    continue
                if lowest in headers and extrapolation is not None:
                    extrapolation.arrive(lowest, previous, mask, int(np.where(mask, WAITS, self.positions).min()))
                previous = lowest
                lanes.partial = lanes.active = mask
                code.warps += warps_of(mask)
                code.lanes += running
                lanes.start_block(lowest in self._goes_on)
                for step in code.masked:
                    step()
                if code.end is None:
                    self.positions[mask] = lowest + 1
                else:
                    self._control(code.end, lowest, mask)
                if spinning:
                    self.spins.ran(lowest, mask, self.positions)
            executed += len(code.block.instructions)
            if executed > self.budget:
                raise BudgetError(
                    f"{self.function.name}: more than {self.budget} instructions executed; this looks like an endless "
                    f"loop near PTX line {code.block.instructions[0].line}"
                )
        self.memory.end_batch()
        if extrapolation is not None:
            extrapolation.end_batch()

    def _decode(self, index: int) -> DecodedBlock:
        registers, symbols = self.operands.registers, self.operands.symbols
        plan = cached_plan(registers.rows, index, registers.lanes.shape.lanes, symbols, self.operands.needed)
        decoder = BlockDecoder(self.operands, self.memory)
        decoded = decoder.decode(plan)
        if waits_for_phase(plan.block.instructions[0]):
            decoded.phase_test = PhaseTest(decoder, plan.block.instructions[0])
        if self.issue is not None:
            decoded.issue = {name: count for name, count in self.issue[index].items() if count}
        else:
            decoded.issue = plan.issue
        self.decoded[index] = decoded
        return decoded

    def unsupported(self) -> list[str]:
        """Names of the instructions that cannot be decoded or, of those that end a basic block, executed."""
        names = []
        registers = self.operands.registers
        for block in self.function.blocks:
            for ins in block.instructions:
                alone = BasicBlock(block.index, (ins,), ())
                plan = plan_block(registers.rows, alone, registers.lanes.shape.lanes, self.operands.symbols)
                try:
                    end = BlockDecoder(self.operands, self.memory).decode(plan).end
                except UnsupportedInstructionError:
                    names.append(ins.name)
                    continue
                if end is not None and end.opcode not in _CONTROL:
                    names.append(ins.name)
        return names

    def _lowest(self) -> int:
        """The basic block to run next while lanes disagree."""
        waits, spins = self.phase_waits, self.spins
        while True:
            waits.wake()
            held = self.parked | waits.paused
            if spins.blocks:
                held |= spins.waiting(self.positions)
            lowest = int(np.where(held, WAITS, self.positions).min())
            if lowest < WAITS:
                return lowest
            if spins.blocks and not (waits.paused.any() and waits.advance()):
                lowest = int(np.where(spins.untried(self.positions) & ~self.parked, self.positions, WAITS).min())
                if lowest < WAITS:
                    return lowest
            if not waits.paused.any():
                self._fail_deadlocked()
            waits.break_stall()

    def _all_ready(self, code: DecodedBlock, position: int) -> bool:
        """Whether all live lanes, which are before a basic block together, may run the test that it begins with."""
        live = self.live.mask
        ready = self.phase_waits.ready(code.phase_test, live)
        self.positions[live] = position
        return int(np.count_nonzero(ready)) == self.live.count

    def _ready(self, mask: Array, code: DecodedBlock) -> Array | None:
        """The lanes of `mask` that may run: those whose warp or warpgroup is complete, where an instruction says so."""
        self.parked &= ~mask
        if code.phase_test is not None:
            mask = self.phase_waits.ready(code.phase_test, mask)
            return mask if mask.any() else None
        if code.lane_mask is None:
            return mask
        if is_warpgroup_synchronous(code.block.instructions[0]):
            shape = self.operands.lanes.shape
            incomplete = np.logical_or.reduceat(self.live.mask & ~mask, shape.warpgroups)[shape.warpgroup_of] & mask
        else:
            lane = (self.operands.lanes.shape.numbers & 31).astype(np.uint32)
            named = np.bitwise_or.reduce(np.where(mask, code.lane_mask, 0).reshape(-1, WARP), axis=1).repeat(WARP)
            missing = (((named >> lane) & 1) != 0) & self.live.mask & ~mask
            incomplete = missing.reshape(-1, WARP).any(axis=1).repeat(WARP) & mask
        self.parked |= incomplete
        ready = mask & ~incomplete
        return ready if ready.any() else None

    # Control flow

    def _control(self, ins: Instruction, position: int, mask: Array | None) -> int | None:
        """Moves the lanes that ran past the last instruction of their basic block.

        Args:
            ins: the instruction.
            position: their basic block.
            mask: the lanes; None: all live lanes.

        Returns:
            The new basic block of all live lanes; None where they disagree.
        """
        opcode = ins.opcode
        everyone = self.live.mask if mask is None else mask
        if opcode == "bra":
            return self._branch(ins, position, mask)
        if opcode in ("bar", "barrier") and mask is None and self.barriers.is_plain(ins):
            blocks = self.barriers.pass_plain(self.live.mask)
            if self.memory.races is not None:
                self.memory.races.pass_barrier(blocks)
            return position + 1
        on = everyone if ins.predicate is None else everyone & self._guard(ins)
        self.positions[everyone] = position + 1
        if opcode == "brx":
            self._branch_indexed(ins, everyone)
        elif opcode in ("exit", "ret"):
            self.positions[on] = _EXITED
            self.live = LiveLanes(self.live.mask & ~on)
            self.parked[:] = False  # lanes that waited for those that exited go on
            if self.memory.races is not None:
                self.memory.races.exit(location(self.function, ins), on, self.live.mask)
            self._release()
        elif opcode in ("bar", "barrier"):
            cluster = opcode == "barrier" and ins.modifiers[:1] == ("cluster",)
            try:
                (self.cluster_barrier.reach if cluster else self.barriers.arrive)(ins, on, self.positions, position + 1)
            except UnsupportedFormError as error:
                raise unsupported(self.function, ins, str(error)) from None
            self._release()
        elif opcode == "trap":
            if on.any():
                block, thread = self.operands.lanes.coordinates(int(np.flatnonzero(on)[0]))
                raise EmulationError(f"{location(self.function, ins)}: block {block} thread {thread} trapped")
        elif opcode == "call":
            raise unsupported(self.function, ins, "of a pointer, a function that calls itself, or one without a body")
        else:
            raise unsupported(self.function, ins)
        return None

    def _branch(self, ins: Instruction, position: int, mask: Array | None) -> int | None:
        label = ins.operands[0]
        if not isinstance(label, Symbol):
            raise unsupported(self.function, ins)
        target = self.function.block_index[label.name]
        if ins.predicate is None:
            if mask is None:
                return target
            self.positions[mask] = target
            return None
        taken = self._guard(ins)
        if mask is None:
            live = self.live
            count = int(np.count_nonzero(taken if live.mask_or_none is None else taken & live.mask))
            if count == 0:
                return position + 1
            if count == live.count:
                return target
            mask = live.mask
        self.positions[mask] = np.where(taken[mask], target, position + 1)
        return None

    def _branch_indexed(self, ins: Instruction, everyone: Array) -> None:
        table = ins.operands[1] if len(ins.operands) == 2 else None
        if not isinstance(table, Symbol) or table.name not in self.function.tables or ins.predicate is not None:
            raise unsupported(self.function, ins)
        targets = np.array([self.function.block_index[label] for label in self.function.tables[table.name]])
        index = self.operands.row(ins.operands[0], "u32")[everyone]
        if (index >= len(targets)).any():
            raise EmulationError(
                f"{location(self.function, ins)}: index {int(index.max())} is out of range: the branch has"
                f" {len(targets)} targets"
            )
        self.positions[everyone] = targets[index]

    def _guard(self, ins: Instruction) -> Array:
        assert ins.predicate is not None
        name, inverted = ins.predicate
        row = self._guards.get(name)
        if row is None:
            row = self._guards[name] = self.operands.row(Register(name), "pred")
        return ~row if inverted else row

    def _release(self) -> None:
        live, races = self.live.mask, self.memory.races
        self.barriers.release(live, self.positions)
        together = self.cluster_barrier.release(live, self.positions)
        if races is not None and together is not None:
            races.pass_cluster_barrier(together)

    def _fail_deadlocked(self) -> NoReturn:
        """Raises for a lane that can never go on."""
        lanes, blocks, waiting_at = self.operands.lanes, self.function.blocks, self.barriers.waiting_at
        at_barrier = waiting_at >= 0
        self.spins.refuse_waiting(self.function, lanes, self.positions)
        self.cluster_barrier.refuse_waiting(self.function, lanes)
        lane = int(np.flatnonzero(self.parked if self.parked.any() else at_barrier)[0])
        block, thread = lanes.coordinates(lane)
        if self.parked.any():
            ins = blocks[int(self.positions[lane])].instructions[0]
            raise EmulationError(
                f"{location(self.function, ins)}: deadlock: block {block} thread {thread} waits for lanes of its warp "
                "that the mask names and that never arrive"
            )
        block_of = lanes.shape.block_of
        same_block = block_of == block_of[lane]
        live = int(np.count_nonzero(same_block & self.live.mask))
        number = int(waiting_at[lane])
        here = int(np.count_nonzero(same_block & (waiting_at == number)))
        ins = blocks[int(self.barriers.resume[lane]) - 1].instructions[-1]
        raise EmulationError(
            f"{location(self.function, ins)}: deadlock: {here} of {live} live threads of block {block} wait at barrier "
            f"{number}, thread {thread} among them, and the others never arrive"
        )

    def totals(self, lanes_by_class: bool = False) -> Counts:
        """The counters of all batches so far; `lanes_by_class`: with `lanes.<class>`."""
        if self.memory.counters.counts is None:
            return Counts()
        counts = Counts(self.memory.counters.counts)
        for code in self.decoded:
            if code is None or not code.warps:
                continue
            for name, cost in code.issue.items():
                counts.bump(f"issue.{name}", cost * code.warps)
                if lanes_by_class:
                    counts.bump(f"lanes.{name}", cost * code.lanes)
            issued = sum(code.issue.values())
            counts.bump("issue", issued * code.warps)
            counts.bump("lanes", issued * code.lanes)
        counts.bump("barriers", self.barriers.passed)
        if self.extrapolation is not None and self.extrapolated:
            counts.bump("extrapolated", self.extrapolated)
            if self.extrapolation.sampled:
                counts.bump("sampled", self.extrapolation.sampled)
        return counts

    @property
    def extrapolated(self) -> int:
        """Machine instructions of the trips that were left out so far."""
        return 0 if self.extrapolation is None else self.extrapolation.issued
