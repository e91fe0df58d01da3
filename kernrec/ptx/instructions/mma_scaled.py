"""`mma.sync` of numbers with 4 to 8 bits on GeForce Blackwell: `.kind::f8f6f4`, and block scaling.

PTX ISA, section `mma` ("Block scaling"). Fragments are those of `mma.sync` (`kernrec.ptx.instructions.matrix`): of
m16n8k32 four numbers to a register, each in a byte of its own (e2m1 in bits 2 to 5 of it, e2m3 and e3m2 in bits 0 to
5), of m16n8k64 eight e2m1 to a register. With block scaling, as many numbers along K as the kind says share a factor
of A and one of B. Of each four threads, two hold the factors of A (rows g and g + 8) and one those of B (column g):
the instruction says which, and from which byte of their register on.
"""

from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.fragments import (
    ELEMENT_TYPES,
    NARROW_BITS,
    Rows,
    Warps,
    a_matrices,
    b_matrices,
    c_matrices,
    narrow_values,
    nibbles,
    register_rows,
    register_values,
    scale_values,
    write_d,
)
from kernrec.ptx.instructions.registry import UnsupportedFormError
from kernrec.ptx.instructions.warp import whole_warps
from kernrec.ptx.ir.operand import Operand, Vector
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import Array
from kernrec.util.float8 import fp8_values

_FLOATS = ("e4m3", "e5m2", *NARROW_BITS)
_DEPTHS = {"f8f6f4": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_FACTORS = {"1X": 1, "2X": 2, "4X": 4}  # along K
_USUAL = {"mxf8f6f4": "1X", "mxf4": "2X"}


class _Kind(NamedTuple):
    """The kind, types and scale factors that the name of the instruction states."""

    kind: str
    a: str
    b: str
    c: str
    d: str
    factors: int
    scale: str


class _Scale(NamedTuple):
    """Where factors are: the register, and in it the first byte and which threads of four."""

    register: Array
    byte: Array
    thread: Array


def _kind(ins: Instruction) -> _Kind:
    sync, aligned, shape, row, column, word, kind, *marks = ins.modifiers
    as_usual = (sync, aligned, row, column, word) == ("sync", "aligned", "row", "col", "kind")
    if not as_usual or kind not in _DEPTHS or shape != f"m16n8k{_DEPTHS[kind]}":
        raise UnsupportedFormError
    factors, scale = 0, ""
    if kind != "f8f6f4":
        if marks[0] != "block_scale":
            raise UnsupportedFormError("no block scaling")
        stated = marks[2] if marks[1] == "scale_vec" else _USUAL.get(kind, "")
        factors, scale = _FACTORS.get(stated, 0), marks[-1]
        marks = marks[3 if marks[1] == "scale_vec" else 1 : -1]
        if not factors or scale not in ("ue8m0", "ue4m3"):
            raise UnsupportedFormError("scale factors")
    d, a, b, c = marks
    if a not in _FLOATS or b not in _FLOATS or not {c, d} <= {"f16", "f32"} or (kind != "f8f6f4" and d != "f32"):
        raise UnsupportedFormError
    return _Kind(kind, a, b, c, d, factors, scale)


class ScaledProduct:
    """The step of `mma.sync` with a `.kind`."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction) -> None:
        self.kind = kind = _kind(ins)
        self.decoder = decoder
        self.ins = ins
        self.running_lanes = decoder.running_lanes(ins)
        d, a, b, c, *scales = ins.operands
        size = {"f16": 2, "f32": 4}
        self.rows: dict[str, Rows] = {
            "a": register_rows(decoder, a, "u8", 4),
            "b": register_rows(decoder, b, "u8", 2),
            "c": register_rows(decoder, c, kind.c, size[kind.c]),
            "d": register_rows(decoder, d, kind.d, size[kind.d]),
        }
        if len(scales) != (4 if kind.factors else 0):
            raise UnsupportedFormError(f"{len(scales)} operands of scale factors")
        self.scales = [self._scale(*scales[i : i + 2]) for i in range(0, len(scales), 2)]

    def _scale(self, register: Operand, place: Operand) -> _Scale:
        if not isinstance(place, Vector) or len(place.items) != 2:
            raise UnsupportedFormError("byte and thread of the scale factors")
        byte, thread = (self.decoder.row(item, "u16") for item in place.items)
        return _Scale(self.decoder.row(register, "u32"), byte, thread)

    def __call__(self) -> None:
        numbers, kind = self.running_lanes(), self.kind
        if numbers is not None and not len(numbers):
            return
        warps = whole_warps(self.decoder, self.ins, numbers)
        file = self.decoder.registers.files[32]
        a = a_matrices(self._values("a", kind.a, warps), 16)[:, 0]
        b = b_matrices(self._values("b", kind.b, warps))[:, 0]
        if kind.factors:
            a = a * self._factors(self.scales[0], warps, 2)
            b = b * self._factors(self.scales[1], warps, 1)
        product = np.matmul(a, b.swapaxes(1, 2))[None]
        product += c_matrices(register_values(file, [self.rows["c"]], kind.c, warps))
        write_d(file, [self.rows["d"]], warps, product, kind.d)
        counts = self.decoder.memory.counters.counts
        if counts is not None:
            share = 0.25 if _DEPTHS[kind.kind] == 64 else ELEMENT_TYPES["e4m3"].share
            counts.bump("mma.f16", int(2 * 16 * 8 * _DEPTHS[kind.kind] * product.shape[1] * share))

    def _values(self, name: str, kind: str, warps: Warps) -> Array:
        """Numbers in the registers of A or B: (1, registers, warps, g, t, elements)."""
        data = register_values(self.decoder.registers.files[32], [self.rows[name]], "u8", warps)
        if kind not in NARROW_BITS:
            return fp8_values(kind, data)
        if _DEPTHS[self.kind.kind] == 64:
            return narrow_values(kind, nibbles(data))
        return narrow_values(kind, data >> 2 if kind == "e2m1" else data)

    def _factors(self, scale: _Scale, warps: Warps, threads: int) -> Array:
        """The factor of each number: (warps, rows of A or columns of B, K); `threads` of four hold them."""
        lane = np.arange(32).reshape(8, 4)
        register, byte, thread = (part.reshape(-1, 32)[warps] for part in scale)
        # Which thread of four, and which byte, is the same in the whole warp.
        first = thread[:, 0].astype(np.int64) * threads
        holders = lane[:, 0] + first[:, None] + np.arange(threads)[:, None, None]  # (threads, warps, 8)
        holders = holders.transpose(1, 0, 2).reshape(len(register), -1)
        words = np.ascontiguousarray(np.take_along_axis(register, holders, 1))
        codes = words.view(np.uint8).reshape(*words.shape, 4)
        which = byte[:, :1].astype(np.int64)[:, :, None] + np.arange(self.kind.factors)
        values = scale_values(
            self.kind.scale, np.take_along_axis(codes, np.broadcast_to(which, (*words.shape, self.kind.factors)), 2)
        )
        return np.repeat(values, _DEPTHS[self.kind.kind] // self.kind.factors, axis=2)
