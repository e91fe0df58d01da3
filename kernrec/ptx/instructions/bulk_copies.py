"""Copies in bulk: `cp.async.bulk`, `cp.reduce.async.bulk` and their forms on tensors (PTX ISA, sections 9.7.9.25.4 and
9.7.9.25.5).

A thread starts a copy, and the engine does it (`kernrec.ptx.state.bulk_copies`). Mostly one thread of a block runs such
an instruction, so lanes are taken one at a time here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.atomics import combination
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError
from kernrec.ptx.instructions.tensormap import map_bytes
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Texel, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.bulk_copies import BulkCopy, Elements, Reduce
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.mbarriers import BarrierMisuseError
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.phase_races import PhaseRaceDetector
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.tensor_maps import TensorMap, TensorMapError, decode, four_rows
from kernrec.ptx.state.types import DTYPES, Array

_PIECE = 16  # what addresses and sizes are multiples of
_TENSOR_ALIGN = 128  # what the address of a box in shared memory is a multiple of
_OF_MAPS = ("global", "const", "param")  # memories whose tensor maps a copy reads
_REDUCIBLE = frozenset({"f16", "bf16", "u32", "s32", "u64", "s64", "f32", "f64", "b32", "b64"})
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def bulk_step(decoder: BlockDecoder, ins: Instruction) -> Step:
    """The step of a `cp` with `.bulk`."""
    marks = {*ins.modifiers}
    bulk, running = decoder.memory.pending.bulk, decoder.running_numbers(ins)
    if "prefetch" in marks:
        return lambda: None
    if "commit_group" in marks:
        return lambda: bulk.commit(running().tolist())
    if "wait_group" in marks:
        if not isinstance(ins.operands[0], Immediate):
            raise UnsupportedFormError("wait_group without a literal")
        allowed, only_read = int(ins.operands[0].value), "read" in marks
        return lambda: bulk.wait(running().tolist(), allowed, only_read)
    starter = _tensor(decoder, ins) if "tensor" in marks else _linear(decoder, ins)
    return lambda: starter.start_all(running().tolist())


@dataclass
class _Starter:
    """Starts the copies of one instruction; `copy(lane)` makes the copy of a lane."""

    memory: Memory
    access: Access
    copy: Callable[[int], BulkCopy]
    barrier: Callable[[int], int] | None
    """The address of the barrier of a lane; None: the copy is part of a bulk group."""
    mask: Callable[[int], int] | None
    """The ranks of the blocks that a lane's copy goes to; None: to one block."""

    def start_all(self, lanes: list[int]) -> None:
        """Starts the copies of some lanes."""
        memory = self.memory
        copies = [self._prepared(lane) for lane in lanes]
        for copy in copies:
            memory.pending.bulk.start(copy)
        if self.barrier is not None and copies:
            memory.pending.engine.start(
                lambda: self._finish_all(copies), [place for copy in copies for place in copy.barriers]
            )

    def _prepared(self, lane: int) -> BulkCopy:
        copy = self.copy(lane)
        if self.barrier is None:
            return copy
        memory = self.memory
        place = _shared_place(memory, replace(self.access, offset=0), lane, self.barrier(lane), 8)
        copy.barriers = [place]
        if isinstance(memory.races, PhaseRaceDetector):
            memory.races.use(self.access.location, np.array([lane]), np.array([place]))
        if self.mask is not None:
            copy = self._multicast(copy, self.mask(lane))
        for place in copy.barriers:
            try:
                memory.mbarriers.phase(place)
            except BarrierMisuseError as error:
                self._misuse(error, lane, place)
        return copy

    def _multicast(self, copy: BulkCopy, mask: int) -> BulkCopy:
        """The copy to each block of the cluster that a mask names, at the same place in each."""
        cluster, shape = self.memory.cluster, self.memory.lanes.shape
        ranks = [rank for rank in range(16) if mask >> rank & 1]
        if not ranks or ranks[-1] >= shape.cluster_blocks:
            what = f"multicasts to mask 0x{mask:x} in a cluster of {shape.cluster_blocks} blocks"
            _fail(self.memory, self.access, copy.lane, what)
        [target], [barrier] = copy.targets, copy.barriers
        moves = [(rank - cluster.rank(barrier)) * cluster.stride for rank in ranks]
        copy.targets = [target.moved(move) for move in moves]
        copy.barriers = [barrier + move for move in moves]
        return copy

    def _finish_all(self, copies: list[BulkCopy]) -> None:
        for copy in copies:
            self.memory.pending.bulk.finish(copy)
            for place in copy.barriers:
                try:
                    self.memory.mbarriers.expect(place, -copy.bytes)
                except BarrierMisuseError as error:
                    self._misuse(error, copy.lane, place)

    def _misuse(self, error: BarrierMisuseError, lane: int, place: int) -> NoReturn:
        _fail(self.memory, self.access, lane, f"uses the barrier at {self.memory.cluster.name(place)}, {error}")


def _fail(memory: Memory, access: Access, lane: int, what: str) -> NoReturn:
    block, thread = memory.lanes.coordinates(lane)
    raise EmulationError(f"{access.location}: block {block} thread {thread} {what}")


def _addresses(decoder: BlockDecoder, operand: Operand) -> Callable[[int], int]:
    row, offset = decoder.address(address_of(operand))
    return lambda lane: int(row[lane]) + offset


def _values(decoder: BlockDecoder, operand: Operand, kind: str) -> Callable[[int], int]:
    row = decoder.row(operand, kind)
    return lambda lane: int(row[lane])


def _shared_place(memory: Memory, access: Access, lane: int, address: int, size: int) -> int:
    """The place of some bytes of shared memory."""
    unit = 8 if size == 8 else _PIECE
    first_unit = replace(access, space="shared", offset=0, size=unit, unit=8)
    _, [place] = memory.shared_places(first_unit, memory.select(np.array([lane]), np.array([address], np.uint64)))
    start = int(place) % memory.cluster.stride
    if start + size > memory.cluster.size:
        _fail(memory, access, lane, f"moves {size} bytes at byte {start} of shared memory, {memory.cluster.size} bytes")
    return int(place)


def _global_start(memory: Memory, access: Access, lane: int, span: tuple[int, int], write: bool) -> tuple[Region, int]:
    """The buffer that a span of addresses (first, after the last) is in, and where in it the span begins."""
    first, end = span
    for address in (first, end - _PIECE):
        first_piece = replace(access, space="global", offset=0, size=_PIECE, unit=8)
        selection = memory.select(np.array([lane]), np.array([address], np.uint64))
        [(region, _)] = memory.resolve(first_piece, selection, write)
    return region, first - region.base


def _mask(decoder: BlockDecoder, ins: Instruction, rest: list[Operand]) -> Callable[[int], int] | None:
    return _values(decoder, rest.pop(0), "u16") if "multicast" in ins.modifiers else None


def _reduction(ins: Instruction, kind: str) -> Reduce | None:
    if ins.modifiers[0] != "reduce":
        return None
    name = next(m for m in ins.modifiers if m in _OPERATIONS)
    if kind not in _REDUCIBLE:
        raise UnsupportedFormError(f"a reduction of .{kind}")
    combine = combination(name, kind)
    return lambda old, new: combine(old, new, new)


def _access(decoder: BlockDecoder, ins: Instruction) -> Access:
    return Access(decoder.function, ins, "shared", 0, _PIECE, 8)


def _linear(decoder: BlockDecoder, ins: Instruction) -> _Starter:
    """A copy of bytes in a row: [target], [source], size, then [barrier] where one waits."""
    marks = [m for m in ins.modifiers if m in ("shared", "global")]
    if len(marks) != 2 or marks == ["global", "global"] or "cp_mask" in ins.modifiers:
        raise UnsupportedFormError
    operands = list(ins.operands[:-1] if "cache_hint" in ins.modifiers else ins.operands)
    target, source = (_addresses(decoder, operand) for operand in operands[:2])
    size = _values(decoder, operands[2], "u32")
    rest = operands[3:]
    barrier = _addresses(decoder, rest.pop(0)) if "mbarrier" in ins.modifiers else None
    mask = _mask(decoder, ins, rest)
    memory, access = decoder.memory, _access(decoder, ins)
    kind = ins.modifiers[-1] if ins.modifiers[0] == "reduce" else "b64"
    reduce, dtype = _reduction(ins, kind), DTYPES[kind]

    def row(lane: int, address: int, count: int, space: str, write: bool) -> Elements:
        if space == "global":
            region, first = _global_start(memory, access, lane, (address, address + count), write)
        else:
            region, first = memory.cluster.region, _shared_place(memory, access, lane, address, count)
        unit = dtype.itemsize
        return Elements(region, region.views[unit].view(dtype), slice(first // unit, (first + count) // unit))

    def copy(lane: int) -> BulkCopy:
        count = size(lane)
        if count % _PIECE or not count:
            _fail(memory, access, lane, f"copies {count} bytes in bulk; a multiple of {_PIECE} is needed")
        into = row(lane, target(lane), count, marks[0], True)
        read = row(lane, source(lane), count, marks[1], False)
        return BulkCopy(lane, access, read, [into], bytes=count, reduce=reduce)

    return _Starter(memory, access, copy, barrier, mask)


def _tensor(decoder: BlockDecoder, ins: Instruction) -> _Starter:
    """A copy of a box of a tensor, which a map and coordinates name."""
    if {"im2col", "im2col_no_offs"} & {*ins.modifiers}:
        raise UnsupportedFormError
    rows = {"gather4", "scatter4"} & {*ins.modifiers}
    operands = list(ins.operands[:-1] if "cache_hint" in ins.modifiers else ins.operands)
    load = "mbarrier" in ins.modifiers
    texel, shared = (operands[1], operands[0]) if load else (operands[0], operands[1])
    if not isinstance(texel, Texel) or not isinstance(shared, Address):
        raise UnsupportedFormError("operands")
    rest = operands[2:]
    barrier = _addresses(decoder, rest.pop(0)) if load else None
    mask = _mask(decoder, ins, rest)
    memory, access = decoder.memory, _access(decoder, ins)
    map_at = _addresses(decoder, Address(texel.image, 0))
    coordinates = [_values(decoder, c, "s32") for part in texel.coordinates for c in elements(part)]
    place_of = _addresses(decoder, shared)
    rank = next(int(m[0]) for m in ins.modifiers if m in ("1d", "2d", "3d", "4d", "5d"))
    if len(coordinates) != (5 if rows else rank):
        raise UnsupportedFormError(f"{len(coordinates)} coordinates of {rank} dimensions")

    def copy(lane: int) -> BulkCopy:
        tensor = tensor_map(memory, access, lane, map_at(lane))
        if tensor.rank != rank:
            _fail(memory, access, lane, f"gives {rank} coordinates for a tensor map of rank {tensor.rank}")
        corner = tuple(get(lane) for get in coordinates)
        if rows:
            if tensor.box[1] != 1:
                _fail(memory, access, lane, f"moves four rows with a tensor map whose box has {tensor.box[1]}")
            tensor = four_rows(tensor)
            offsets, inside = tensor.rows(corner[0], corner[1:])
        else:
            offsets, inside = tensor.elements(corner)
        box = _box(lane, tensor, offsets, inside)
        address = place_of(lane)
        if address % _TENSOR_ALIGN:
            what = f"gives shared address 0x{address:x}, which is not a multiple of {_TENSOR_ALIGN}"
            _fail(memory, access, lane, what)
        place = _shared_place(memory, access, lane, address, tensor.shared_bytes)
        region, unit = memory.cluster.region, tensor.element_bytes
        index = (tensor.shared_offsets(place % memory.cluster.stride) + place) // unit
        tile = Elements(region, region.views[unit].view(box.view.dtype), index)
        if load:
            return BulkCopy(lane, access, box, [tile], bytes=tensor.box_bytes)
        kind = tensor.type.removesuffix(".ftz")
        if ins.modifiers[0] == "reduce" and kind not in _REDUCIBLE:
            _fail(memory, access, lane, f"combines elements of .{kind}, for which there is no reduction")
        return BulkCopy(lane, access, tile, [box], bytes=tensor.box_bytes, reduce=_reduction(ins, kind))

    def _box(lane: int, tensor: TensorMap, offsets: Array, inside: Array | None) -> Elements:
        there = offsets if inside is None else offsets[inside]
        unit = tensor.element_bytes
        assert isinstance(tensor.address, int)
        if len(there):
            low, high = int(there.min()) & -_PIECE, (int(there.max()) + unit + _PIECE - 1) & -_PIECE
            span = tensor.address + low, tensor.address + high
        else:
            low, span = 0, (tensor.address, tensor.address + _PIECE)
        region, first = _global_start(memory, access, lane, span, not load)
        dtype = DTYPES[tensor.type.removesuffix(".ftz")]
        index = (offsets + (first - low)) // unit
        return Elements(region, region.views[unit].view(dtype), index, inside, tensor.fill)

    return _Starter(memory, access, copy, barrier, mask)


def tensor_map(memory: Memory, access: Access, lane: int, address: int) -> TensorMap:
    """The tensor map at a generic address: of global, constant or parameter memory (PTX ISA, section
    "Tensor-map")."""
    region, raw = map_bytes(memory, replace(access, space="generic"), lane, address)
    if region.space not in _OF_MAPS:
        what = f"uses a tensor map in {region.space} memory, where no copy reads one"
        _fail(memory, access, lane, f"{what} (a parameter has to be __grid_constant__)")
    if memory.races is not None:
        block = int(memory.lanes.shape.block_of[lane])
        if fence := memory.pending.map_fences.missing(address, block):
            _fail(memory, access, lane, f"uses a tensor map that the kernel wrote with no {fence} since")
    try:
        tensor = decode(raw.tobytes())
        tensor.check()
    except TensorMapError as error:
        _fail(memory, access, lane, f"uses a tensor map that no copy can use: {error}")
    return tensor
