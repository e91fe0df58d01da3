"""Find buffers that contain indices into other buffers, as `index` does in `x[index[i] * c + j]`.

Row offsets of a sparse matrix are recognized because the code compares them with each other. The analysis ignores
branches, so it may report an index that no execution uses.
"""

from collections.abc import Mapping

from kernrec.ptx.analysis.dependence import COMPUTES, loads_global
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Symbol, elements
from kernrec.ptx.ir.program import Function, Instruction
from kernrec.util.light_dataclass import dataclass

_PASSES = 4
_ADDED = frozenset({"add", "sub", "or", "selp", "min", "max", "mov", "cvt", "cvta"})
_PRODUCTS = frozenset({"mul", "mul24", "mad", "mad24", "fma"})
_POINTER_BYTES = 8

Step = tuple[int, tuple[str, ...]]
"""Bytes between the elements that two consecutive indices select: a number, and kernel parameters that multiply it."""


@dataclass(frozen=True)
class Index:
    """Buffer whose values are indices into other buffers."""

    targets: Mapping[str, Step]
    """Distance in bytes between the elements that two consecutive indices select, keyed by the indexed buffer."""
    ascending: bool
    """Whether the values are ascending offsets of ranges, such as the row offsets of a sparse matrix."""


@dataclass(frozen=True)
class _Value:
    pointers: frozenset[str] = frozenset()
    loaded: frozenset[tuple[str, Step | None]] = frozenset()
    """Pair (buffer, factor) for each buffer on which the value depends. A nonlinear dependence has the factor None."""
    factor: Step | None = None
    """Numbers and parameters whose product is the value, or None for any other value."""


_NOTHING = _Value()


def indexes_of(function: Function) -> dict[str, Index]:
    """Return the kernel parameters that point to buffers of indices."""
    values: dict[str, _Value] = {}
    for _ in range(_PASSES):
        before = dict(values)
        for ins in function.instructions:
            _follow(ins, function, values)
        if values == before:
            break
    steps: dict[str, dict[str, set[Step]]] = {}
    compared: set[str] = set()
    for ins in function.instructions:
        if ins.opcode == "setp":
            first, second = ({name for name, _ in _value(o, values).loaded} for o in ins.operands[1:3])
            compared |= first & second
        for operand in ins.operands:
            if not isinstance(operand, Address) or not isinstance(operand.base, Register) or "shared" in ins.modifiers:
                continue
            address = _value(operand.base, values)
            if len(address.pointers) != 1:
                continue
            (target,) = address.pointers
            for name, step in address.loaded:
                if step is not None and step[0] > 0 and name != target:
                    steps.setdefault(name, {}).setdefault(target, set()).add(step)
    indexes = {}
    order = [parameter.name for parameter in function.parameters]
    for name in order:
        of_name = steps.get(name, {})
        if targets := {target: min(of_name[target]) for target in order if len(of_name.get(target, ())) == 1}:
            indexes[name] = Index(targets, name in compared)
    return indexes


def _value(operand: Operand, values: Mapping[str, _Value]) -> _Value:
    if isinstance(operand, Immediate) and isinstance(operand.value, int):
        return _Value(factor=(operand.value, ()))
    return values.get(operand.name, _NOTHING) if isinstance(operand, Register) else _NOTHING


def _follow(ins: Instruction, function: Function, values: dict[str, _Value]) -> None:
    if not ins.results:
        return
    result = _result(ins, function, values)
    for element in elements(ins.operands[0]):
        for name in element.registers:
            old = values.get(name)
            if old is None or old == result:
                values[name] = result
            else:
                values[name] = _Value(old.pointers | result.pointers, old.loaded | result.loaded)


def _result(ins: Instruction, function: Function, values: Mapping[str, _Value]) -> _Value:
    place = next((o for o in ins.operands if isinstance(o, Address)), None)
    if ins.opcode == "ld" and "param" in ins.modifiers and place is not None and isinstance(place.base, Symbol):
        name = place.base.name
        size = next((p.size for p in function.parameters if p.name == name), 0)
        return _Value(frozenset([name] if size == _POINTER_BYTES else ()), factor=(1, (name,)))
    if ins.opcode in ("ld", "ldu") and loads_global(ins) and place is not None and isinstance(place.base, Register):
        pointers = _value(place.base, values).pointers
        return _Value(loaded=frozenset((name, (1, ())) for name in pointers if len(pointers) == 1))
    parts = [_value(operand, values) for operand in ins.operands[1:]]
    if ins.opcode in _PRODUCTS and len(parts) >= 2:
        product, *added = _times(parts[0], parts[1]), *parts[2:]
        return _sum([product, *added]) if added else product
    if ins.opcode == "shl" and len(parts) == 2 and (shift := parts[1].factor) is not None and not shift[1]:
        return _times(parts[0], _Value(factor=(1 << min(shift[0], 63), ())))
    if ins.opcode in _ADDED:
        return _sum(parts)
    if ins.opcode in COMPUTES:
        return _Value(loaded=frozenset((name, None) for part in parts for name, _ in part.loaded))
    return _NOTHING


def _sum(parts: list[_Value]) -> _Value:
    pointers = frozenset(name for part in parts for name in part.pointers)
    loaded = frozenset(item for part in parts for item in part.loaded)
    return _Value(pointers, loaded, parts[0].factor if len(parts) == 1 else None)


def _times(first: _Value, second: _Value) -> _Value:
    def scaled(value: _Value, by: Step | None) -> frozenset[tuple[str, Step | None]]:
        return frozenset((name, _product(step, by)) for name, step in value.loaded)

    return _Value(
        loaded=scaled(first, second.factor) | scaled(second, first.factor),
        factor=_product(first.factor, second.factor),
    )


def _product(first: Step | None, second: Step | None) -> Step | None:
    if first is None or second is None:
        return None
    return first[0] * second[0], tuple(sorted((*first[1], *second[1])))
