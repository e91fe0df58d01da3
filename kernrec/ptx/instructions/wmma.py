"""Warp matrix instructions: `wmma.load`, `wmma.store`, `wmma.mma` (PTX ISA, section 9.7.14.4; `nvcuda::wmma`).

The PTX ISA manual leaves open which lane holds which element of a fragment, and says only that the three instructions
agree. Here fragments have the layout of `mma.sync` (`kernrec.ptx.instructions.matrix`): tiles of eight rows of A, or
columns of B, one below the other, then the next along k; of C and D tiles of 8 x 8, those of a column first. Of f16 a
fragment of A or B always has eight registers: where the elements need fewer, they are repeated.

A load or store moves a register, or a pair of elements of C and D, at once where these lie side by side in memory, and
elements one by one where they do not: so its accesses are counted. `wmma.mma` counts as the `mma.sync` of its size.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.access import address_of, space_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.fragments import ALIKE, ELEMENT_TYPES, register_rows
from kernrec.ptx.instructions.matrix import RESULTS, Fragments, ProductKind, add_products
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.warp import whole_warps
from kernrec.ptx.ir.operand import Vector
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.access import Access
from kernrec.ptx.state.selection import SharedSelection
from kernrec.ptx.state.types import Array

_WIDE = frozenset({"m16n16k16", "m32n8k16", "m8n32k16"})
_SHAPES: dict[str, frozenset[str]] = {
    "f16": _WIDE,
    "bf16": _WIDE,
    "s8": _WIDE,
    "u8": _WIDE,
    "tf32": frozenset({"m16n16k8"}),
    "f64": frozenset({"m8n8k4"}),
    "s4": frozenset({"m8n8k32"}),
    "u4": frozenset({"m8n8k32"}),
    "b1": frozenset({"m8n8k128"}),
}
_ACCUMULATORS = {
    "f16": _WIDE,
    "f32": _WIDE | _SHAPES["tf32"],
    "s32": _WIDE | _SHAPES["s4"] | _SHAPES["b1"],
    "f64": _SHAPES["f64"],
}
"""Shapes by type of C and D."""


class _Extents(NamedTuple):
    """The extents of a product."""

    m: int
    """Rows of A, C and D."""

    n: int
    """Columns of B, C and D."""

    k: int
    """Columns of A, rows of B."""


def _extents(shape: str, kind: str, operand: str) -> _Extents:
    """The extents that a shape names; `operand`: `a`, `b`, `c` or `d`, of type `kind`."""
    if shape not in (_ACCUMULATORS if operand in "cd" else _SHAPES).get(kind, frozenset()):
        raise UnsupportedFormError(f"shape {shape} of .{kind}")
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return _Extents(int(m), int(n), int(k))


class _Piece(NamedTuple):
    """Elements that a lane moves at once: they lie side by side in memory."""

    row: Array
    """Row of the first element in each of the 32 lanes."""

    column: Array
    """Column of the first element."""

    slots: tuple[int, ...]
    """For each element its number in the fragment of a lane."""


@lru_cache(None)
def _pieces(extents: _Extents, operand: str, kind: str, by_row: bool) -> tuple[_Piece, ...]:
    """The elements of a fragment of each lane, as they are moved; `by_row`: whether rows lie in a row in memory."""
    lane = np.arange(32)
    g, t = lane // 4, lane % 4
    p = ELEMENT_TYPES[kind].per_register
    pieces = []
    if operand in "cd":
        places = [(8 * i + g, 8 * j + 2 * t) for j in range(extents.n // 8) for i in range(extents.m // 8)]
        step, together = 2, by_row
    else:
        outer, inner = (extents.m if operand == "a" else extents.n) // 8, extents.k // (4 * p)
        if operand == "a":
            places = [(8 * i + g, 4 * p * j + p * t) for j in range(inner) for i in range(outer)]
        else:
            places = [(4 * p * j + p * t, 8 * i + g) for i in range(outer) for j in range(inner)]
        step, together = p, by_row == (operand == "a")
    down = operand == "b"  # whether the elements of a register lie below each other
    for number, (row, column) in enumerate(places):
        slots = tuple(range(number * step, (number + 1) * step))
        if together:
            pieces.append(_Piece(row, column, slots))
        else:
            for e, slot in enumerate(slots):
                pieces.append(_Piece(row + e * down, column + e * (not down), (slot,)))
    return tuple(pieces)


_Move = tuple[_Piece, Access, list[list[Array]]]
"""Elements that are moved at once, their access, and by unit of the access the registers for them."""


class _FragmentMove:
    """Moves a fragment between memory and registers."""

    def __init__(
        self,
        decoder: BlockDecoder,
        ins: Instruction,
        shared: SharedSelection,
        layout: tuple[Array, bool, int],
        moves: list[_Move],
    ) -> None:
        """A step.

        Args:
            decoder: of the instruction's basic block.
            ins: the instruction.
            shared: lanes with the address of the matrix.
            layout: of the matrix in memory: elements from one row (or column) to the next, in each lane; whether the
                elements of a row lie side by side, or those of a column; bits of an element.
            moves: the moves of the fragment, in order.
        """
        self._decoder, self._ins, self._shared, self._layout, self._moves = decoder, ins, shared, layout, moves
        self._running_lanes = decoder.running_lanes(ins)
        self._write = ins.modifiers[0] == "store"

    def __call__(self) -> None:
        memory, write = self._decoder.memory, self._write
        selection = self._shared.get()
        if selection is None:
            return
        whole_warps(self._decoder, self._ins, self._running_lanes())
        lanes = memory.lanes.shape.numbers if selection.lanes is None else selection.lanes
        strides, by_row, bits = self._layout
        lane, stride = lanes & 31, strides[lanes].astype(np.int64)
        base = selection.addresses.astype(np.uint64)
        for piece, access, registers in self._moves:
            row, column = piece.row[lane], piece.column[lane]
            element = row * stride + column if by_row else column * stride + row
            address = base + (element * bits // 8).astype(np.uint64)
            moved = memory.select(selection.lanes, address)
            for region, part in memory.resolve(access, moved, write):
                index, shift = part.index(region, access.unit, access.offset)
                view = region.views[access.unit]
                numbers = slice(None) if part.lanes is None else part.lanes
                for i, targets in enumerate(registers):
                    if write:
                        view[shift + i :][index] = targets[0][numbers]
                    else:
                        for target in targets:
                            target[numbers] = view[shift + i :].take(index, None, None, "clip")
                memory.record(access, region, part, write)


def _registers_of(extents: _Extents, operand: str, kind: str) -> tuple[int, int]:
    """How many registers a fragment has, and how many of them hold different elements."""
    elements = {"a": extents.m * extents.k, "b": extents.k * extents.n}.get(operand, extents.m * extents.n)
    distinct = elements // (32 * ELEMENT_TYPES[kind].per_register)
    return (8 if kind == "f16" and operand in "ab" else distinct), distinct


def _fragment_move(decoder: BlockDecoder, ins: Instruction) -> _FragmentMove:
    store = ins.modifiers[0] == "store"
    operand, kind = ins.modifiers[1], ins.modifiers[-1]
    marks = [m for m in ins.modifiers[2:-1] if m not in ("sync", "aligned")]
    layout = next((m for m in marks if m in ("row", "col")), None)
    shape = next((m for m in marks if m[0] == "m" and m[1:2].isdigit()), "")
    if operand not in ("d" if store else "abc") or layout is None or "sync" not in ins.modifiers:
        raise UnsupportedFormError
    extents = _extents(shape, kind, operand)
    if kind in ("s4", "u4", "b1") and layout != ("row" if operand == "a" else "col"):
        raise UnsupportedFormError(f"a matrix {operand} of .{kind} by {layout}")
    address, fragment, *stride = ins.operands if store else (ins.operands[1], ins.operands[0], *ins.operands[2:])
    by_row = layout == "row"
    many, distinct = _registers_of(extents, operand, kind)
    rows = register_rows(decoder, fragment if isinstance(fragment, Vector) else Vector((fragment,)), kind, many)
    # Without a stride, the matrix lies in memory without gaps.
    height, width = {"a": (extents.m, extents.k), "b": (extents.k, extents.n)}.get(operand, (extents.m, extents.n))
    default = np.full(decoder.lanes.shape.lanes, width if by_row else height)
    shared, offset = decoder.selection(ins, address_of(address))
    p = ELEMENT_TYPES[kind].per_register
    bits = ELEMENT_TYPES[kind].bits
    moves: list[_Move] = []
    for piece in _pieces(extents, operand, kind, by_row):
        size = len(piece.slots) * bits // 8
        unit = 4 if len(piece.slots) == p > 1 else bits // 8  # a whole register, or an element
        registers = []
        for i in range(size // unit):
            first = piece.slots[i * len(piece.slots) // (size // unit)]
            registers.append([_part(decoder, rows[r], first % p, unit) for r in range(first // p, many, distinct)])
        access = Access(decoder.function, ins, space_of(ins), offset, size, unit)
        moves.append((piece, access, registers))
    strides = decoder.row(stride[0], "u32") if stride else default
    return _FragmentMove(decoder, ins, shared, (strides, by_row, bits), moves)


def _part(decoder: BlockDecoder, row: int, element: int, unit: int) -> Array:
    """Element `element`, of `unit` bytes, of each lane's register."""
    width = 64 if unit == 8 else 32
    view: Array = decoder.registers.files[width].view(f"u{unit}")[row, element :: width // (8 * unit)]
    return view


@steps("wmma")
def _wmma(decoder: BlockDecoder, ins: Instruction) -> Step | None:
    if ins.modifiers[0] in ("load", "store"):
        return _fragment_move(decoder, ins)
    return _multiply(decoder, ins)


def _multiply(decoder: BlockDecoder, ins: Instruction) -> Step | None:
    """`wmma.mma`: for each eight columns of B and C one product of `mma.sync`'s form."""
    marks = [m for m in ins.modifiers if m not in ("mma", "sync", "aligned", "rn", "rz", "rm", "rp")]
    operation = tuple(m for m in marks if m in ("xor", "and", "popc"))
    saturates = "satfinite" in marks
    marks = [m for m in marks if m not in (*operation, "satfinite")]
    shape, types = marks[2], marks[3:]
    if len(types) == 2:  # of f16 the types of A and B are not named
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or (types[1] == "b1") != bool(operation) or "sync" not in ins.modifiers:
        raise UnsupportedFormError
    d, a, b, c = types
    alike = a == b or {a, b} in ALIKE
    extents = _extents(shape, a, "a")
    if not alike or not {c, d} <= set(RESULTS[a]) or any(_extents(shape, kind, "c") != extents for kind in (c, d)):
        raise UnsupportedFormError(f"shape {shape} of .{a} and .{b}")
    rows = [
        register_rows(decoder, operand, kind, _registers_of(extents, letter, kind)[0])
        for operand, kind, letter in zip(ins.operands, types, "dabc", strict=True)
    ]
    tiles = extents.n // 8

    def tile(operand: int, letter: str, number: int) -> tuple[int, ...]:
        size = _registers_of(extents, letter, types[operand])[1] // tiles
        return rows[operand][number * size : (number + 1) * size]

    whole = rows[1][: _registers_of(extents, "a", a)[1]]
    products = [Fragments(whole, tile(2, "b", i), tile(3, "c", i), tile(0, "d", i)) for i in range(tiles)]
    kind = ProductKind(extents.m, extents.k, a, b, c, d, saturates, "xor" in operation)
    return add_products(decoder, ins, kind, products)
