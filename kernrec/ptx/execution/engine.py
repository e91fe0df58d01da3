"""Encode a kernel as the flat arrays that the compiled engine (`engine/`) reads, and define its reports."""

from typing import Any, NamedTuple

import numpy as np

from kernrec.ptx.analysis.dependence import spins
from kernrec.ptx.analysis.liveness import live_before
from kernrec.ptx.ir.operand import (
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Texel,
    Vector,
    parts_of,
)
from kernrec.ptx.ir.program import Function, Instruction, cached_analysis, ends_block, is_warp_synchronous
from kernrec.ptx.ir.special_registers import is_special, special_width
from kernrec.ptx.state.results import register_width
from kernrec.util.engine import module

# Kinds of operands, in the order of `OperandKind` in engine/program.h.
_NONE, _REGISTER, _INTEGER, _F32, _F64, _DECIMAL, _SYMBOL, _SPECIAL, _ADDRESS, _VECTOR, _PAIR, _NEGATED = range(12)
_LABEL, _TEXEL, _OTHER = 12, 13, 14
_COMPOSED: dict[type, int] = {
    Address: _ADDRESS, Vector: _VECTOR, Pair: _PAIR, Negated: _NEGATED, Texel: _TEXEL,
}  # fmt: skip
_LITERALS = {"int": _INTEGER, "f32": _F32, "f64": _F64}


class SiteCounts(NamedTuple):
    """Amount of data that one instruction has moved between memory and the SM."""

    requests: int
    lanes: int
    bytes: int
    moved: int
    """Number of sectors of global memory, or wavefronts of shared memory."""
    ideal: int
    """Number of wavefronts without bank conflicts."""
    atomics: int


class RawFinding(NamedTuple):
    """Memory error that the engine reports (engine/checks.h)."""

    kind: str
    source: int
    """Index of the faulty instruction in the function."""
    other: int
    """Index of the second instruction of a conflict, or -1."""
    block: str
    thread: str
    other_block: str
    other_thread: str
    memory: str
    offset: int
    bytes: int


class Code(NamedTuple):
    """Function as flat arrays. All launches of the function share them."""

    names: list[list[str]]
    """Opcode and modifiers of each distinct instruction."""
    instructions: np.ndarray[Any, Any]
    """Name, number of operands, guard register (or -1) and negation of the guard of each instruction."""
    operands: np.ndarray[Any, Any]
    """(kind, index, value, number of parts) of each operand, followed by its parts."""
    blocks: np.ndarray[Any, Any]
    """(first instruction, number of instructions, four flags) of each basic block.

    The flags are true if the last instruction transfers control, if a warp's lanes wait for each other at the first
    instruction, if the block only waits for other threads, and if it shares machine code with the previous block.
    """
    widths: list[int]
    unassigned: list[int]
    """Registers that a thread may read before it writes them."""
    specials: list[str]
    symbols: list[str]


def known_opcodes() -> frozenset[str]:
    """Return the opcodes that the engine supports, except for control flow. Some include their first modifier."""
    return frozenset(module().opcodes())


_LARGEST_KEPT = 4096  # Maximum instructions of a function that is kept to encode similar functions, to limit memory.


@cached_analysis
def encoded(function: Function) -> Code:
    """Encode a function. If a function that differs only in literals was encoded before, encode only the changes."""
    memo, encoder = function.form_memo, _Encoder(function)
    if len(function.instructions) > _LARGEST_KEPT:
        return encoder.code()
    before: tuple[_Encoder, Code] | None = memo.get(_Encoder)
    if before is None:
        before = memo[_Encoder] = encoder, encoder.code()
    encoder, code = before
    return code if encoder.function is function else encoder.changed(code, function)


class _Encoder:
    def __init__(self, function: Function) -> None:
        self.function = function
        self._names: dict[str, int] = {}
        self._registers: dict[str, int] = {}
        self._specials: dict[str, int] = {}
        self._symbols: dict[str, int] = {}
        self._starts: list[int] = []  # Index of the first operand of each instruction in `Code.operands`

    def code(self) -> Code:
        function = self.function
        instructions: list[int] = []
        operands: list[int] = []
        rows: dict[int, list[int]] = {}
        for ins in function.instructions:
            guard, negated = (
                (-1, False) if ins.predicate is None else (self._register(ins.predicate[0]), ins.predicate[1])
            )
            name = self._names.setdefault(ins.name, len(self._names))
            instructions += (name, len(ins.operands), guard, negated)
            self._starts.append(len(operands))
            operands += self._operands(ins, rows)
        blocks: list[int] = []
        first = 0
        for block in function.blocks:
            head, last = block.instructions[0], block.instructions[-1]
            count = len(block.instructions)
            flags = (ends_block(last), is_warp_synchronous(head), spins(block), False)
            blocks += (first, count, *flags)
            first += count
        widths = [register_width(function.register_type(name) or "b32") for name in self._registers]
        names = [name.split(".") for name in self._names]
        code, values, parts = (np.array(numbers, np.int64) for numbers in (instructions, operands, blocks))
        live = live_before(function)[0] if function.blocks else ()
        unassigned = sorted(self._registers[name] for name in live if name in self._registers)
        return Code(names, code, values, parts, widths, unassigned, [*self._specials], [*self._symbols])

    def changed(self, code: Code, function: Function) -> Code:
        """Return the code of a function that differs from the encoded function only in literals."""
        operands = code.operands.copy()
        rows: dict[int, list[int]] = {}
        for start, before, ins in zip(self._starts, self.function.instructions, function.instructions, strict=True):
            if ins is not before:
                numbers = self._operands(ins, rows)
                operands[start : start + len(numbers)] = numbers
        if len(self._symbols) > len(code.symbols):  # The arguments of a call are a symbol, which may contain literals.
            return _Encoder(function).code()
        return code._replace(operands=operands)

    def _operands(self, ins: Instruction, rows: dict[int, list[int]]) -> list[int]:
        """Encode the operands of an instruction.

        Args:
            rows: encoded operands by id, because many instructions share operands. The operands must stay alive.
        """
        encoded: list[int] = []
        for operand in ins.operands:
            if isinstance(operand, Symbol):
                encoded += self._symbol(operand, ins.opcode in ("bra", "brx"))
                continue
            if (row := rows.get(id(operand))) is None:
                row = rows[id(operand)] = self._operand(operand)
            encoded += row
        return encoded

    def _register(self, name: str) -> int:
        return self._registers.setdefault(name, len(self._registers))

    def _operand(self, operand: Operand) -> list[int]:
        if isinstance(operand, Register):
            if operand.name == "_":
                return _row(_NONE)
            if operand.name in self._registers or self.function.register_type(operand.name) is not None:
                return _row(_REGISTER, self._register(operand.name))
            if is_special(operand.name):
                number = self._specials.setdefault(operand.name, len(self._specials))
                return _row(_SPECIAL, number, special_width(operand.name))
            return _row(_OTHER)
        if isinstance(operand, Immediate):
            if operand.kind in _LITERALS:
                return _row(_LITERALS[operand.kind], 0, signed(int(operand.value)))
            return _row(_DECIMAL, 0, int(np.float64(operand.value).view(np.int64)))
        if isinstance(operand, Symbol):
            return self._symbol(operand, False)
        parts = parts_of(operand)
        offset = signed(operand.offset) if isinstance(operand, Address) else 0
        rows = _row(_COMPOSED[type(operand)], 0, offset, len(parts))
        for part in parts:
            rows += self._operand(part)
        return rows

    def _symbol(self, symbol: Symbol, branches: bool) -> list[int]:
        index, tables = self.function.block_index, self.function.tables
        if branches and symbol.name in tables:
            labels = tables[symbol.name]
            return [*_row(_VECTOR, parts=len(labels)), *(n for label in labels for n in _row(_LABEL, 0, index[label]))]
        if branches and symbol.name in index:
            return _row(_LABEL, 0, index[symbol.name])
        number = self._symbols.setdefault(symbol.name, len(self._symbols))
        return _row(_SYMBOL, number, signed(symbol.offset))


def _row(kind: int, number: int = 0, value: int = 0, parts: int = 0) -> list[int]:
    return [kind, number, value, parts]


def signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
