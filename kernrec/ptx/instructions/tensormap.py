"""Tensor maps that the kernel writes: `tensormap.replace`, `tensormap.cp_fenceproxy` and `fence.proxy.tensormap` (PTX
ISA, sections 9.7.9.27 and 9.7.13.7)."""

from dataclasses import replace

import numpy as np

from kernrec.ptx.instructions.access import address_of, space_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.ir.operand import Immediate
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.tensor_maps import MAP_BYTES, TensorMapError, replaced
from kernrec.ptx.state.types import Array

_PIECE = 16


def map_bytes(memory: Memory, access: Access, lane: int, address: int, write: bool = False) -> tuple[Region, Array]:
    """The memory that a lane's map is in, and its bytes there, which writing changes.

    Raises:
        EmulationError: the address is in no memory, or misaligned.
    """
    if address % 64:
        block, thread = memory.lanes.coordinates(lane)
        raise EmulationError(
            f"{access.location}: block {block} thread {thread} uses a tensor map at 0x{address:x}, which is not a"
            " multiple of 64"
        )
    for offset in (MAP_BYTES - _PIECE, 0):
        piece = replace(access, offset=offset, size=_PIECE, unit=8)
        selection = memory.select(np.array([lane]), np.array([address], np.uint64))
        [(region, part)] = memory.resolve(piece, selection, write)
    index, shift = part.index(region, 1, 0)
    first = int(index[0]) + shift
    return region, region.bytes[first : first + MAP_BYTES]


@steps("tensormap")
def _tensormap(decoder: BlockDecoder, ins: Instruction) -> Step:
    if ins.modifiers[:2] == ("replace", "tile"):
        return _replace(decoder, ins)
    if ins.modifiers[0] == "cp_fenceproxy" and isinstance(ins.operands[2], Immediate):
        return _copy(decoder, ins)
    raise UnsupportedFormError


def _replace(decoder: BlockDecoder, ins: Instruction) -> Step:
    field = ins.modifiers[2]
    row, offset = decoder.address(address_of(ins.operands[0]))
    value = decoder.row(ins.operands[-1], ins.modifiers[-1])
    ordinal = ins.operands[1] if len(ins.operands) == 3 else Immediate(0, "int")
    if not isinstance(ordinal, Immediate):
        raise UnsupportedFormError("a dimension that is no literal")
    memory, access = decoder.memory, Access(decoder.function, ins, space_of(ins), 0, _PIECE, 8)
    running = decoder.running_numbers(ins)

    def run() -> None:
        for lane in running().tolist():
            address = int(row[lane]) + offset
            region, raw = map_bytes(memory, access, lane, address, True)
            try:
                new = replaced(raw.tobytes(), field, int(ordinal.value), int(value[lane]))
            except TensorMapError as error:
                raise EmulationError(f"{access.location}: {error}") from None
            raw[:] = np.frombuffer(new, np.uint8)
            if region.space == "global":
                memory.pending.map_fences.write(address)

    return run


def _copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    """Copies a map from shared to global memory, and releases it; the threads of a warp do so together."""
    to, to_offset = decoder.address(address_of(ins.operands[0]))
    source_row, source_offset = decoder.address(address_of(ins.operands[1]))
    memory = decoder.memory
    target = Access(decoder.function, ins, "global", 0, _PIECE, 8)
    source = replace(target, space="shared")
    running = decoder.running_numbers(ins)

    def run() -> None:
        for lane in dict.fromkeys(lane - lane % WARP for lane in running().tolist()):
            address = int(to[lane]) + to_offset
            _, raw = map_bytes(memory, source, lane, int(source_row[lane]) + source_offset)
            map_bytes(memory, target, lane, address, True)[1][:] = raw
            memory.pending.map_fences.write_released(address)

    return run


@steps("fence")
def _fence(decoder: BlockDecoder, ins: Instruction) -> Step:
    """`fence`: only those between proxies do something here."""
    memory, lanes = decoder.memory, decoder.lanes
    running = decoder.running_numbers(ins)
    if ins.modifiers[:2] == ("proxy", "tensormap"):
        if "release" in ins.modifiers:
            return memory.pending.map_fences.release
        row, offset = decoder.address(address_of(ins.operands[0]))
        block_of = lanes.shape.block_of

        def acquire() -> None:
            for lane in running().tolist():
                memory.pending.map_fences.acquire(int(row[lane]) + offset, int(block_of[lane]))

        return acquire
    races = memory.races
    if races is None or ins.modifiers[:2] != ("proxy", "async"):
        return lambda: None
    return lambda: races.tensor_reads.fence(running(), lanes.shape.lanes_per_block)
