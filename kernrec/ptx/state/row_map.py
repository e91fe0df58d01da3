"""Which row of the register files holds which operand of a function: the same in every launch of it.

So how instructions are executed can be planned once for all launches (`kernrec.ptx.instructions.block_plan`). What a
row holds that is no register is filled in for each launch (`kernrec.ptx.state.registers`).
"""

from threading import Lock

from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.special_registers import is_special, special_width
from kernrec.ptx.state.types import register_width

RowRef = tuple[int, int]
"""A row of the register files: (width in bits, row)."""

Content = int | Symbol | str
"""What a row holds that no instruction writes: a literal's bits, the address of a symbol, a special register."""

WIDTHS_OF_ROWS = (1, 8, 16, 32, 64)
"""Bits of the registers, a file each."""


class RowMap:
    """The rows of one function, given out as they are asked for."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.contents: list[tuple[RowRef, Content]] = []
        """The rows that hold literals, symbols and special registers, in the order in which they were given out."""
        room = len(function.immediates) + len(function.variables) + 96
        self.room = dict.fromkeys(WIDTHS_OF_ROWS, room)
        """Rows of each width, all of which may be given out."""
        for kind in function.registers.values():
            self.room[register_width(kind)] += 1
        for kind, number in function.ranges.values():
            self.room[register_width(kind)] += number
        self._used = dict.fromkeys(WIDTHS_OF_ROWS, 0)
        self._rows: dict[object, RowRef] = {}
        self._lock = Lock()  # threads may run the same function

    def register(self, name: str) -> RowRef:
        """The row of a register; KeyError when it is neither declared nor special."""
        ref = self._rows.get(name)
        if ref is not None:
            return ref
        kind = self.function.register_type(name)
        if kind is not None:
            return self._new(name, register_width(kind), None)
        if not is_special(name):
            raise KeyError(name)
        return self._new(name, special_width(name), name)

    def constant(self, width: int, bits: int) -> RowRef:
        """A row that holds one literal in every lane."""
        return self._rows.get((width, bits)) or self._new((width, bits), width, bits)

    def address(self, width: int, symbol: Symbol) -> RowRef:
        """A row that holds the address of a symbol in every lane."""
        return self._rows.get((width, symbol)) or self._new((width, symbol), width, symbol)

    def _new(self, key: object, width: int, content: Content | None) -> RowRef:
        with self._lock:
            ref = self._rows.get(key)
            if ref is None:
                ref = width, self._used[width]
                self._used[width] += 1
                if content is not None:
                    self.contents.append((ref, content))
                self._rows[key] = ref
            return ref


def row_map(function: Function) -> RowMap:
    """The rows of a function, kept with it."""
    rows: RowMap = function.memo.get(RowMap) or function.memo.setdefault(RowMap, RowMap(function))
    return rows
