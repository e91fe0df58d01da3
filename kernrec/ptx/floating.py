"""Floating-point instructions.

`add`, `sub`, `mul`, `div.rn`, `sqrt.rn`, `rcp.rn` round once, as IEEE 754 asks. So does `fma` of f32 and f16 (of normal
results): the exact product is added in float64, and where that sum was itself rounded onto a tie of f32, what it lost
decides. `fma` of f64 adds the rounding errors of product and sum back. The `approx` instructions return the float64
result rounded: closer to the true value than the hardware's tables, and within their documented error.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from kernrec.ptx.decode import Compute, Elementwise, UnknownVariantError, elementwise
from kernrec.ptx.integer import INTEGERS, integer_divide, integer_multiply, integer_plain, maximum, minimum
from kernrec.ptx.program import Instruction
from kernrec.ptx.state import Array

_MODES = ("rn", "rz", "rm", "rp")
_FLOATS = frozenset({"f16", "f16x2", "f32", "f32x2", "f64"})
_TINY = {
    np.dtype("f4"): np.float32(2.0**-126),
    np.dtype("f2"): np.float16(2.0**-14),
    np.dtype("f8"): np.float64(2.0**-1022),
}


def flush(a: Array) -> Array:
    """Subnormal numbers become zeros of their sign (`.ftz`)."""
    return np.where(np.abs(a) < _TINY[a.dtype], np.copysign(a.dtype.type(0), a), a)


_F32_TAIL = (1 << 29) - 1  # bits of a float64's mantissa that float32 does not have
_F32_TIE = 1 << 28


def _fma32(a: Array, b: Array, c: Array, out: Array) -> None:
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    tie = (total.view(np.int64) & _F32_TAIL) == _F32_TIE
    if tie.any():
        # The sum was rounded too: where that put it on a tie of f32, what it lost decides.
        lost = _two_sum(product, np.asarray(c, dtype=np.float64))[1]
        total = np.where(tie & (lost != 0), np.nextafter(total, np.copysign(np.inf, lost)), total)
    np.copyto(out, total, casting="same_kind")


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    def split(x: Array) -> tuple[Array, Array]:
        scaled = x * 134217729.0
        high = scaled - (scaled - x)
        return high, x - high

    product = a * b
    a1, a0 = split(a)
    b1, b0 = split(b)
    return product, ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0


def _fma64(a: Array, b: Array, c: Array, out: Array) -> None:
    product, below = _two_product(a, b)
    total, lost = _two_sum(product, c)
    better = total + (below + lost)
    np.copyto(out, np.where(np.isfinite(better), better, a * b + c))


def directed(exact: Array, lost: Array | float, mode: str, dtype: np.dtype[np.generic]) -> Array:
    """`exact + lost` (float64, |lost| below half a unit of `exact`) rounded to `dtype` towards 0, -inf or +inf."""
    near = exact.astype(dtype)
    back = near.astype(np.float64)
    above = (back > exact) | ((back == exact) & (np.asarray(lost) < 0))
    below = (back < exact) | ((back == exact) & (np.asarray(lost) > 0))
    down = mode == "rm", mode == "rp"
    if mode == "rz":
        positive = (exact > 0) | ((exact == 0) & (np.asarray(lost) > 0))
        lower, upper = above & positive, below & ~positive
    else:
        lower, upper = above & down[0], below & down[1]
    infinity = near.dtype.type(np.inf)
    near = np.where(lower, np.nextafter(near, -infinity), near)
    return np.where(upper, np.nextafter(near, infinity), near)


def _directed(opcode: str, mode: str) -> Compute:
    def run(*rows: Array) -> None:
        *sources, out = rows
        wide = [s.astype(np.float64) for s in sources]
        lost: Array | float = 0.0
        if opcode == "mul":
            exact = wide[0] * wide[1]
        elif opcode == "add":
            exact, lost = _two_sum(wide[0], wide[1])
        elif opcode == "sub":
            exact, lost = _two_sum(wide[0], -wide[1])
        elif opcode == "fma":
            exact, lost = _two_sum(wide[0] * wide[1], wide[2])
        elif opcode == "div":
            exact = wide[0] / wide[1]
            lost = (wide[0] - exact * wide[1]) * np.sign(wide[1])
        elif opcode == "rcp":
            exact = 1.0 / wide[0]
            product, below = _two_product(exact, wide[0])
            lost = ((1.0 - product) - below) * np.sign(wide[0])
        else:
            exact = np.sqrt(wide[0])
            product, below = _two_product(exact, exact)
            lost = (wide[0] - product) - below
        np.copyto(out, directed(exact, np.nan_to_num(lost), mode, out.dtype))

    return run


def _reciprocal(a: Array, out: Array) -> None:
    np.divide(a.dtype.type(1), a, out)


def _rsqrt(a: Array, out: Array) -> None:
    np.copyto(out, 1.0 / np.sqrt(a.astype(np.float64)), casting="same_kind")


@lru_cache(None)
def _through_double(function: Callable[[Array], Array]) -> Compute:
    return lambda a, out: np.copyto(out, function(a.astype(np.float64)), casting="same_kind")


_BASE: dict[str, Compute] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
    "rcp": _reciprocal,
    "rsqrt": _rsqrt,
    "sin": _through_double(np.sin),
    "cos": _through_double(np.cos),
    "ex2": _through_double(np.exp2),
    "lg2": _through_double(np.log2),
    "tanh": _through_double(np.tanh),
}


@lru_cache(None)
def _function(opcode: str, kind: str, mode: str, ftz: bool, sat: bool, nan: bool, relu: bool) -> Compute:
    if opcode == "fma":
        base: Compute = _fma64 if kind == "f64" else _fma32
    elif nan and opcode in ("min", "max"):
        base = minimum if opcode == "min" else maximum
    else:
        base = _BASE[opcode]
    if mode != "rn":
        if kind == "f64":
            raise UnknownVariantError(f"rounding .{mode} of f64")
        base = _directed(opcode, mode)
    if not (ftz or sat or relu):
        return base

    def run(*rows: Array) -> None:
        *sources, out = rows
        if ftz:
            sources = [flush(s) for s in sources]
        result = np.empty_like(out)
        base(*sources, result)
        if ftz:
            result = flush(result)
        if sat:
            result = np.clip(np.where(np.isnan(result), 0, result), 0, 1)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, 0))
        np.copyto(out, result)

    return run


_KNOWN = frozenset({"rn", "rz", "rm", "rp", "ftz", "sat", "NaN", "relu", "approx", "full"})


def _floating(ins: Instruction, count: int) -> Elementwise:
    *marks, kind = ins.modifiers
    if kind not in _FLOATS or not _KNOWN.issuperset(marks) or len(ins.operands) != count + 1:
        raise UnknownVariantError("")
    mode = next((m for m in marks if m in _MODES), "rn")
    function = _function(ins.opcode, kind, mode, "ftz" in marks, "sat" in marks, "NaN" in marks, "relu" in marks)
    return Elementwise(function, ins.operands[0], kind, ins.operands[1:], (kind,) * count)


@elementwise("div")
def _div(ins: Instruction) -> Elementwise:
    return integer_divide(ins) if ins.modifiers[-1] in INTEGERS else _floating(ins, 2)


@elementwise("add", "sub", "min", "max", "neg", "abs")
def _plain(ins: Instruction) -> Elementwise:
    if ins.modifiers[-1] in INTEGERS:
        return integer_plain(ins)
    return _floating(ins, len(ins.operands) - 1)


@elementwise("mul")
def _mul(ins: Instruction) -> Elementwise:
    return integer_multiply(ins) if ins.modifiers[-1] in INTEGERS else _floating(ins, 2)


@elementwise("mad")
def _mad(ins: Instruction) -> Elementwise:
    if ins.modifiers[-1] in INTEGERS:
        return integer_multiply(ins)
    return _floating(Instruction("fma", ins.modifiers, ins.operands, ins.predicate, ins.line, ins.text), 3)


@elementwise("fma")
def _fma(ins: Instruction) -> Elementwise:
    return _floating(ins, 3)


@elementwise("sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh")
def _special(ins: Instruction) -> Elementwise:
    return _floating(ins, 1)


def _copysign(a: Array, b: Array, out: Array) -> None:
    np.copysign(b, a, out)


@elementwise("copysign")
def _copysign_(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    return Elementwise(_copysign, ins.operands[0], kind, ins.operands[1:], (kind, kind))


_TESTS: dict[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= _TINY[a.dtype]),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < _TINY[a.dtype]),
}


@lru_cache(None)
def _test(name: str) -> Compute:
    function = _TESTS[name]
    return lambda a, out: np.copyto(out, function(a))


@elementwise("testp")
def _testp(ins: Instruction) -> Elementwise:
    name, kind = ins.modifiers
    return Elementwise(_test(name), ins.operands[0], "pred", ins.operands[1:], (kind,))
