"""Tensor-core instructions: `mma.sync`, and `ldmatrix`, `stmatrix`, `movmatrix` that feed it.

Fragment layouts are those of the PTX ISA manual, section "Warp-level matrix fragments". With g = lane / 4, t = lane % 4
and p elements per 32-bit register (1 of tf32, 2 of f16 and bf16, 4 of i8; 1 per f64 register), register r of a lane
holds, e = 0 .. p - 1:

- A (m x k): row g + 8 (r % (m / 8)), column 4p (r / (m / 8)) + p t + e;
- B (k x n): row 4p r + p t + e, column g;
- C and D (m x 8): row g + 8 (r / 2), column 2 t + r % 2; of f16, with its two halves: row g + 8 r, column 2 t + e.

PTX leaves open in which order and precision the products are added. Here C and all products are summed in float64 (the
products of 16-bit types are exact there) and rounded once to the type of D; hardware may differ in the last bits.
Integers are exact and wrap, or saturate with `.satfinite`. The last 13 bits of a tf32 operand are ignored.

Consecutive independent `mma` of a kind run as one step: fragments that several of them share are converted once, and
where every A meets every B (a warp tile) each warp multiplies one pair of larger matrices.

`mma.<type>` counts 2 m n k operations for every warp that runs one. A row of a matrix is 16 bytes of shared memory; a
matrix of eight rows moves in one wavefront where its rows lie in different banks.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import Decoder, Step, UnknownVariantError, steps
from kernrec.ptx.instructions.rounding import bf16_values, tf32_of
from kernrec.ptx.ir.program import Instruction, Operand, Vector
from kernrec.ptx.state.memory import Memory, Slot, place
from kernrec.ptx.state.registers import Array, EmulationError, Lanes, at


class _Type(NamedTuple):
    """An operand type: how its registers are read, and as what its operations are counted."""

    width: int  # of a register, bits
    dtype: str  # of an element as it lies there
    values: Callable[[Array], Array]
    counted: str


def _same(a: Array) -> Array:
    return a


_TYPES = {
    "f16": _Type(32, "f2", _same, "f16"),
    "bf16": _Type(32, "u2", bf16_values, "bf16"),
    "tf32": _Type(32, "u4", lambda a: tf32_of(a).view(np.float32), "tf32"),
    "s8": _Type(32, "i1", _same, "i8"),
    "u8": _Type(32, "u1", _same, "i8"),
    "f64": _Type(64, "f8", _same, "f64"),
    "f32": _Type(32, "f4", _same, "f32"),
    "s32": _Type(32, "i4", _same, "i32"),
}
_HALF_SHAPES = frozenset({"m16n8k8", "m16n8k16"})
_INTEGER_SHAPES = frozenset({"m8n8k16", "m16n8k16", "m16n8k32"})
_SHAPES: dict[str, frozenset[str]] = {
    "f16": _HALF_SHAPES,
    "bf16": _HALF_SHAPES,
    "tf32": frozenset({"m16n8k4", "m16n8k8"}),
    "s8": _INTEGER_SHAPES,
    "u8": _INTEGER_SHAPES,
    "f64": frozenset({"m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"}),
}
_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",), "f64": ("f64",)}
_MOST = 64  # instructions in one step

_Rows = tuple[int, ...]


class _Kind(NamedTuple):
    """What instructions of one step have in common."""

    m: int
    k: int
    a: str
    b: str
    c: str
    d: str
    saturates: bool


def whole_warps(lanes: Lanes, ins: Instruction, chosen: Array | None) -> Array | slice:
    """The warps of the lanes `chosen` (None: all).

    Raises:
        EmulationError: a warp of which not all 32 lanes are there.
    """
    if chosen is None:
        return slice(None)
    warps = chosen[::32] >> 5
    if len(chosen) % 32 or not np.array_equal(chosen, (warps[:, None] * 32 + np.arange(32)).reshape(-1)):
        present = np.bincount(chosen >> 5, minlength=lanes.count // 32)
        lane = int(np.flatnonzero((present > 0) & (present < 32))[0]) * 32
        block, thread = place(lanes, lane)
        raise EmulationError(
            f"{at(lanes.function, ins)}: not all 32 threads of the warp of block {block} thread {thread} run it"
        )
    return warps


class _Product:
    """A step: `d = a b + c` for one or more instructions and all warps of the batch."""

    def __init__(self, decoder: Decoder, ins: Instruction, kind: _Kind) -> None:
        self.kind = kind
        self.ins = ins
        self.lanes = decoder.lanes
        self.memory = decoder.memory
        self.chosen = decoder.guarded(ins)
        self.guarded = ins.predicate is not None
        self.items: list[tuple[_Rows, _Rows, _Rows, _Rows]] = []
        self.written: set[int] = set()
        self.plan: tuple[list[_Rows], list[_Rows], Array, Array, bool] | None = None

    def takes(self, kind: _Kind, rows: tuple[_Rows, _Rows, _Rows, _Rows]) -> bool:
        """Whether an instruction may run together with those already here."""
        free = not any(r in self.written for part in rows for r in part)
        return free and kind == self.kind and not self.guarded and len(self.items) < _MOST

    def add(self, rows: tuple[_Rows, _Rows, _Rows, _Rows]) -> None:
        self.items.append(rows)
        self.written.update(rows[3])

    def _planned(self) -> tuple[list[_Rows], list[_Rows], Array, Array, bool]:
        """Distinct A and B fragments, which of them each item multiplies, and whether that is all pairs in order."""
        if self.plan is None:
            first = list(dict.fromkeys(item[0] for item in self.items))
            second = list(dict.fromkeys(item[1] for item in self.items))
            self.items.sort(key=lambda item: (first.index(item[0]), second.index(item[1])))
            ia = np.array([first.index(item[0]) for item in self.items])
            ib = np.array([second.index(item[1]) for item in self.items])
            every = np.array_equal(ia * len(second) + ib, np.arange(len(first) * len(second)))
            self.plan = first, second, ia, ib, every
        return self.plan

    def __call__(self) -> None:
        lanes, kind = self.lanes, self.kind
        chosen = self.chosen()
        if chosen is not None and not len(chosen):
            return
        warps = whole_warps(lanes, self.ins, chosen)
        first, second, ia, ib, every = self._planned()
        m, k = kind.m, kind.k
        a, b = self._a(first, warps), self._b(second, warps)
        count = a.shape[0]  # of warps
        if every:
            product = np.matmul(a.reshape(count, -1, k), b.reshape(count, -1, k).swapaxes(1, 2))
            product = product.reshape(count, len(first), m, len(second), 8).transpose(1, 3, 0, 2, 4)
            product = product.reshape(-1, count, m, 8)
        else:
            product = np.matmul(a.swapaxes(0, 1)[ia], b.swapaxes(0, 1)[ib].swapaxes(2, 3))
        product += self._c([item[2] for item in self.items], warps)
        self._d(product, [item[3] for item in self.items], warps)
        if self.memory.counts is not None:
            operations = 2 * m * 8 * k * count * len(self.items)
            self.memory.counts.bump(f"mma.{_TYPES[kind.a].counted}", operations)

    def _registers(self, fragments: list[_Rows], kind: str, warps: Array | slice) -> Array:
        """Elements of the registers of fragments: (fragments, registers, warps, g, t, elements)."""
        of = _TYPES[kind]
        rows = self.lanes.files[of.width][np.array(fragments)]
        rows = rows.reshape(*rows.shape[:2], -1, 32)
        if not isinstance(warps, slice):
            rows = rows[:, :, warps]
        values = of.values(rows.view(of.dtype))
        return values.reshape(*rows.shape[:3], 8, 4, -1)

    def _a(self, fragments: list[_Rows], warps: Array | slice) -> Array:
        """A matrices as (warps, fragments, m, k)."""
        found = self._registers(fragments, self.kind.a, warps)
        count, registers, number, _, _, p = found.shape
        high = self.kind.m // 8
        parts = found.reshape(count, registers // high, high, number, 8, 4, p).transpose(3, 0, 2, 4, 1, 5, 6)
        return parts.astype(np.float64, order="C").reshape(number, count, self.kind.m, self.kind.k)

    def _b(self, fragments: list[_Rows], warps: Array | slice) -> Array:
        """B matrices, transposed, as (warps, fragments, n, k)."""
        found = self._registers(fragments, self.kind.b, warps)
        count, _, number, *_ = found.shape
        parts = found.transpose(2, 0, 3, 1, 4, 5)
        return parts.astype(np.float64, order="C").reshape(number, count, 8, self.kind.k)

    def _c(self, fragments: list[_Rows], warps: Array | slice) -> Array:
        """C matrices as (fragments, warps, m, n), in their own type."""
        found = self._registers(fragments, self.kind.c, warps)
        count, registers, number, _, _, p = found.shape
        parts = found.reshape(count, registers * p // 2, 2 // p, number, 8, 4, p).transpose(0, 3, 1, 4, 5, 2, 6)
        return parts.reshape(count, number, self.kind.m, 8)

    def _d(self, product: Array, fragments: list[_Rows], warps: Array | slice) -> None:
        """Rounds float64 matrices (fragments, warps, m, n) into the registers of D."""
        of = _TYPES[self.kind.d]
        dtype = np.dtype(of.dtype)
        if dtype.kind == "i":
            whole = product.astype(np.int64)
            rounded = (np.clip(whole, -(1 << 31), (1 << 31) - 1) if self.kind.saturates else whole).astype(dtype)
        else:
            rounded = product.astype(dtype)
        count, number, m, _ = product.shape
        p = 2 if of.width > 8 * dtype.itemsize else 1
        parts = rounded.reshape(count, number, m // 8, 8, 4, 2 // p, p).transpose(0, 2, 5, 1, 3, 4, 6)
        registers = np.ascontiguousarray(parts).view(f"u{of.width // 8}").reshape(-1, number, 32)
        file = self.lanes.files[of.width]
        rows = np.array(fragments).reshape(-1)
        if isinstance(warps, slice):
            file[rows] = registers.reshape(len(rows), -1)
        else:
            file.reshape(len(file), -1, 32)[rows[:, None], warps] = registers


def _rows(decoder: Decoder, operand: Operand, kind: str, registers: int) -> _Rows:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    width = _TYPES[kind].width
    refs = [decoder.ref(item, f"b{width}") for item in items]
    if len(refs) != registers or any(ref[0] != width for ref in refs):
        raise UnknownVariantError(f"a fragment of .{kind} takes {registers} registers of {width} bits")
    return tuple(row for _, row in refs)


@steps("mma")
def _mma(decoder: Decoder, ins: Instruction) -> Step | None:
    sync, aligned, shape, *layout, d, a, b, c = ins.modifiers
    saturates = "satfinite" in layout
    known = (sync, aligned) == ("sync", "aligned") and layout[:2] == ["row", "col"] and len(layout) == 2 + saturates
    if not known or a not in _SHAPES or b not in _SHAPES or not {c, d} <= set(_RESULTS[a]):
        raise UnknownVariantError("")
    if shape not in _SHAPES[a] or _RESULTS[a] != _RESULTS[b] or (a != b and "8" not in b):
        raise UnknownVariantError(f"shape {shape} of .{a} and .{b}")
    m, k = int(shape[1 : shape.index("n")]), int(shape[shape.index("k") + 1 :])
    kind = _Kind(m, k, a, b, c, d, saturates)

    def registers(elements: int, of: str) -> int:
        return elements * np.dtype(_TYPES[of].dtype).itemsize * 8 // (32 * _TYPES[of].width)

    operands = ins.operands
    rows = (
        _rows(decoder, operands[1], a, registers(m * k, a)),
        _rows(decoder, operands[2], b, registers(8 * k, b)),
        _rows(decoder, operands[3], c, registers(m * 8, c)),
        _rows(decoder, operands[0], d, registers(m * 8, d)),
    )
    last = decoder.last
    if isinstance(last, _Product) and ins.predicate is None and last.takes(kind, rows):
        last.add(rows)
        return None
    step = _Product(decoder, ins, kind)
    step.add(rows)
    return step


# Matrices of eight rows of eight 16-bit elements


def _matrices(ins: Instruction) -> tuple[int, bool]:
    """How many matrices an instruction moves, and whether transposed."""
    marks = set(ins.modifiers)
    number = next((n for n in (1, 2, 4) if f"x{n}" in marks), 0)
    if not number or not {"sync", "aligned", "m8n8", "b16"} <= marks or ins.modifiers[-1] != "b16":
        raise UnknownVariantError("")
    if marks - {"sync", "aligned", "m8n8", f"x{number}", "trans", "shared", "cta", "b16"}:
        raise UnknownVariantError("")
    return number, "trans" in marks


def _transposed(words: Array) -> Array:
    """Matrices (..., 32 words of two elements each, row by row) transposed."""
    halves = words.view(np.uint16).reshape(*words.shape[:-1], 8, 8).swapaxes(-1, -2)
    return np.ascontiguousarray(halves).view(np.uint32).reshape(words.shape)


def _move(decoder: Decoder, ins: Instruction, address: Operand, registers: Operand, store: bool) -> Step:
    number, transposed = _matrices(ins)
    items = registers.items if isinstance(registers, Vector) else (registers,)
    rows = [decoder.row(item, "b32").reshape(-1, 32) for item in items]
    if len(rows) != number:
        raise UnknownVariantError(f"{len(rows)} registers for {number} matrices")
    slot, offset = decoder.slot(ins, address_of(address), 8 * number)
    space = "shared" if "shared" in ins.modifiers else "generic"
    chosen = decoder.guarded(ins)
    run = _run_store if store else _run_load
    return partial(run, decoder.memory, slot, offset, ins, space, chosen, rows, transposed)


@steps("ldmatrix")
def _load_matrices(decoder: Decoder, ins: Instruction) -> Step:
    return _move(decoder, ins, ins.operands[1], ins.operands[0], False)


@steps("stmatrix")
def _store_matrices(decoder: Decoder, ins: Instruction) -> Step:
    return _move(decoder, ins, ins.operands[0], ins.operands[1], True)


def _run_load(
    memory: Memory,
    slot: Slot,
    offset: int,
    ins: Instruction,
    space: str,
    chosen: Callable[[], Array | None],
    rows: list[Array],
    transposed: bool,
) -> None:
    selection = slot.get()
    if selection is None:
        return
    warps = whole_warps(memory.lanes, ins, chosen())
    [(region, part)] = memory.places(space, selection, ins, offset, 16)
    index, shift = part.index(region, 8, offset)
    view = region.views[8]
    data = np.empty((len(index), 2), np.uint64)
    for i in range(2):
        data[:, i] = view[shift + i :].take(index, None, None, "clip")
    words = data.view(np.uint32).reshape(-1, len(rows), 32)
    if transposed:
        words = _transposed(words)
    for i, row in enumerate(rows):
        row[warps] = words[:, i]
    memory.touched(ins, region, part, offset, 16, False, True)


def _run_store(
    memory: Memory,
    slot: Slot,
    offset: int,
    ins: Instruction,
    space: str,
    chosen: Callable[[], Array | None],
    rows: list[Array],
    transposed: bool,
) -> None:
    selection = slot.get()
    if selection is None:
        return
    warps = whole_warps(memory.lanes, ins, chosen())
    words = np.stack([row[warps] for row in rows], axis=1)
    if transposed:
        words = _transposed(words)
    [(region, part)] = memory.places(space, selection, ins, offset, 16, True)
    index, shift = part.index(region, 8, offset)
    data = words.view(np.uint64).reshape(-1, 2)
    for i in range(2):
        region.views[8][shift + i :][index] = data[:, i]
    memory.touched(ins, region, part, offset, 16, True, True)


@steps("movmatrix")
def _move_matrix(decoder: Decoder, ins: Instruction) -> Step:
    if ins.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnknownVariantError("")
    target, source = (decoder.row(operand, "b32").reshape(-1, 32) for operand in ins.operands)
    chosen = decoder.guarded(ins)

    def run() -> None:
        lanes = chosen()
        if lanes is None or len(lanes):
            warps = whole_warps(decoder.lanes, ins, lanes)
            target[warps] = _transposed(np.ascontiguousarray(source[warps]))

    return run
