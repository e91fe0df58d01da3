"""Merge memory accesses as the assembler does: adjacent shared-memory accesses, and atomic operations of a warp.

Two or four accesses become one (LDS.64, LDS.128, STS.128) if the address is provably a multiple of the merged width.
Accesses to global memory are not merged, because the alignment of pointers is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kernrec.ptx.analysis.def_use import DefUse, with_local_names
from kernrec.ptx.analysis.issue_cost import AGGREGATED
from kernrec.ptx.analysis.lowering import divergent_registers
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Register, Symbol, Vector, elements
from kernrec.ptx.ir.program import Function, Instruction, Module, has_calls
from kernrec.util.light_dataclass import dataclass

_WIDEST = 16
_BYTES = {f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (32, 64)}
_ALL_BITS = 64
_LowBits = tuple[int, int]
"""Number of known low bits of a register, and their value."""
_UNKNOWN: _LowBits = (0, 0)
_MEMORY = frozenset(
    {
        "ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix", "wmma", "wgmma", "tcgen05", "mbarrier", "fence",
        "membar", "bar", "call",
    }
)  # fmt: skip


def with_wide_accesses(module: Module, kernel: str) -> Module:
    """Return a copy of the module with merged accesses to shared memory in a kernel and its callees."""
    functions = {
        name: function if function.entry and name != kernel else _joined(function, module)
        for name, function in module.functions.items()
    }
    return replace(module, functions=functions)


@dataclass(frozen=True)
class _Access:
    position: int
    """Index of the instruction in the function."""
    offset: int
    """Offset from the address register in bytes."""
    unit: int
    items: tuple[Operand, ...]
    """Destination registers of a load, or the values that a store writes."""

    @property
    def bytes(self) -> int:
        return self.unit * len(self.items)


def _joined(function: Function, module: Module) -> Function:
    if not any("shared" in ins.modifiers for ins in function.instructions):
        return function
    def_use = DefUse.of(function)
    bits_of = _KnownBits(function, module, def_use)
    wide: dict[int, Instruction] = {}
    gone: set[int] = set()
    merged: list[tuple[int, ...]] = []
    for base, accesses, is_load in _runs(function):
        for members in _chunks(accesses, bits_of.of(base)) if len(accesses) > 1 else ():
            place = (min if is_load else max)(access.position for access in members)
            if not all(_can_move(def_use, access, place, is_load) for access in members):
                continue
            wide[place] = _wide(function.instructions[place], base, members)
            merged.append((place, *(access.position for access in members)))
            gone |= {*merged[-1]} - {place}
    if not wide:
        return function
    instructions: list[Instruction] = []
    moved: list[int] = []
    for position, ins in enumerate(function.instructions):
        moved.append(len(instructions))
        if position not in gone:
            instructions.append(wide.get(position, ins))
    moved.append(len(instructions))
    labels = {label: moved[position] for label, position in function.labels.items()}
    joined = replace(function, instructions=instructions, labels=labels)
    vars(joined)["form_memo"] = function.form_memo.setdefault((_wide, *merged), {})
    return joined


def _runs(function: Function) -> Iterator[tuple[str, list[_Access], bool]]:
    """Yield (address register, accesses, whether the accesses are loads) for each group that may be merged."""
    position = -1
    for block in function.blocks:
        # Accesses that may be merged, keyed by address register.
        loads: dict[str, list[_Access]] = {}
        stores: dict[str, list[_Access]] = {}
        for ins in block.instructions:
            position += 1
            if _may_touch_shared(ins):
                base, access = _access(position, ins)
                is_load = ins.opcode == "ld"
                again = access is not None and any(access.offset == other.offset for other in stores.get(base, ()))
                for name in [name for name in stores if access is None or is_load or again or name != base]:
                    yield name, stores.pop(name), False
                if not is_load:
                    yield from ((name, run, True) for name, run in loads.items())
                    loads.clear()
                if access is not None:
                    (loads if is_load else stores).setdefault(base, []).append(access)
            for name in ins.results if loads or stores else ():
                for runs in (loads, stores):
                    if name in runs:
                        yield name, runs.pop(name), runs is loads
        yield from ((name, run, True) for name, run in loads.items())
        yield from ((name, run, False) for name, run in stores.items())


def _access(position: int, ins: Instruction) -> tuple[str, _Access | None]:
    """Return the address register of an access to shared memory, and the access if it can be merged."""
    if ins.opcode not in ("ld", "st") or "shared" not in ins.modifiers or ins.predicate is not None:
        return "", None
    unit = _BYTES.get(ins.modifiers[-1])
    if unit is None or not set(ins.modifiers[:-1]) <= {"shared", "v2"}:
        return "", None
    address, value = ins.operands[::-1] if ins.opcode == "ld" else ins.operands
    if not isinstance(address, Address) or not isinstance(address.base, Register):
        return "", None
    return address.base.name, _Access(position, address.offset, unit, elements(value))


def _may_touch_shared(ins: Instruction) -> bool:
    if ins.opcode not in _MEMORY:
        return False
    return not {"global", "local", "param", "const"} & {*ins.modifiers} or "shared" in ins.modifiers


def _chunks(accesses: list[_Access], base: _LowBits) -> Iterator[list[_Access]]:
    """Yield groups of accesses that together cover 16 or 8 aligned bytes."""
    by_offset = {access.offset: access for access in accesses}
    taken: set[int] = set()
    for width in (_WIDEST, _WIDEST // 2):
        if 1 << base[0] < width:
            continue
        for start in sorted(offset for offset in by_offset if (base[1] + offset) % width == 0):
            members: list[_Access] = []
            end = start
            while end < start + width and end in by_offset and end not in taken:
                members.append(by_offset[end])
                end += members[-1].bytes
            if end == start + width and len(members) > 1 and len({access.unit for access in members}) == 1:
                taken |= {access.offset for access in members}
                yield members


def _can_move(def_use: DefUse, access: _Access, place: int, is_load: bool) -> bool:
    first, last = min(access.position, place), max(access.position, place)
    names = [name for item in access.items for name in item.registers]
    users = [p for name in names for p in def_use.writers.get(name, ())]
    if is_load:
        users += [p for name in names for p in def_use.readers.get(name, ())]
    return not any(first <= p <= last and p != access.position for p in users)


def _wide(ins: Instruction, base: str, members: list[_Access]) -> Instruction:
    items = tuple(item for access in members for item in access.items)
    address, value = Address(Register(base), members[0].offset), Vector(items)
    kind = f"b{8 * members[0].unit}"
    operands = (value, address) if ins.opcode == "ld" else (address, value)
    return replace(ins, modifiers=("shared", f"v{len(items)}", kind), operands=operands)


class _KnownBits:
    """Low bits of each register that are constant, because every write to the register sets them to the same values."""

    def __init__(self, function: Function, module: Module, def_use: DefUse) -> None:
        variables = [*module.variables.values(), *function.variables.values()]
        self._aligned = {v.name: v.placed_align.bit_length() - 1 for v in variables if v.space == "shared"}
        self._instructions, self._def_use = function.instructions, def_use
        self._known: dict[str, _LowBits | None] = {}

    def of(self, register: str) -> _LowBits:
        # Repeat until nothing changes, because registers in loops depend on each other.
        bits_of = self._known
        needed = [] if register in bits_of else [register]
        bits_of |= dict.fromkeys(needed)
        for name in needed:  # The loop body appends further names to `needed`.
            for place in self._def_use.writers.get(name, ()):
                new = [source for source in self._instructions[place].sources if source not in bits_of]
                needed += new
                bits_of |= dict.fromkeys(new)
        changed = True
        while changed:
            changed = False
            for name in reversed(needed):
                places = self._def_use.writers.get(name, ())
                bits = _agreed([self._result(self._instructions[p], bits_of) for p in places]) if places else _UNKNOWN
                if bits != bits_of[name]:
                    bits_of[name], changed = bits, True
        return bits_of[register] or _UNKNOWN

    def _result(self, ins: Instruction, bits_of: Mapping[str, _LowBits | None]) -> _LowBits | None:
        operands = [self._operand(operand, bits_of) for operand in ins.operands[1:]]
        if any(value is None for value in operands):
            return None
        values = [value for value in operands if value is not None]
        opcode = ins.opcode
        if opcode in ("mov", "cvta") or (opcode == "cvt" and ins.modifiers[-1][:1] in "bus"):
            return values[0]
        if opcode in ("min", "max"):
            return _agreed(values)
        if opcode == "selp":
            return _agreed(values[:2])
        if opcode in ("add", "sub"):
            return _sum(values[0], values[1], 1 if opcode == "add" else -1)
        if opcode in ("mul", "mad") and ins.modifiers[:1] in (("lo",), ("wide",)):
            product = _product(values[0], values[1])
            return _sum(product, values[2], 1) if opcode == "mad" else product
        if opcode == "shl" and values[1][0] == _ALL_BITS:
            return _product(values[0], (_ALL_BITS, 1 << min(values[1][1], _ALL_BITS)))
        if opcode in ("or", "xor"):
            (_, x), (_, y) = values
            return _low(min(values[0][0], values[1][0]), x | y if opcode == "or" else x ^ y)
        if opcode == "and":
            both = _low(min(values[0][0], values[1][0]), values[0][1] & values[1][1])
            return max([both, *[(min(count, _zeros(value)), 0) for count, value in values]])
        return _UNKNOWN

    def _operand(self, operand: Operand, bits_of: Mapping[str, _LowBits | None]) -> _LowBits | None:
        if isinstance(operand, Register):
            return bits_of.get(operand.name, _UNKNOWN)
        if isinstance(operand, Symbol):
            return _sum((self._aligned.get(operand.name, 0), 0), (_ALL_BITS, operand.offset), 1)
        return (_ALL_BITS, int(operand.value)) if isinstance(operand, Immediate) and operand.kind == "int" else _UNKNOWN


def _agreed(all_bits: Sequence[_LowBits | None]) -> _LowBits | None:
    common: _LowBits | None = None
    for bits in all_bits:
        if common is None or bits is None:
            common = common or bits
            continue
        count = min(common[0], bits[0], _zeros(common[1] - bits[1]))
        common = _low(count, common[1])
    return common


def _sum(first: _LowBits, second: _LowBits, sign: int) -> _LowBits:
    return _low(min(first[0], second[0]), first[1] + sign * second[1])


def _product(first: _LowBits, second: _LowBits) -> _LowBits:
    (a, x), (b, y) = first, second  # The factors are x + 2**a * u and y + 2**b * v. Only u and v are unknown.
    return _low(min(a + min(_zeros(y), b), b + min(_zeros(x), a)), x * y)


def _low(count: int, value: int) -> _LowBits:
    count = min(count, _ALL_BITS)
    return count, value & (1 << count) - 1


def _zeros(value: int) -> int:
    return (value & -value).bit_length() - 1 if value else _ALL_BITS


_COMBINED = frozenset({"min", "max", "and", "or", "xor"})
_SHORT, _LONG = ("u32", "s32", "b32"), ("u64", "s64")


def with_warp_aggregation(function: Function) -> Function:
    """Return a copy that marks the atomic operations that the assembler combines within a warp as `AGGREGATED`."""
    marked = set(_combined(function))
    if not marked:
        return function
    instructions = [
        replace(ins, modifiers=(*ins.modifiers[:-1], AGGREGATED, ins.modifiers[-1])) if position in marked else ins
        for position, ins in enumerate(function.instructions)
    ]
    return replace(function, instructions=instructions)


def _combined(function: Function) -> Iterator[int]:
    if not any(ins.opcode in ("atom", "red") for ins in function.instructions):
        return
    if has_calls(function):
        return  # A callee may write any register.
    function = with_local_names(function)
    def_use = DefUse.of(function)
    divergent = divergent_registers(function, def_use)
    for position, ins in enumerate(function.instructions):
        if ins.opcode not in ("atom", "red"):
            continue
        address = next(operand for operand in ins.operands if isinstance(operand, Address))
        if isinstance(address.base, Register) and address.base.name in divergent:
            continue
        value = ins.operands[-1]
        uniform = not (isinstance(value, Register) and value.name in divergent)
        is_read = any(def_use.readers.get(name) for name in ins.results)
        if _combines(ins, uniform, is_read):
            yield position


def _combines(ins: Instruction, uniform: bool, is_read: bool) -> bool:
    """Return whether the assembler combines the atomic operations of a warp on one address.

    Args:
        uniform: whether all threads of the warp pass the same operand.
        is_read: whether an instruction reads the old value that the operation returns.
    """
    kind = ins.modifiers[-1]
    if "add" in ins.modifiers:
        return kind in _SHORT or (kind in _LONG and uniform)
    return kind in _SHORT and not is_read and not _COMBINED.isdisjoint(ins.modifiers)
