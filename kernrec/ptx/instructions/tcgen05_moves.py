"""Moves between tensor memory, registers and shared memory: `tcgen05.ld`, `tcgen05.st` and `tcgen05.cp`.

PTX ISA, section "Data movement shape". Warp w of a warpgroup reaches lanes 32 w to 32 w + 31 of tensor memory. Register
r of thread t holds, of the lanes and columns from the address on,

| shape | registers of .xN | lane | column |
|---|---|---|---|
| 32x32b | N | t | r |
| 16x64b | N | t / 4 + 8 (t % 2) | t / 2 % 2 + 2 r |
| 16x128b | 2 N | t / 4 + 8 (r % 2) | t % 4 + 4 (r / 2) |
| 16x256b | 4 N | t / 4 + 8 (r / 2 % 2) | 2 (t % 4) + r % 2 + 8 (r / 4) |
| 16x32bx2 | N | t % 16 | r, and from thread 16 on as many columns further as the instruction says |

With `.pack::16b` and `.unpack::16b` a register holds the lower halves of two neighboring columns, and columns count
twice.

`tcgen05.cp` copies rows of 16 or 32 bytes of a matrix in shared memory, which a descriptor of a K-major matrix
describes, to lanes: each of 128 rows to its own, of 64 rows each to two and of 32 rows each to four warps' lanes, of 4
rows to the first lane of each warp.

`tensor_memory.load_bytes`, `.store_bytes` and `.copy_bytes` count what moves; `tcgen05.shared_bytes` what tensor cores
read of shared memory.
"""

from collections.abc import Callable

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError
from kernrec.ptx.instructions.shared_tiles import TileShape, read_tile
from kernrec.ptx.instructions.warp import whole_warps
from kernrec.ptx.ir.operand import Immediate, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.matrix_descriptors import tcgen05_descriptor
from kernrec.ptx.state.tensor_memory import COLUMNS, Cells, Operation
from kernrec.ptx.state.types import Array

_REGISTERS = {"32x32b": 1, "16x32bx2": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}  # of .x1
_MOST_REGISTERS = 128
_COPIES = {
    ("64x128b", "warpx2", "02_13"): (0, 64),
    ("64x128b", "warpx2", "01_23"): (0, 32),
    ("32x128b", "warpx4"): (0, 32, 64, 96),
}
"""Lanes from one copy of a row to the first, by shape and how it is multiplied."""


def running_warps(decoder: BlockDecoder, ins: Instruction) -> Callable[[], Array]:
    """A function that gives the numbers of the warps that run an instruction, each with all of its threads."""
    running_lanes = decoder.running_lanes(ins)
    count = decoder.lanes.shape.lanes // WARP

    def numbers() -> Array:
        running = running_lanes()
        if running is not None and not len(running):
            return running
        warps = whole_warps(decoder, ins, running)
        return np.arange(count) if isinstance(warps, slice) else warps

    return numbers


def places(shape: str, registers: int, split: int) -> tuple[Array, Array]:
    """Lane and column of each register of each thread, from the address on; int64 (32, registers).

    Args:
        shape: of the move.
        registers: of a thread.
        split: of `16x32bx2`: columns from the first half to the second.
    """
    t, r = np.arange(WARP)[:, None], np.arange(registers)
    if shape == "32x32b":
        lane, column = t + 0 * r, r + 0 * t
    elif shape == "16x32bx2":
        lane, column = t % 16 + 0 * r, r + t // 16 * split
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t % 2) + 0 * r, t // 2 % 2 + 2 * r
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)
    else:
        lane, column = t // 4 + 8 * (r // 2 % 2), 2 * (t % 4) + r % 2 + 8 * (r // 4)
    return lane, column


class _Move:
    """The step of a `tcgen05.ld` or `tcgen05.st`."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction) -> None:
        kind, sync, aligned, shape, times, *marks = ins.modifiers
        packed = marks[:2] == (["pack", "16b"] if kind == "ld" else ["unpack", "16b"])
        as_usual = (sync, aligned) == ("sync", "aligned") and shape in _REGISTERS and times[:1] == "x"
        if not as_usual or marks[2 * packed :] != ["b32"]:
            raise UnsupportedFormError
        operands = list(ins.operands)
        address = operands.pop(1 if kind == "ld" else 0)
        split = operands.pop() if shape == "16x32bx2" and kind == "ld" else None
        split = operands.pop(0) if shape == "16x32bx2" and kind == "st" else split
        items = elements(operands[0])
        expected = _REGISTERS[shape] * int(times[1:])
        if len(items) != expected or expected > _MOST_REGISTERS:
            raise UnsupportedFormError(f"{len(items)} registers where {expected} are expected")
        if split is not None and not isinstance(split, Immediate):
            raise UnsupportedFormError("a distance of the halves that is no literal")
        self.decoder = decoder
        self.ins = ins
        self.packed = packed
        self.place = location(decoder.function, ins)
        self.rows = [decoder.ref(item, "b32")[1] for item in items]
        self.address = decoder.address(address_of(address))
        self.warps = running_warps(decoder, ins)
        lane, column = places(shape, expected, 0)
        column = column * (1 + packed)
        if split is not None:
            column += np.arange(WARP)[:, None] // 16 * int(split.value)
        self.places = lane, column

    def cells(self, warp: int) -> Cells:
        """The cells of a warp's registers, (32, registers); of packed ones the first of two.

        Raises:
            EmulationError: an address that differs between the threads, or of lanes that the warp does not reach.
        """
        shape = self.decoder.lanes.shape
        row, offset = self.address
        addresses = row[warp * WARP : (warp + 1) * WARP].astype(np.int64) + offset
        if (addresses != addresses[0]).any():
            raise EmulationError(f"{self.place}: the threads of a warp have different addresses")
        lane, column = int(addresses[0]) >> 16 & 0xFFFF, int(addresses[0]) & 0xFFFF
        within = warp % (shape.lanes_per_block // WARP) % 4
        starts = (0,) if "32x32b" in self.ins.modifiers else (0, 16)
        if lane - 32 * within not in starts:
            raise EmulationError(
                f"{self.place}: lane {lane} of tensor memory, where warp {within} of a warpgroup reaches lanes from "
                f"{32 * within} on"
            )
        return Cells(int(shape.block_of[warp * WARP]), self.places[0] + lane, self.places[1] + column)

    def load(self) -> None:
        decoder, tensor = self.decoder, self.decoder.memory.pending.tensor
        file = decoder.registers.files[32]
        warps = self.warps()
        for warp in warps.tolist():
            cells = self.cells(warp)
            if self.packed:
                cells = _pairs(cells)
            values = tensor.memory.load(self.place, cells)
            if self.packed:
                halves = (values & 0xFFFF).reshape(WARP, -1, 2)
                values = halves[:, :, 0] | halves[:, :, 1] << 16
            file[self.rows, warp * WARP : (warp + 1) * WARP] = values.T
            tensor.load(self.place, warp, cells)
        self._count("load", len(warps))

    def store(self) -> None:
        decoder, tensor = self.decoder, self.decoder.memory.pending.tensor
        file = decoder.registers.files[32]
        warps = self.warps()
        for warp in warps.tolist():
            cells = self.cells(warp)
            values = file[self.rows, warp * WARP : (warp + 1) * WARP].T
            if self.packed:
                cells = _pairs(cells)
                values = np.stack([values & 0xFFFF, values >> 16], axis=-1).reshape(WARP, -1)
            tensor.memory.store(self.place, cells, values)
            tensor.store(self.place, warp, cells)
        self._count("store", len(warps))

    def _count(self, kind: str, warps: int) -> None:
        counts = self.decoder.memory.counters.counts
        if counts is not None:
            counts.bump(f"tensor_memory.{kind}_bytes", warps * WARP * len(self.rows) * 4 * (1 + self.packed))


def _pairs(cells: Cells) -> Cells:
    """Cells, and behind each the next column."""
    column = np.stack([cells.column, cells.column + 1], axis=-1).reshape(WARP, -1)
    return Cells(cells.block, np.repeat(cells.lane, 2, axis=1), column)


def move(decoder: BlockDecoder, ins: Instruction) -> Step:
    """The step of `tcgen05.ld` or `tcgen05.st`."""
    step = _Move(decoder, ins)
    return step.load if ins.modifiers[0] == "ld" else step.store


def copy(decoder: BlockDecoder, ins: Instruction) -> Step:
    """The step of `tcgen05.cp`."""
    _, group, ctas, *marks = ins.modifiers
    sizes = {"128x256b": (128, 32), "4x256b": (4, 32), "128x128b": (128, 16), "64x128b": (64, 16), "32x128b": (32, 16)}
    # Triton writes the warps before the shape, and the assembler takes both orders.
    shape = next((mark for mark in marks if mark in sizes), "")
    multicast = [mark for mark in marks if mark != shape]
    copies = _COPIES.get((shape, *multicast), None if shape in ("64x128b", "32x128b") or multicast else (0,))
    if group != "cta_group" or not shape or copies is None:
        raise UnsupportedFormError
    rows, width = sizes[shape]
    lane = np.arange(rows) * (32 if rows == 4 else 1)
    if multicast[1:] == ["01_23"]:
        lane = lane % 32 + lane // 32 * 64
    row, offset = decoder.address(address_of(ins.operands[0]))
    descriptors = decoder.row(ins.operands[1], "b64")
    lanes = np.concatenate([lane + more for more in copies])[:, None]
    tile, place = TileShape(rows, width, 1), location(decoder.function, ins)
    memory, running, block_of = decoder.memory, decoder.running_numbers(ins), decoder.lanes.shape.block_of

    def run() -> None:
        for lane in running().tolist():
            address, first = int(row[lane]) + offset, int(block_of[lane])
            for block in (first,) if ctas == "1" else (first, first ^ 1):
                data, index = read_tile(memory, place, (tcgen05_descriptor, int(descriptors[lane])), block, tile)
                words = np.ascontiguousarray(data).view(np.uint32)
                column = (address & 0xFFFF) + np.arange(words.shape[1])
                cells = Cells(block, lanes + (address >> 16), np.minimum(column, COLUMNS))
                memory.pending.tensor.issue(lane, Operation(place, [], [cells]), index)
                memory.pending.tensor.memory.put(cells, np.tile(words, (len(lanes) // len(words), 1)))
                if memory.counters.counts is not None:
                    memory.counters.counts.bump("tcgen05.shared_bytes", words.nbytes)
                    memory.counters.counts.bump("tensor_memory.copy_bytes", 4 * len(lanes) * words.shape[1])

    return run
