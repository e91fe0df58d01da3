"""Matrices of eight rows of eight 16-bit elements: `ldmatrix`, `stmatrix`, `movmatrix`.

A row of a matrix is 16 bytes of shared memory; a matrix moves in one wavefront where its rows lie in different banks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.warp import whole_warps
from kernrec.ptx.ir.operand import Operand, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.selection import SharedSelection
from kernrec.ptx.state.types import Array


def _matrices(ins: Instruction) -> tuple[int, bool]:
    """How many matrices an instruction moves, and whether transposed."""
    marks = set(ins.modifiers)
    number = next((n for n in (1, 2, 4) if f"x{n}" in marks), 0)
    if not number or not {"sync", "aligned", "m8n8", "b16"} <= marks or ins.modifiers[-1] != "b16":
        raise UnsupportedFormError
    if marks - {"sync", "aligned", "m8n8", f"x{number}", "trans", "shared", "cta", "b16"}:
        raise UnsupportedFormError
    return number, "trans" in marks


def _transposed(words: Array) -> Array:
    """Matrices (..., 32 words of two elements each, row by row) transposed."""
    halves = words.view(np.uint16).reshape(*words.shape[:-1], 8, 8).swapaxes(-1, -2)
    return np.ascontiguousarray(halves).view(np.uint32).reshape(words.shape)


@dataclass(frozen=True)
class _MatrixMove:
    """Moves matrices between registers and shared memory."""

    decoder: BlockDecoder
    """Of the instruction's basic block."""

    shared: SharedSelection
    """Lanes with the addresses of the rows."""

    access: Access
    """The access of each of these lanes: a row of 16 bytes."""

    running_lanes: Callable[[], Array | None]
    """Numbers of the lanes that run the instruction, or None for all."""

    rows: list[Array]
    """The registers, one for each matrix; (warps, 32)."""

    transposed: bool
    """Whether the matrices are transposed on the way."""

    def load(self) -> None:
        """Loads the matrices from memory."""
        selection = self.shared.get()
        if selection is None:
            return
        memory, access = self.decoder.memory, self.access
        warps = whole_warps(self.decoder, access.ins, self.running_lanes())
        [(region, part)] = memory.resolve(access, selection)
        index, shift = part.index(region, 8, access.offset)
        view = region.views[8]
        data = np.empty((len(index), 2), np.uint64)
        for i in range(2):
            data[:, i] = view[shift + i :].take(index, None, None, "clip")
        words = data.view(np.uint32).reshape(-1, len(self.rows), 32)
        if self.transposed:
            words = _transposed(words)
        for i, row in enumerate(self.rows):
            row[warps] = words[:, i]
        memory.record(access, region, part, False)

    def store(self) -> None:
        """Stores the matrices into memory."""
        selection = self.shared.get()
        if selection is None:
            return
        memory, access = self.decoder.memory, self.access
        warps = whole_warps(self.decoder, access.ins, self.running_lanes())
        words = np.stack([row[warps] for row in self.rows], axis=1)
        if self.transposed:
            words = _transposed(words)
        [(region, part)] = memory.resolve(access, selection, True)
        index, shift = part.index(region, 8, access.offset)
        data = words.view(np.uint64).reshape(-1, 2)
        for i in range(2):
            region.views[8][shift + i :][index] = data[:, i]
        memory.record(access, region, part, True)


def _move(decoder: BlockDecoder, ins: Instruction, address: Operand, registers: Operand) -> _MatrixMove:
    number, transposed = _matrices(ins)
    items = elements(registers)
    rows = [decoder.row(item, "b32").reshape(-1, 32) for item in items]
    if len(rows) != number:
        raise UnsupportedFormError(f"{len(rows)} registers for {number} matrices")
    shared, offset = decoder.selection(ins, address_of(address), 8 * number)
    space = "shared" if "shared" in ins.modifiers else "generic"
    access = Access(decoder.function, ins, space, offset, 16, 8, rows_of_matrices=True)
    return _MatrixMove(decoder, shared, access, decoder.running_lanes(ins), rows, transposed)


@steps("ldmatrix")
def _load_matrices(decoder: BlockDecoder, ins: Instruction) -> Step:
    return _move(decoder, ins, ins.operands[1], ins.operands[0]).load


@steps("stmatrix")
def _store_matrices(decoder: BlockDecoder, ins: Instruction) -> Step:
    return _move(decoder, ins, ins.operands[0], ins.operands[1]).store


@steps("movmatrix")
def _move_matrix(decoder: BlockDecoder, ins: Instruction) -> Step:
    if ins.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnsupportedFormError
    target, source = (decoder.row(operand, "b32").reshape(-1, 32) for operand in ins.operands)
    running_lanes = decoder.running_lanes(ins)

    def run() -> None:
        numbers = running_lanes()
        if numbers is None or len(numbers):
            warps = whole_warps(decoder, ins, numbers)
            target[warps] = _transposed(np.ascontiguousarray(source[warps]))

    return run
