"""The registers of a batch of thread blocks: one NumPy row of lanes per virtual register.

Registers of one width share one two-dimensional array (a register file), a row each, and are seen as any type of that
width through views. Literals, symbol addresses and special registers are rows too, so every operand of an instruction
is a row. Which row holds which operand (`RowMap`) is the same in every launch of a function, so instructions are
planned once for all launches (`kernrec.ptx.instructions.block_plan`); rows that hold no register are filled in for each
launch.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np

from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.special_registers import is_special, special_value, special_width
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array, register_width

RowRef = tuple[int, int]
"""A row of the register files: (width in bits, row)."""

Content = int | Symbol | str
"""Of a row that no instruction writes: a literal's bits, the address of a symbol, or a special register."""

WIDTHS_OF_ROWS = (1, 8, 16, 32, 64)
"""Bits of the registers, a file each."""


class RowMap:
    """The rows of one function, assigned at their first use."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.contents: list[tuple[RowRef, Content]] = []
        """The rows that hold literals, symbols and special registers, in the order of assignment."""
        room = len(function.immediates) + len(function.variables) + 96
        self.room = dict.fromkeys(WIDTHS_OF_ROWS, room)
        """Rows of each width that may be assigned."""
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
    """The rows of a function, stored with it."""
    rows: RowMap = function.memo.get(RowMap) or function.memo.setdefault(RowMap, RowMap(function))
    return rows


_FILE_DTYPES = {1: "?", 8: "u1", 16: "u2", 32: "u4", 64: "u8"}


class RegisterFiles:
    """Register files of one function for one batch of lanes."""

    def __init__(
        self, rows: RowMap, lanes: Lanes, symbols: Mapping[str, int], launch_values: Mapping[str, int]
    ) -> None:
        """The registers of a launch with these addresses of symbols and values of special registers."""
        self.rows = rows
        self.lanes = lanes
        # np.zeros takes untouched pages from the system: rows cost nothing until a register is used.
        self.files = {w: np.zeros((n, lanes.shape.lanes), _FILE_DTYPES[w]) for w, n in rows.room.items()}
        self._symbols = symbols
        self._launch_values = launch_values
        self._filled = 0  # rows of `rows.contents` that have their values
        self._views: dict[tuple[int, np.dtype[Any]], Array] = {}
        self._typed: dict[tuple[RowRef, str], Array] = {}
        self._scratch: dict[tuple[int, int], Array] = {}

    @property
    def function(self) -> Function:
        """The function that is executed."""
        return self.rows.function

    def start_batch(self) -> None:
        """Gives the special registers the values of the present batch."""
        for (width, row), content in self.rows.contents[: self._filled]:
            if isinstance(content, str):
                self.files[width][row] = special_value(content, self.lanes, self._launch_values)

    def fill(self) -> None:
        """Gives rows that were asked for since the last call what they hold."""
        contents = self.rows.contents
        while self._filled < len(contents):
            (width, row), content = contents[self._filled]
            file = self.files[width]
            if isinstance(content, str):
                file[row] = special_value(content, self.lanes, self._launch_values)
            elif isinstance(content, Symbol):
                # A symbol that an earlier launch had and this one has not is in none of its instructions.
                file[row] = self._symbols.get(content.name, 0) + content.offset & (1 << width) - 1
            else:
                file[row] = content
            self._filled += 1

    def view(self, width: int, dtype: np.dtype[Any]) -> Array:
        """All rows of a width as `dtype`: shape (rows, lanes), or (rows, k * lanes) for a narrower dtype."""
        view = self._views.get((width, dtype))
        if view is None:
            view = self._views[(width, dtype)] = self.files[width].view(dtype)
        return view

    def row(self, ref: RowRef, kind: str) -> Array:
        """A row as PTX type `kind`; a type narrower than the register takes the low part of each lane."""
        row = self._typed.get((ref, kind))
        if row is None:
            width, index = ref
            view = self.view(width, DTYPES[kind])
            need = WIDTHS[kind]
            if need > width or (need == 1) != (width == 1):
                raise EmulationError(f"a .{kind} operand does not fit a {width}-bit register")
            row = self._typed[ref, kind] = view[index] if need == width else view[index, :: width // need]
        return row

    def scratch(self, like: Array) -> Array:
        """A temporary row for results that are then written under a mask; one per item size and length."""
        key = (like.dtype.itemsize, like.shape[-1])
        row = self._scratch.get(key)
        if row is None:
            row = self._scratch[key] = np.empty(like.shape[-1], f"u{like.dtype.itemsize}")
        return row.view(like.dtype)
