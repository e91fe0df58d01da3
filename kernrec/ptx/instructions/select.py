"""Instructions that compare, select and move: `setp set selp slct mov`."""

from collections.abc import Callable
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
from kernrec.ptx.instructions.rounding import bf16_values, flush
from kernrec.ptx.ir.operand import Immediate, Negated, Operand, Pair, Register, Vector
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.types import WIDTHS, Array


@lru_cache(None)
def _complement(compare: Compute) -> Compute:
    """The negation of a comparison: of the opposite ordered one, it is true too where an operand is NaN."""

    def result(a: Array, b: Array, out: Array) -> None:
        compare(a, b, out)
        np.logical_not(out, out)

    return result


def _not_a_number(a: Array, b: Array, out: Array) -> None:
    np.not_equal(a, a, out)
    np.logical_or(out, b != b, out)


def _number(a: Array, b: Array, out: Array) -> None:
    np.equal(a, a, out)
    np.logical_and(out, b == b, out)


def _ordered_ne(a: Array, b: Array, out: Array) -> None:
    np.copyto(out, (a < b) | (a > b))


_COMPARE: dict[str, Compute] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": _complement(_ordered_ne),
    "neu": np.not_equal,
    "ltu": _complement(np.greater_equal),
    "leu": _complement(np.greater),
    "gtu": _complement(np.less_equal),
    "geu": _complement(np.less),
    "num": _number,
    "nan": _not_a_number,
}
_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


@lru_cache(None)
def _comparison(name: str, kind: str, ftz: bool) -> Compute:
    """The function of a comparison of values of type `kind`; on floats a plain `ne` is false for NaN."""
    base = _ordered_ne if "f" in kind and name == "ne" else _COMPARE[name]
    if "bf16" in kind:
        return lambda a, b, out: base(bf16_values(a), bf16_values(b), out)
    if not ftz:
        return base
    return lambda a, b, out: base(flush(a), flush(b), out)


@lru_cache(None)
def _half(compare: Compute, part: int) -> Compute:
    """The comparison of one half of packed pairs."""
    return lambda a, b, out: compare(a[..., part::2], b[..., part::2], out)


@lru_cache(None)
def _combined(compare: Compute, combine: str, invert: bool, complement: bool) -> Compute:
    join = _COMBINE[combine]

    def both(a: Array, b: Array, c: Array, out: Array) -> None:
        first = np.empty(c.shape, np.bool_)
        compare(a, b, first)
        if complement:
            first = ~first
        np.copyto(out, join(first, ~c if invert else c))

    return both


@elementwise("setp")
def _setp(ins: Instruction) -> Elementwise | list[Elementwise]:
    name, *middle, kind = ins.modifiers
    compare = _comparison(name, kind, "ftz" in middle)
    combine = next((m for m in middle if m in _COMBINE), None)
    target = ins.operands[0]
    targets = [target.first, target.second] if isinstance(target, Pair) else [target]
    made = []
    for second, destination in zip((False, True), targets, strict=False):
        if destination == Register("_"):
            continue
        # The second result is the complement; of a packed type, it is the result of the upper half.
        function, complement = (_half(compare, int(second)), False) if "x2" in kind else (compare, second)
        if combine is None:
            function = _complement(function) if complement else function
            made.append(Elementwise(function, destination, "pred", ins.operands[1:3], (kind, kind)))
        else:
            third = ins.operands[3]
            invert = isinstance(third, Negated)
            source = third.register if isinstance(third, Negated) else third
            function = _combined(function, combine, invert, complement)
            made.append(Elementwise(function, destination, "pred", (*ins.operands[1:3], source), (kind, kind, "pred")))
    return made


@lru_cache(None)
def _set_function(compare: Compute, result: str, kind: str) -> Compute:
    true = np.array(0x3F80 if "bf16" in result else 1)

    def run(a: Array, b: Array, out: Array) -> None:
        holds = np.empty(a.shape, np.bool_)
        compare(a, b, holds)
        if "f" in result:
            np.copyto(out, np.where(holds, true, 0), casting="unsafe")
        else:  # all ones: of each half where the sources are packed
            target = out.view(np.uint16) if "x2" in kind else out
            np.copyto(target, np.negative(holds.astype(target.dtype)))

    return run


@elementwise("set")
def _set(ins: Instruction) -> Elementwise:
    name, *middle, result, kind = ins.modifiers
    if any(m in _COMBINE for m in middle):
        raise UnsupportedFormError
    function = _set_function(_comparison(name, kind, "ftz" in middle), result, kind)
    return lanewise(ins, function, result, kind, kind)


def _select(a: Array, b: Array, c: Array, out: Array) -> None:
    np.copyto(out, np.where(c, a, b))


def _select_negated(a: Array, b: Array, c: Array, out: Array) -> None:
    np.copyto(out, np.where(c, b, a))


@elementwise("selp")
def _selp(ins: Instruction) -> Elementwise:
    kind = ins.modifiers[-1]
    chooser = ins.operands[3]
    function, chooser = (_select_negated, chooser.register) if isinstance(chooser, Negated) else (_select, chooser)
    bits = f"b{WIDTHS[kind]}" if not any(isinstance(o, Immediate) for o in ins.operands[1:3]) else kind
    return Elementwise(function, ins.operands[0], bits, (*ins.operands[1:3], chooser), (bits, bits, "pred"))


def _slct(a: Array, b: Array, c: Array, out: Array) -> None:
    np.copyto(out, np.where(c >= 0, a, b))


@elementwise("slct")
def _slct_(ins: Instruction) -> Elementwise:
    kind, chooser = ins.modifiers[-2:]
    return lanewise(ins, _slct, kind, kind, kind, chooser)


@lru_cache(None)
def _pack(dtype: str) -> Compute:
    def pack(*rows: Array) -> None:
        *parts, out = rows
        view = out.view(dtype)
        for i, part in enumerate(parts):
            view[..., i :: len(parts)] = part

    return pack


@lru_cache(None)
def _unpack(dtype: str, part: int, parts: int) -> Compute:
    return lambda a, out: np.copyto(out, a.view(dtype)[..., part::parts])


@elementwise("mov")
def _mov(ins: Instruction) -> Elementwise | list[Elementwise]:
    kind = ins.modifiers[-1]
    target, source = ins.operands
    if isinstance(source, Vector):
        width = WIDTHS[kind] // len(source.items)
        piece = f"b{width}"
        return Elementwise(_pack(f"u{width // 8}"), target, kind, source.items, (piece,) * len(source.items))
    if isinstance(target, Vector):
        parts: tuple[Operand, ...] = target.items
        width = WIDTHS[kind] // len(parts)
        return [
            Elementwise(_unpack(f"u{width // 8}", i, len(parts)), item, f"b{width}", (source,), (kind,))
            for i, item in enumerate(parts)
            if item != Register("_")
        ]
    bits = kind if isinstance(source, Immediate) or kind == "pred" else f"b{WIDTHS[kind]}"
    return lanewise(ins, copy_row, bits)
