"""The registers of a batch of thread blocks: one NumPy row of lanes per virtual register.

Registers of one width share one two-dimensional array (a register file), a row each, and are seen as any type of that
width through views. Literals, symbol addresses and special registers are rows too, so every operand of an instruction
is a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernrec.ptx.ir.program import Function
from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.types import DTYPES, WIDTHS, Array, register_width

RowRef = tuple[int, int]
"""A row of the register files: (width in bits, row)."""

_FILE_DTYPES = {1: "?", 8: "u1", 16: "u2", 32: "u4", 64: "u8"}


class SpecialRegisters:
    """Values of the special registers (`%tid.x`, `%laneid`, ...), and the rows that hold those that are in use."""

    def __init__(self, lanes: Lanes, launch_values: Mapping[str, int]) -> None:
        self._lanes = lanes
        self._launch_values = launch_values
        self._rows: dict[str, Array] = {}

    def keep(self, name: str, row: Array) -> None:
        """Fills `row` with the values of a special register, now and whenever a batch starts."""
        row[:] = self.values(name)
        self._rows[name] = row

    def start_batch(self) -> None:
        """Fills the rows in use with the values of the present batch."""
        for name, row in self._rows.items():
            row[:] = self.values(name)

    def values(self, name: str) -> Array | int | None:
        """The value of a special register in each lane, or in all of them; None for a name that is none."""
        shape = self._lanes.shape
        thread = shape.numbers % shape.lanes_per_block
        base, _, axis = name.partition(".")
        if axis:
            return self._coordinate(base, "xyz".index(axis), thread) if axis in ("x", "y", "z") else None
        lane = thread % WARP
        bit = np.uint64(1) << lane.astype(np.uint64)
        below = bit - np.uint64(1)
        full = np.uint64(0xFFFFFFFF)
        values: dict[str, Array | int] = {
            "%laneid": lane,
            "%warpid": thread // WARP,
            "%nwarpid": shape.lanes_per_block // WARP,
            "%smid": 0,
            "%nsmid": 1,
            "%gridid": 0,
            "%clock": 0,
            "%clock_hi": 0,
            "%clock64": 0,
            "%globaltimer": 0,
            "%envreg1": 0,  # of a cooperative launch: where grids synchronize; 0 in any other launch
            "%envreg2": 0,
            # The carry of extended-precision arithmetic, and the next one while it is being computed.
            "%carry": 0,
            "%carry_next": 0,
            "%lanemask_eq": bit,
            "%lanemask_lt": below,
            "%lanemask_le": below | bit,
            "%lanemask_ge": full ^ below,
            "%lanemask_gt": full ^ (below | bit),
        }
        return values.get(name, self._launch_values.get(name))

    def _coordinate(self, base: str, axis: int, thread: Array) -> Array | int | None:
        shape = self._lanes.shape
        if base == "%tid":
            return _along(thread, shape.block, axis)
        if base == "%ctaid":
            return _along(self._lanes.block_numbers, shape.grid, axis).repeat(shape.lanes_per_block)
        extents = {"%ntid": shape.block, "%nctaid": shape.grid}.get(base)
        return None if extents is None else extents[axis]


def _along(linear: Array, extents: tuple[int, int, int], axis: int) -> Array:
    """The coordinate along an axis of linear numbers, x fastest."""
    coordinates: Array = linear // (1, extents[0], extents[0] * extents[1])[axis]
    return coordinates if axis == 2 else coordinates % extents[axis]


class RegisterFiles:
    """Register files of one function for one batch of lanes."""

    def __init__(self, function: Function, lanes: Lanes, launch_values: Mapping[str, int]) -> None:
        """`launch_values`: special registers whose value the launch decides."""
        self.function = function
        self.lanes = lanes
        self.special = SpecialRegisters(lanes, launch_values)
        declared = dict.fromkeys(_FILE_DTYPES, len(function.immediates) + len(function.variables) + 96)
        for kind in function.registers.values():
            declared[register_width(kind)] += 1
        for kind, number in function.ranges.values():
            declared[register_width(kind)] += number
        # np.zeros takes untouched pages from the system: rows cost nothing until a register is used.
        self.files = {w: np.zeros((n, lanes.shape.lanes), _FILE_DTYPES[w]) for w, n in declared.items()}
        self._used = dict.fromkeys(_FILE_DTYPES, 0)
        self._views: dict[tuple[int, np.dtype[Any]], Array] = {}
        self._rows: dict[object, RowRef] = {}
        self._typed: dict[tuple[RowRef, str], Array] = {}
        self._scratch: dict[tuple[int, int], Array] = {}

    def register(self, name: str) -> RowRef:
        """The row of a register; KeyError when it is neither declared nor special."""
        ref = self._rows.get(name)
        if ref is None:
            kind = self.function.register_type(name)
            ref = self._special_row(name) if kind is None else self._new_row(register_width(kind))
            self._rows[name] = ref
        return ref

    def constant(self, width: int, bits: int) -> RowRef:
        """A row that holds one literal in every lane."""
        key = (width, bits)
        ref = self._rows.get(key)
        if ref is None:
            ref = self._rows[key] = self._new_row(width)
            self.files[width][ref[1]] = bits
        return ref

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

    def _new_row(self, width: int) -> RowRef:
        row = self._used[width]
        self._used[width] = row + 1
        return width, row

    def _special_row(self, name: str) -> RowRef:
        if self.special.values(name) is None:
            raise KeyError(name)
        width, row = self._new_row(64 if name in ("%clock64", "%globaltimer") else 32)
        self.special.keep(name, self.files[width][row])
        return width, row
