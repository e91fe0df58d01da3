"""The registers of a batch of thread blocks: one NumPy row of lanes per virtual register.

A lane is a thread. A batch holds `blocks` thread blocks of `padded` lanes each; `padded` is the thread count of a
block rounded up to whole warps, so no warp mixes blocks. Registers of one width share one two-dimensional array, a row
each, and are seen as any type of that width through views. Literals, symbol addresses and special registers are rows
too, so every operand of an instruction is a row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernrec.errors import KernrecError
from kernrec.ptx.ir.program import Function, Immediate, Instruction

Array = NDArray[Any]

# State-space windows of the generic address space. Buffer i of global memory starts at (i + 1) << 40.
BUFFER_SHIFT = 40
WINDOW_SHIFT = 56
WINDOWS = {"global": 0, "shared": 1, "local": 2, "const": 3, "param": 4}

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "pred": "?",
        **{f"{k}{w}": f"{'i' if k == 's' else 'u'}{w // 8}" for k in "bus" for w in (8, 16, 32, 64)},
        "u16x2": "u2",
        "s16x2": "i2",
        "f16": "f2",
        "f16x2": "f2",
        "bf16": "u2",
        "bf16x2": "u2",
        "tf32": "u4",
        "f32": "f4",
        "f32x2": "f4",
        "f64": "f8",
    }.items()
}
WIDTHS: dict[str, int] = {
    name: {"pred": 1, "u16x2": 32, "s16x2": 32, "f16x2": 32, "bf16x2": 32, "f32x2": 64}.get(name, dtype.itemsize * 8)
    for name, dtype in DTYPES.items()
}
FILE_DTYPES = {1: "?", 8: "u1", 16: "u2", 32: "u4", 64: "u8"}


class EmulationError(KernrecError):
    """A kernel did something it must not (or that the emulator does not know); the message names where."""


def at(function: Function, ins: Instruction) -> str:
    """How errors name an instruction: function, PTX line and text."""
    return f"{function.name}, PTX line {ins.line}, `{' '.join(ins.text.split()).rstrip(';')}`"


class Lanes:
    """Register files, masks and special values of one batch of thread blocks."""

    def __init__(self, function: Function, grid: Sequence[int], block: Sequence[int], blocks: int) -> None:
        self.function = function
        self.grid = tuple(grid)
        self.block = tuple(block)
        self.threads = block[0] * block[1] * block[2]
        self.padded = -(-self.threads // 32) * 32
        self.blocks = blocks
        self.count = blocks * self.padded
        declared = dict.fromkeys(FILE_DTYPES, len(function.immediates) + len(function.variables) + 96)
        for kind in function.registers.values():
            declared[self.width_of(kind)] += 1
        for kind, number in function.ranges.values():
            declared[self.width_of(kind)] += number
        # np.zeros takes untouched pages from the system: rows cost nothing until a register is used.
        self.files = {w: np.zeros((n, self.count), FILE_DTYPES[w]) for w, n in declared.items()}
        self.used = dict.fromkeys(FILE_DTYPES, 0)
        self.views: dict[tuple[int, np.dtype[Any]], Array] = {}
        self.rows: dict[object, tuple[int, int]] = {}
        self.scratches: dict[tuple[int, int], Array] = {}
        # Set by the scheduler before each basic block.
        self.partial: Array | None = None  # lanes that run, when some live lane does not; None: all live lanes run
        self.active: Array | None = None  # lanes that run; None: every lane of the batch
        self.tick = 0
        self._index: Array | None = None
        self._index_of: Array | None = None
        self.lane = np.arange(self.count, dtype=np.int64)
        self.block_of = self.lane // self.padded
        self.ids = np.zeros(blocks, np.int64)
        self.specials: dict[str, Array] = {}
        self.sizes: dict[str, int] = {}  # special registers that the launch decides

    @staticmethod
    def width_of(kind: str) -> int:
        """Bits of a register of a PTX type (1 for predicates)."""
        width = WIDTHS.get(kind)
        if width is None:
            raise EmulationError(f"registers of type .{kind} are not supported")
        return width

    def new_row(self, width: int) -> int:
        row = self.used[width]
        self.used[width] = row + 1
        return row

    def register(self, name: str) -> tuple[int, int]:
        """(width, row) of a register; KeyError when it is neither declared nor special."""
        found = self.rows.get(name)
        if found is None:
            kind = self.function.register_type(name)
            if kind is None:
                return self.special(name)
            width = self.width_of(kind)
            found = self.rows[name] = (width, self.new_row(width))
        return found

    def constant(self, width: int, bits: int) -> tuple[int, int]:
        """A row that holds one literal in every lane."""
        key = (width, bits)
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = (width, self.new_row(width))
            self.files[width][found[1]] = bits
        return found

    def view(self, width: int, dtype: np.dtype[Any]) -> Array:
        """All rows of a width as `dtype`: shape (rows, lanes), or (rows, k * lanes) for a narrower dtype."""
        found = self.views.get((width, dtype))
        if found is None:
            found = self.views[(width, dtype)] = self.files[width].view(dtype)
        return found

    def row(self, ref: tuple[int, int], kind: str) -> Array:
        """A row as type `kind`; a type narrower than the register takes the low part of each lane."""
        width, index = ref
        view = self.view(width, DTYPES[kind])
        need = WIDTHS[kind]
        if need == width:
            return view[index]
        if need > width:
            raise EmulationError(f"a .{kind} operand does not fit a {width}-bit register")
        return view[index, :: width // need]

    def scratch(self, like: Array) -> Array:
        """A temporary for results that are then written under a mask; one per item size and length."""
        key = (like.dtype.itemsize, like.shape[-1])
        found = self.scratches.get(key)
        if found is None:
            found = self.scratches[key] = np.empty(like.shape[-1], f"u{like.dtype.itemsize}")
        return found.view(like.dtype)

    def active_lanes(self) -> Array | None:
        """Numbers of the lanes that run, or None when all of the batch do."""
        if self.active is None:
            return None
        if self._index_of is not self.active:
            self._index_of = self.active
            self._index = np.flatnonzero(self.active)
        return self._index

    def special(self, name: str) -> tuple[int, int]:
        """The row of a special register."""
        width = 64 if name in ("%clock64", "%globaltimer") else 32
        values = self._special(name)
        if values is None:
            raise KeyError(name)
        found = self.rows[name] = (width, self.new_row(width))
        self.files[width][found[1]] = values
        self.specials[name] = self.files[width][found[1]]
        return found

    def start_batch(self, ids: Sequence[int]) -> None:
        """Gives the batch the thread blocks with these linear numbers (fewer than `blocks`: the rest is dead)."""
        self.ids[:] = 0
        self.ids[: len(ids)] = ids
        for name, row in self.specials.items():
            row[:] = self._special(name)

    def _special(self, name: str) -> Array | int | None:
        thread = np.tile(np.arange(self.padded, dtype=np.int64), self.blocks)
        lane = thread & 31
        base, _, axis = name.partition(".")
        if axis:
            of: Callable[[Array, Sequence[int]], Array] = lambda linear, size: {  # noqa: E731
                "x": linear % size[0],
                "y": linear // size[0] % size[1],
                "z": linear // (size[0] * size[1]),
            }[axis]
            if axis not in "xyz":
                return None
            if base == "%tid":
                return of(thread, self.block)
            if base == "%ctaid":
                return of(self.ids, self.grid).repeat(self.padded)
            sizes = {"%ntid": self.block, "%nctaid": self.grid}.get(base)
            return None if sizes is None else sizes["xyz".index(axis)]
        one = np.uint64(1)
        bit = one << lane.astype(np.uint64)
        full = np.uint64(0xFFFFFFFF)
        values: dict[str, Array | int] = {
            "%laneid": lane,
            "%warpid": thread // 32,
            "%nwarpid": self.padded // 32,
            "%smid": 0,
            "%nsmid": 1,
            "%gridid": 0,
            "%clock": 0,
            "%clock_hi": 0,
            "%clock64": 0,
            "%globaltimer": 0,
            # The carry of extended-precision arithmetic, and the next one while it is being computed.
            "%carry": 0,
            "%carry_next": 0,
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - one,
            "%lanemask_le": (bit - one) | bit,
            "%lanemask_ge": (full ^ (bit - one)),
            "%lanemask_gt": (full ^ ((bit - one) | bit)),
        }
        return values.get(name, self.sizes.get(name))

    def literal(self, operand: Immediate, kind: str) -> int:
        """The bits of a literal when it stands for a value of type `kind`."""
        value = operand.value
        width = WIDTHS[kind]
        bits = operand.kind == "int" and kind in ("f16", "f16x2")  # PTX writes halves as their bits
        if not bits and (kind[0] == "f" or kind in ("b32", "b64", "b16")):
            number: float | None = None
            if operand.kind == "f32":
                number = float(np.uint32(value).view(np.float32))
            elif operand.kind == "f64":
                number = float(np.uint64(value).view(np.float64))
            elif operand.kind == "float" or kind[0] == "f":
                number = float(value)
            if number is not None:
                if (operand.kind == "f32" and width == 32) or (operand.kind == "f64" and width == 64):
                    return int(value)
                if "x2" in kind:
                    raise EmulationError(f"a literal of type .{kind} is not supported")
                return int(np.array([number], f"f{width // 8}").view(f"u{width // 8}")[0])
        if kind == "pred":
            return int(value != 0)
        return int(value) & ((1 << width) - 1)
