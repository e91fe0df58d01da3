"""Matrices of eight rows of eight 16-bit elements: `ldmatrix`, `stmatrix`, `movmatrix`.

A row of a matrix is 16 bytes of shared memory; a matrix moves in one wavefront where its rows lie in different banks.
"""

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.warp import whole_warps
from kernrec.ptx.ir.operand import elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
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


@steps("ldmatrix", "stmatrix")
def _move_matrices(decoder: BlockDecoder, ins: Instruction) -> Step:
    number, transposes = _matrices(ins)
    store = ins.opcode == "stmatrix"
    address, registers = ins.operands if store else ins.operands[::-1]
    rows = [decoder.row(item, "b32").reshape(-1, 32) for item in elements(registers)]
    if len(rows) != number:
        raise UnsupportedFormError(f"{len(rows)} registers for {number} matrices")
    shared, offset = decoder.selection(ins, address_of(address), 8 * number)
    space = "shared" if "shared" in ins.modifiers else "generic"
    access = Access(decoder.function, ins, space, offset, 16, 8, rows_of_matrices=True)
    memory, running_lanes = decoder.memory, decoder.running_lanes(ins)
    moves = decoder.stores(ins) if store else decoder.computes(ins)

    def run() -> None:
        selection = shared.get()
        if selection is None:
            return
        warps = whole_warps(decoder, ins, running_lanes())
        [(region, part)] = memory.resolve(access, selection, store)
        memory.record(access, region, part, store)
        if not moves:
            return
        index, shift = part.index(region, 8, access.offset)
        view = region.views[8]
        if store:
            words = np.stack([row[warps] for row in rows], axis=1)
            data = (_transposed(words) if transposes else words).view(np.uint64).reshape(-1, 2)
            for i in range(2):
                view[shift + i :][index] = data[:, i]
        else:
            data = np.empty((len(index), 2), np.uint64)
            for i in range(2):
                data[:, i] = view[shift + i :].take(index, None, None, "clip")
            words = data.view(np.uint32).reshape(-1, number, 32)
            words = _transposed(words) if transposes else words
            for i, row in enumerate(rows):
                row[warps] = words[:, i]

    return run


@steps("movmatrix")
def _move_matrix(decoder: BlockDecoder, ins: Instruction) -> Step:
    if ins.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnsupportedFormError
    target, source = (decoder.row(operand, "b32").reshape(-1, 32) for operand in ins.operands)
    running_lanes, moves = decoder.running_lanes(ins), decoder.computes(ins)

    def run() -> None:
        numbers = running_lanes()
        if numbers is None or len(numbers):
            warps = whole_warps(decoder, ins, numbers)
            if moves:
                target[warps] = _transposed(np.ascontiguousarray(source[warps]))

    return run
