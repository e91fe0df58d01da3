"""The registers of a batch of thread blocks: one NumPy row of lanes per virtual register.

Registers of one width share one two-dimensional array (a register file), a row each, and are seen as any type of that
width through views. Literals, symbol addresses and special registers are rows too, so every operand of an instruction
is a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernrec.ptx.ir.operand import Symbol
from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.batch import Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.row_map import RowMap, RowRef
from kernrec.ptx.state.special_registers import special_value
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array

_FILE_DTYPES = {1: "?", 8: "u1", 16: "u2", 32: "u4", 64: "u8"}


class RegisterFiles:
    """Register files of one function for one batch of lanes."""

    def __init__(
        self, rows: RowMap, lanes: Lanes, symbols: Mapping[str, int], launch_values: Mapping[str, int]
    ) -> None:
        """The registers of a launch.

        Args:
            rows: which row holds what.
            lanes: the lanes of the batch.
            symbols: addresses of variables and parameters.
            launch_values: special registers whose value the launch decides.
        """
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
            if need > width:
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
