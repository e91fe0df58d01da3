"""Executes PTX on the CPU: one NumPy lane per thread, many thread blocks at once, with exact counters.

Scheduling is by basic block. As long as all live lanes agree, a block runs for all of them. When they part, each lane
has its own program counter and the lowest runs first with the lanes that are there, until all agree again: compilers
order blocks so that this meets at the end of an `if` or a loop. A warp's order of execution is the same as if it were
alone, so what is counted per warp does not depend on the other warps of the batch.

`bar.sync` holds a lane until all threads of its block that have not exited arrived; instructions that a warp runs
together (`shfl.sync`, `vote.sync`, `bar.warp.sync`) wait for the live lanes that their mask names.

Counters (totals over the blocks that ran): `issue.<class>` machine instructions issued by warps, as `isa` estimates
them; `issue` their sum; `lanes` their active lanes (a lane whose predicate is off counts: the instruction was issued
for it); `shared.{load,store,atomic}_{wavefronts,ideal}`; `barriers` passed by blocks;
`global.<buffer>.{read,write,atomic}_{sectors,requests,bytes}`; `local.{read,write}_{sectors,requests,bytes}`;
`atomic.<buffer>` and `atomic.shared`, lane operations; `mma.<type>`, operations of tensor cores (`matrix` says how they
round).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.ptx.execution.barriers import WAITS, Barriers
from kernrec.ptx.instructions import access, atomics, bits, carry, convert, floating, integer, matrix, select, warp
from kernrec.ptx.instructions.decoder import Code, Decoder, unsupported
from kernrec.ptx.ir.inline import inlined
from kernrec.ptx.ir.program import Function, Instruction, Module, Register, Symbol, gathers, members
from kernrec.ptx.state.access_cost import Counts
from kernrec.ptx.state.launch_layout import KernelLaunch, lay_out
from kernrec.ptx.state.memory import Memory, place
from kernrec.ptx.state.races import Races
from kernrec.ptx.state.registers import Array, EmulationError, Lanes, at
from kernrec.ptx.state.touched_sectors import Observer

# Importing a file of semantics registers its instructions.
SEMANTICS = (access, atomics, bits, carry, convert, floating, integer, matrix, select, warp)

_BATCH_LANES = 1024
_BUDGET = 20_000_000
_GONE = np.iinfo(np.int64).max  # program counter of a lane that exited


@dataclass(frozen=True)
class EmulationOptions:
    """How thread blocks are run, and what is watched while they run."""

    most_blocks: int = 1
    """The most thread blocks that one `Emulation.run` gets."""

    count: bool = True
    """Whether to count."""

    budget: int = _BUDGET
    """PTX instructions that one batch of blocks may execute before the kernel is taken for an endless loop."""

    check_races: bool = False
    """Whether a data race in shared memory is an error."""

    observer: Observer | None = None
    """Is shown every access to global memory."""


def emulate(
    module: Module,
    launch: KernelLaunch,
    *,
    blocks: Sequence[int] | None = None,
    count: bool = True,
    budget: int = _BUDGET,
    check_races: bool = False,
) -> Counts:
    """Runs thread blocks of a kernel on the CPU; `launch.buffers` are global memory and are changed in place.

    Args:
        module: from `parse`.
        launch: kernel, grid, block, arguments and memory.
        blocks: linear numbers of the blocks to run (x fastest); default: all.
        count: whether to count.
        budget: PTX instructions that one batch of blocks may execute before the kernel is taken for an endless loop.
        check_races: whether two threads that touch the same byte of shared memory with no barrier between, at least
            one of them writing, are an error. Threads of one warp are ordered by `bar.warp.sync` and their shuffles.

    Returns:
        Totals over the blocks that ran, by metric: see this module's description.

    Raises:
        EmulationError: unsupported instruction, access out of bounds or misaligned, write to a read-only buffer,
            deadlock, budget exceeded, trap, race.
        UsageError: a launch that does not fit the kernel.
    """
    shape = _extents("grid", launch.grid)
    block_numbers = range(shape[0] * shape[1] * shape[2]) if blocks is None else blocks
    if not len(block_numbers):
        return Counts()
    options = EmulationOptions(len(block_numbers), count, budget, check_races)
    return Emulation(module, launch, options).run(block_numbers)


class Emulation:
    """A launch whose thread blocks are run a few at a time.

    Raises:
        EmulationError, UsageError: as `emulate` does.
    """

    def __init__(self, module: Module, launch: KernelLaunch, options: EmulationOptions) -> None:
        entry = launch.entry
        if entry not in module.functions or not module.functions[entry].entry:
            raise unknown("kernel", entry, module.entries)
        function = inlined(module, entry)
        self.function = function
        self.grid, size = _extents("grid", launch.grid), _extents("block", launch.block)
        threads = size[0] * size[1] * size[2]
        if threads > 1024:
            raise UsageError(f"block {tuple(launch.block)} has {threads} threads, more than 1024")
        together = options.most_blocks
        batches = -(-together * -(-threads // 32) * 32 // _BATCH_LANES)
        self._per_batch = -(-together // min(batches, together))
        layout = lay_out(module, function, launch)
        lanes = Lanes(function, self.grid, size, self._per_batch)
        lanes.sizes = {"%dynamic_smem_size": launch.shared_bytes, "%total_smem_size": layout.shared_bytes}
        races = Races(lanes, layout.shared_bytes) if options.check_races else None
        memory = Memory(lanes, layout, Counts() if options.count else None, races, options.observer)
        decoder = Decoder(function, lanes, memory, layout.symbols)
        self._machine = _Machine(function, lanes, memory, decoder, options.budget)
        self._observer = options.observer
        self._seen = Counts()

    def run(self, ids: Sequence[int]) -> Counts:
        """Runs the thread blocks with these linear numbers (x fastest); the counts of these alone."""
        total = self.grid[0] * self.grid[1] * self.grid[2]
        if any(not 0 <= b < total for b in ids):
            raise UsageError(f"block numbers must be from 0 to {total - 1} for grid {self.grid}")
        with np.errstate(all="ignore"):
            for start in range(0, len(ids), self._per_batch):
                batch = ids[start : start + self._per_batch]
                if self._observer is not None:
                    self._observer.start_batch(batch)
                self._machine.run(batch)
        before, self._seen = self._seen, self._machine.totals()
        return Counts({name: value - before[name] for name, value in self._seen.items()})

    def visits(self) -> dict[int, int]:
        """How many warps ran each basic block (by its index) so far."""
        return {i: code.warps for i, code in enumerate(self._machine.codes) if code is not None and code.warps}


def _extents(what: str, given: Sequence[int]) -> tuple[int, int, int]:
    values = tuple(int(v) for v in given)
    if not 1 <= len(values) <= 3 or any(v < 1 for v in values):
        raise UsageError(f"{what} {tuple(given)} is not one to three positive numbers")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _warps(mask: Array) -> int:
    """Warps with a lane in `mask`."""
    return int(np.count_nonzero(mask.reshape(-1, 32).any(axis=1)))


class _Machine:
    """Runs one kernel, batch after batch of thread blocks; decoded basic blocks are kept from batch to batch."""

    def __init__(self, function: Function, lanes: Lanes, memory: Memory, decoder: Decoder, budget: int) -> None:
        self.function = function
        self.lanes = lanes
        self.memory = memory
        self.decoder = decoder
        self.budget = budget
        self.barriers = Barriers(decoder)
        self.codes: list[Code | None] = [None] * len(function.blocks)
        self.live = np.zeros(lanes.count, np.bool_)
        self.pcs = np.zeros(lanes.count, np.int64)  # basic block of each lane, while they disagree
        self.parked = np.zeros(lanes.count, np.bool_)  # lanes that wait for others of their warp

    def run(self, ids: Sequence[int]) -> None:
        """Runs one batch: the thread blocks with these linear numbers."""
        lanes = self.lanes
        lanes.start_batch(ids)
        self.memory.start_batch()
        self.barriers.start_batch()
        access.async_copies(self.decoder).start_batch()
        self.live = (lanes.lane % lanes.padded < lanes.threads) & (lanes.block_of < len(ids))
        self.pcs = np.where(self.live, 0, _GONE)
        self.parked[:] = False
        self._count_live()
        here: int | None = 0  # the basic block of all live lanes; None: see pcs
        spent = 0
        while self.alive:
            if here is not None:
                lanes.partial, lanes.active = None, self.live_or_none
                code = self.codes[here] or self._decode(here)
                code.warps += self.live_warps
                code.lanes += self.alive
                lanes.tick += 1
                for step in code.full:
                    step()
                here = here + 1 if code.end is None else self._control(code.end, here, None)
            else:
                now = self._lowest()
                code = self.codes[now] or self._decode(now)
                mask = self._together(self.pcs == now, code)
                if mask is None:
                    continue
                running = int(np.count_nonzero(mask))
                if running == self.alive:
                    here = now
                    continue
                lanes.partial = lanes.active = mask
                code.warps += _warps(mask)
                code.lanes += running
                lanes.tick += 1
                for step in code.masked:
                    step()
                if code.end is None:
                    self.pcs[mask] = now + 1
                else:
                    self._control(code.end, now, mask)
            spent += code.length
            if spent > self.budget:
                raise EmulationError(
                    f"{self.function.name}: more than {self.budget} instructions executed; this looks like an endless "
                    f"loop near PTX line {code.line}"
                )

    def _decode(self, index: int) -> Code:
        block = self.function.blocks[index]
        code = self.codes[index] = self.decoder.decode(block)
        first = block.instructions[0]
        if gathers(first):
            code.gather = self.decoder.row(members(first), "u32")
        return code

    def _count_live(self) -> None:
        self.alive = int(np.count_nonzero(self.live))
        self.live_or_none = None if self.alive == self.lanes.count else self.live
        self.live_warps = _warps(self.live)

    def _lowest(self) -> int:
        """The basic block to run next while lanes disagree."""
        now = int(np.where(self.parked, WAITS, self.pcs).min())
        if now >= WAITS:
            self._stuck()
        return now

    def _together(self, mask: Array, code: Code) -> Array | None:
        """The lanes of `mask` that may run: those whose warp is complete, where an instruction asks for that."""
        self.parked &= ~mask
        if code.gather is None:
            return mask
        lane = (self.lanes.lane & 31).astype(np.uint32)
        named = np.bitwise_or.reduce(np.where(mask, code.gather, 0).reshape(-1, 32), axis=1).repeat(32)
        missing = (((named >> lane) & 1) != 0) & self.live & ~mask
        late = missing.reshape(-1, 32).any(axis=1).repeat(32) & mask
        self.parked |= late
        ready = mask & ~late
        return ready if ready.any() else None

    # Control flow

    def _control(self, ins: Instruction, here: int, mask: Array | None) -> int | None:
        """Moves the lanes that ran past the last instruction of their block; the new common place, if there is one."""
        opcode = ins.opcode
        everyone = self.live if mask is None else mask
        if opcode == "bra":
            return self._branch(ins, here, mask)
        if opcode in ("bar", "barrier") and mask is None and self.barriers.plain(ins):
            blocks: Array = np.any(self.live.reshape(self.barriers.shape), axis=1)
            self.barriers.opened += int(np.count_nonzero(blocks))
            if self.memory.races is not None:
                self.memory.races.barrier(blocks)
            return here + 1
        on = everyone if ins.predicate is None else everyone & self._guard(ins)
        self.pcs[everyone] = here + 1
        if opcode == "brx":
            self._branch_indexed(ins, everyone)
        elif opcode in ("exit", "ret"):
            self.pcs[on] = _GONE
            self.live = self.live & ~on
            self._count_live()
            self.parked[:] = False  # those that waited for the ones that are gone go on
            self._release()
        elif opcode in ("bar", "barrier"):
            self.barriers.arrive(ins, on, self.pcs, here + 1)
            self._release()
        elif opcode == "trap":
            if on.any():
                block, thread = place(self.lanes, int(np.flatnonzero(on)[0]))
                raise EmulationError(f"{at(self.function, ins)}: block {block} thread {thread} trapped")
        elif opcode == "call":
            raise unsupported(self.function, ins, "of a pointer, a function that calls itself, or one without a body")
        else:
            raise unsupported(self.function, ins)
        return None

    def _branch(self, ins: Instruction, here: int, mask: Array | None) -> int | None:
        label = ins.operands[0]
        if not isinstance(label, Symbol):
            raise unsupported(self.function, ins)
        target = self.function.block_at[label.name]
        if ins.predicate is None:
            if mask is None:
                return target
            self.pcs[mask] = target
            return None
        taken = self._guard(ins)
        if mask is None:
            going = int(np.count_nonzero(taken if self.live_or_none is None else taken & self.live))
            if going == 0:
                return here + 1
            if going == self.alive:
                return target
            mask = self.live
        self.pcs[mask] = np.where(taken[mask], target, here + 1)
        return None

    def _branch_indexed(self, ins: Instruction, everyone: Array) -> None:
        table = ins.operands[1]
        if not isinstance(table, Symbol) or table.name not in self.function.tables or ins.predicate is not None:
            raise unsupported(self.function, ins)
        targets = np.array([self.function.block_at[label] for label in self.function.tables[table.name]])
        index = self.decoder.row(ins.operands[0], "u32")[everyone]
        if (index >= len(targets)).any():
            raise EmulationError(f"{at(self.function, ins)}: index {int(index.max())} of {len(targets)} targets")
        self.pcs[everyone] = targets[index]

    def _guard(self, ins: Instruction) -> Array:
        assert ins.predicate is not None
        row = self.decoder.row(Register(ins.predicate[0]), "pred")
        return ~row if ins.predicate[1] else row

    def _release(self) -> None:
        passed = self.barriers.release(self.live, self.pcs)
        if passed is not None and self.memory.races is not None:
            self.memory.races.barrier(passed)

    def _stuck(self) -> None:
        """Names a lane that can never go on."""
        lanes, blocks, waiting = self.lanes, self.function.blocks, self.barriers.waiting
        at_barrier = waiting >= 0
        lane = int(np.flatnonzero(at_barrier if at_barrier.any() else self.parked)[0])
        block, thread = place(lanes, lane)
        if not at_barrier.any():
            ins = blocks[int(self.pcs[lane])].instructions[0]
            raise EmulationError(
                f"{at(self.function, ins)}: deadlock: block {block} thread {thread} waits for lanes of its warp that "
                "the mask names and that never arrive"
            )
        mine = lanes.block_of == lanes.block_of[lane]
        live = int(np.count_nonzero(mine & self.live))
        number = int(waiting[lane])
        there = int(np.count_nonzero(mine & (waiting == number)))
        ins = blocks[int(self.barriers.resume[lane]) - 1].instructions[-1]
        raise EmulationError(
            f"{at(self.function, ins)}: deadlock: {there} of {live} live threads of block {block} wait at barrier "
            f"{number}, thread {thread} among them, and the others never arrive"
        )

    def totals(self) -> Counts:
        """The counters of all batches so far."""
        if self.memory.counts is None:
            return Counts()
        counts = Counts(self.memory.counts)
        for code in self.codes:
            if code is None or not code.warps:
                continue
            for name, cost in code.classes.items():
                counts.bump(f"issue.{name}", cost * code.warps)
            counts.bump("issue", code.issued * code.warps)
            counts.bump("lanes", code.issued * code.lanes)
        counts.bump("barriers", self.barriers.opened)
        return counts
