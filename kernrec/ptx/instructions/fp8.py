"""Conversions to and from 8-bit floating-point numbers (`kernrec.util.float8`).

Two of them lie in 16 bits, the second operand of a conversion from f32 in the lower byte (PTX ISA, section 9.7.9.21,
`cvt`). Conversions to them round to nearest, ties to even, and saturate at the largest finite number.
"""

from functools import lru_cache

import numpy as np

from kernrec.ptx.instructions.registry import Compute, Elementwise, UnsupportedFormError
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import Array
from kernrec.util.float8 import fp8_codes, fp8_values


def conversion(ins: Instruction) -> Elementwise:
    """`cvt` with a pair of 8-bit numbers on one side.

    Raises:
        UnsupportedFormError: no such form.
    """
    *marks, to, source = ins.modifiers
    if to in ("e4m3x2", "e5m2x2") and "satfinite" in marks and {*marks} <= {"rn", "satfinite", "relu"}:
        if source == "f32" and len(ins.operands) == 3:
            return Elementwise(
                _from_f32(to[:-2], "relu" in marks), ins.operands[0], "b16", ins.operands[1:], ("f32",) * 2
            )
        if source == "f16x2" and len(ins.operands) == 2:
            return Elementwise(
                _from_f16x2(to[:-2], "relu" in marks), ins.operands[0], "b16", ins.operands[1:], ("b32",)
            )
    if to == "f16x2" and source in ("e4m3x2", "e5m2x2") and {*marks} <= {"rn", "relu"} and len(ins.operands) == 2:
        return Elementwise(_to_f16x2(source[:-2], "relu" in marks), ins.operands[0], "b32", ins.operands[1:], ("b16",))
    raise UnsupportedFormError


@lru_cache(None)
def _from_f32(kind: str, relu: bool) -> Compute:
    def convert(high: Array, low: Array, out: Array) -> None:
        codes = [fp8_codes(kind, np.maximum(value, 0) if relu else value) for value in (high, low)]
        np.copyto(out, (codes[0].astype(np.uint16) << 8) | codes[1])

    return convert


@lru_cache(None)
def _from_f16x2(kind: str, relu: bool) -> Compute:
    def convert(pair: Array, out: Array) -> None:
        halves = [(pair >> shift).astype(np.uint16).view(np.float16).astype(np.float32) for shift in (16, 0)]
        _from_f32(kind, relu)(*halves, out)

    return convert


@lru_cache(None)
def _to_f16x2(kind: str, relu: bool) -> Compute:
    def convert(pair: Array, out: Array) -> None:
        values = [fp8_values(kind, ((pair >> shift) & 255).astype(np.uint8)) for shift in (8, 0)]
        halves = [
            (np.maximum(v, 0) if relu else v).astype(np.float16).view(np.uint16).astype(np.uint32) for v in values
        ]
        np.copyto(out, (halves[0] << 16) | halves[1])

    return convert
