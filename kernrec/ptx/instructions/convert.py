"""`cvt`: conversions between all integer and floating types (bfloat16 and tf32 too), with rounding and saturation.

Float to integer clamps to the range of the integer and takes NaN to 0, as the PTX ISA manual says (section 9.7.9.21).
Two numbers of 8 bits (`kernrec.util.float8`) lie in 16, the second operand of a conversion from f32 in the lower byte;
conversions to them round to nearest, ties to even, and saturate at the largest finite number.
"""

from functools import lru_cache

import numpy as np

from kernrec.ptx.instructions.registry import (
    Compute,
    Elementwise,
    UnsupportedFormError,
    copy_row,
    elementwise,
    lanewise,
)
from kernrec.ptx.instructions.rounding import bf16_values, directed, exact_to_bf16, flush, tf32_bits
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array
from kernrec.util.float8 import fp8_codes, fp8_values

_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_FLOATS = frozenset({"f16", "bf16", "tf32", "f32", "f64"})
_DIRECTED = ("rz", "rm", "rp")
_EIGHT_BITS = ("e4m3x2", "e5m2x2")


def _clamped(value: Array, dtype: np.dtype[np.generic], info: np.iinfo) -> Array:
    """Whole float64 numbers as integers, clamped; NaN is 0. `info`: of the type of the integers."""
    if value.min() > float(info.min) and value.max() < float(info.max):  # neither holds where there is a NaN
        return value.astype(dtype)
    value = np.where(np.isnan(value), 0.0, value)
    high = value >= float(info.max)
    low = value <= float(info.min)
    plain = np.where(high | low, 0.0, value).astype(dtype)
    return np.where(high, info.max, np.where(low, info.min, plain)).astype(dtype)


def _exactly(value: Array) -> tuple[Array, Array | float]:
    """A value as float64, and the remainder that does not fit."""
    exact = value.astype(np.float64)
    if value.dtype.kind in "iu" and value.dtype.itemsize == 8:
        return exact, (value.astype(np.longdouble) - exact).astype(np.float64)
    return exact, 0.0


@lru_cache(None)
def _conversion(to: str, source: str, marks: tuple[str, ...]) -> Compute:
    ftz, sat = "ftz" in marks, "sat" in marks
    rounding = next((m for m in marks if m[0] == "r" and m != "relu"), "")
    relu = "relu" in marks
    target, start = DTYPES[to], DTYPES[source]

    def read(a: Array) -> Array:
        if source == "bf16":
            return bf16_values(a)
        return flush(a) if ftz and source == "f32" else a

    if source in _FLOATS and to not in _FLOATS:
        whole, range_ = _TO_INTEGER[rounding], np.iinfo(target.name)

        def to_integer(a: Array, out: Array) -> None:
            np.copyto(out, _clamped(whole(read(a).astype(np.float64)), target, range_))

        return to_integer
    if source not in _FLOATS and to not in _FLOATS:
        if not sat:
            return lambda a, out: np.copyto(out, a.astype(target), casting="unsafe")
        info = np.iinfo(target.name)

        def saturate(a: Array, out: Array) -> None:
            low, high = max(info.min, np.iinfo(start.name).min), min(info.max, np.iinfo(start.name).max)
            np.copyto(out, np.clip(a, start.type(low), start.type(high)).astype(target))

        return saturate

    def to_float(a: Array, out: Array) -> None:
        value = read(a)
        if rounding in _TO_INTEGER:
            value = _TO_INTEGER[rounding](value)
        if sat:
            value = np.clip(np.where(np.isnan(value), 0, value), 0, 1)
        if relu:
            value = np.where(value < 0, 0, value).astype(value.dtype)
        if to == "tf32":
            np.copyto(out, tf32_bits(value, rounding))
            return
        if to == "bf16":
            result = exact_to_bf16(*_exactly(value), rounding if rounding in _DIRECTED else "rn")
        elif rounding in _DIRECTED:
            result = directed(*_exactly(value), rounding, target)
        else:
            result = value.astype(target)
        np.copyto(out, flush(result) if ftz and to == "f32" else result)

    return to_float


@lru_cache(None)
def _pair(to: str, marks: tuple[str, ...]) -> Compute:
    """`cvt.f16x2.f32 d, a, b`: a goes to the upper half."""
    convert = _conversion(to, "f32", marks)

    def both(a: Array, b: Array, out: Array) -> None:
        halves = out.view(DTYPES[to])
        for i, source in enumerate((b, a)):
            half = np.empty(source.shape, DTYPES[to])
            convert(source, half)
            halves[..., i::2] = half

    return both


_MARKS = frozenset({"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna", "ftz", "sat", "relu"})


@elementwise("cvt")
def _cvt(ins: Instruction) -> Elementwise:
    *modifiers, to, source = ins.modifiers
    marks = tuple(modifiers)
    if to in _EIGHT_BITS or source in _EIGHT_BITS:
        return _eight_bits(ins, to, source, marks)
    if not _MARKS.issuperset(marks) or to not in DTYPES or source not in DTYPES:
        raise UnsupportedFormError
    if to in ("f16x2", "bf16x2"):
        if source != "f32" or len(ins.operands) != 3:
            raise UnsupportedFormError
        return lanewise(ins, _pair(to[:-2], marks), "b32", "f32", "f32")
    if "x2" in source or source == "tf32" or len(ins.operands) != 2 or (to == "tf32" and source != "f32"):
        raise UnsupportedFormError
    if to not in _FLOATS and source not in _FLOATS and WIDTHS[to] == WIDTHS[source] and "sat" not in marks:
        return lanewise(ins, copy_row, to)
    return lanewise(ins, _conversion(to, source, marks), to, source)


def _eight_bits(ins: Instruction, to: str, source: str, marks: tuple[str, ...]) -> Elementwise:
    """A conversion with a pair of 8-bit numbers on one side."""
    relu, sources, form = "relu" in marks, len(ins.operands) - 1, {*marks} - {"rn", "relu"}
    if to in _EIGHT_BITS and form == {"satfinite"} and (source, sources) in (("f32", 2), ("f16x2", 1)):
        kind = to[:-2]
        if source == "f32":
            return lanewise(ins, _from_f32(kind, relu), "b16", "f32", "f32")
        return lanewise(ins, _from_f16x2(kind, relu), "b16", "b32")
    if to == "f16x2" and source in _EIGHT_BITS and not form and sources == 1:
        return lanewise(ins, _to_f16x2(source[:-2], relu), "b32", "b16")
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
