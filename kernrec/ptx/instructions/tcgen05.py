"""Tensor memory of data-center Blackwell: the `tcgen05` instructions, and those that allocate, wait and fence.

PTX ISA, section "TensorCore 5th Generation Family Instructions". Multiplications are in `tcgen05_mma`, moves in
`tcgen05_moves`. That an operation is done before another one uses its cells is checked as it happens
(`kernrec.ptx.state.tensor_memory`). Where races are checked, a kernel that has fences (`tcgen05.fence`) must have them
everywhere (`kernrec.ptx.state.tensor_operations`).
"""

from collections.abc import Callable

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.tcgen05_mma import Multiplication, commit
from kernrec.ptx.instructions.tcgen05_moves import copy, move, running_warps
from kernrec.ptx.ir.program import Function, Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import location

_WORD = 4


def _has_fences(function: Function) -> bool:
    return any(ins.opcode == "tcgen05" and ins.modifiers[0] == "fence" for ins in function.instructions)


def _allocate(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`tcgen05.alloc`: a warp allocates columns; their address goes to shared memory."""
    row, offset = decoder.address(address_of(ins.operands[0]))
    columns = decoder.row(ins.operands[1], "u32")
    space = "shared" if "shared" in ins.modifiers else "generic"
    access = Access(decoder.function, ins, space, offset, _WORD, _WORD)
    memory, shape = decoder.memory, decoder.lanes.shape
    warps = running_warps(decoder, ins)
    if memory.races is not None and _has_fences(decoder.function):
        memory.pending.tensor.fences.watch()

    def run() -> None:
        for lane in (warps() * WARP).tolist():
            address = memory.pending.tensor.memory.allocate(
                access.location, int(shape.block_of[lane]), int(columns[lane])
            )
            selection = memory.select(np.array([lane]), row[lane : lane + 1].copy())
            for region, part in memory.resolve(access, selection, True):
                index, shift = part.index(region, _WORD, offset)
                region.views[_WORD][index + shift] = address
                memory.record(access, region, part, True)

    return run


def _release(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`tcgen05.dealloc`: a warp releases columns."""
    addresses, columns = (decoder.row(operand, "u32") for operand in ins.operands)
    tensor, shape, place = decoder.memory.pending.tensor.memory, decoder.lanes.shape, location(decoder.function, ins)
    warps = running_warps(decoder, ins)

    def run() -> None:
        for lane in (warps() * WARP).tolist():
            tensor.release(place, int(shape.block_of[lane]), int(addresses[lane]), int(columns[lane]))

    return run


def _relinquish(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`tcgen05.relinquish_alloc_permit`: the block allocates no more."""
    tensor, shape, warps = decoder.memory.pending.tensor.memory, decoder.lanes.shape, running_warps(decoder, ins)

    def run() -> None:
        for lane in (warps() * WARP).tolist():
            tensor.relinquish(int(shape.block_of[lane]))

    return run


def _wait(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`tcgen05.wait::ld` and `tcgen05.wait::st`: a warp waits for all its loads or stores."""
    tensor, counts, warps = decoder.memory.pending.tensor, decoder.memory.counters.counts, running_warps(decoder, ins)
    wait = {"ld": tensor.wait_for_loads, "st": tensor.wait_for_stores}[ins.modifiers[1]]

    def run() -> None:
        numbers = warps()
        wait(numbers)
        if counts is not None:
            counts.bump("tcgen05.waits", len(numbers))

    return run


def _fence(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`tcgen05.fence`: a warp orders what it does in tensor memory with its synchronization."""
    if ins.modifiers[1] not in ("before_thread_sync", "after_thread_sync"):
        raise UnsupportedFormError
    fences, before = decoder.memory.pending.tensor.fences, ins.modifiers[1] == "before_thread_sync"
    warps = decoder.warps_with_lanes(ins)
    return lambda: fences.fence(warps(), before=before)


_BUILDERS: dict[str, Callable[[BlockDecoder, Instruction], Step]] = {
    "alloc": _allocate,
    "dealloc": _release,
    "relinquish_alloc_permit": _relinquish,
    "wait": _wait,
    "fence": _fence,
    "ld": move,
    "st": move,
    "cp": copy,
    "mma": Multiplication,
    "commit": commit,
}


@steps("tcgen05")
def _tcgen05(decoder: BlockDecoder, ins: Instruction) -> Step:
    build = _BUILDERS.get(ins.modifiers[0])
    if build is None:
        raise UnsupportedFormError
    return build(decoder, ins)
