"""Matrix multiplication by a warpgroup: `wgmma.mma_async`, `wgmma.fence`, `wgmma.commit_group`, `wgmma.wait_group`.

PTX ISA, section "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Four warps multiply A (64 x K)
with B (K x N), K being 32 bytes. B, and A where it is not in registers, lie in shared memory as descriptors say
(`kernrec.ptx.state.matrix_descriptors`). Warp w has rows 16 w to 16 w + 15 of A and D; its fragment of A is that of
`mma.sync` with m16, and its fragment of D is N / 8 fragments of `mma.sync` with m16n8, one beside the other.

Products and D are summed in float64 and rounded once, as for `mma.sync` (`kernrec.ptx.instructions.matrix`); Hopper
sums e4m3 and e5m2 with fewer bits than f32 has. The multiplication is done where the instruction stands;
`kernrec.ptx.state.warpgroup_operations` keeps anybody from looking at registers before they were waited for, and
`kernrec.ptx.state.race_detector` from writing the tiles.

`mma.<type>` counts operations as for `mma.sync`, and `wgmma.<type>` the same ones again, since they run at another
rate; `wgmma.shared_bytes` is what tensor cores read of shared memory, once for the whole warpgroup, and `wgmma.waits`
how often a warpgroup waited.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.fragments import (
    ALIKE,
    ELEMENT_TYPES,
    Rows,
    a_matrices,
    c_matrices,
    register_rows,
    register_values,
    saturated,
    write_d,
)
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError, steps
from kernrec.ptx.instructions.shared_tiles import ROW_BYTES, TileShape, read_tile
from kernrec.ptx.ir.operand import Immediate, Operand, Vector
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.batch import WARP, WARPGROUP
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.matrix_descriptors import wgmma_descriptor
from kernrec.ptx.state.types import Array
from kernrec.ptx.state.warpgroup_operations import Operation

_M = 64
_FLOATS = ("f16", "f32")
_RESULTS = {
    "f16": _FLOATS, "bf16": ("f32",), "tf32": ("f32",), "e4m3": _FLOATS, "e5m2": _FLOATS,
    "s8": ("s32",), "u8": ("s32",), "b1": ("s32",),
}  # fmt: skip
_FEWER_N = frozenset({8, 24, *range(16, 257, 16)})  # of integers and bits


class _Kind(NamedTuple):
    """The extents and types that the name of the instruction states."""

    n: int
    k: int
    d: str
    a: str
    b: str
    saturates: bool


def _kind(ins: Instruction) -> _Kind:
    """PTX ISA, section `wgmma.mma_async`, tables of shapes and types."""
    if "sp" in ins.modifiers:
        raise UnsupportedFormError("a sparse matrix A")
    marks = [m for m in ins.modifiers[1:] if m not in ("satfinite", "and", "popc")]
    if marks[:2] != ["sync", "aligned"] or len(marks) != 6:
        raise UnsupportedFormError
    shape, d, a, b = marks[2:]
    extents = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    if extents is None or a not in _RESULTS or b not in _RESULTS or d not in _RESULTS[a]:
        raise UnsupportedFormError
    n, k = (int(extent) for extent in extents.groups())
    if a != b and {a, b} not in ALIKE:
        raise UnsupportedFormError(f".{a} with .{b}")
    fits = n in _FEWER_N if d == "s32" else 8 <= n <= 256 and n % 8 == 0
    if not fits or k * ELEMENT_TYPES[a].bits != 8 * ROW_BYTES:
        raise UnsupportedFormError(f"shape {shape} of .{a}")
    if (a == "b1") != (ins.modifiers[-2:] == ("and", "popc")):
        raise UnsupportedFormError
    return _Kind(n, k, d, a, b, "satfinite" in ins.modifiers)


def _warpgroups(decoder: BlockDecoder, ins: Instruction) -> Callable[[], Array]:
    """A function that gives the numbers of the warpgroups that run an instruction; all four warps of each must."""
    shape = decoder.lanes.shape
    running_lanes = decoder.running_lanes(ins)

    def numbers() -> Array:
        running = running_lanes()
        present = np.bincount(shape.warpgroup_of if running is None else shape.warpgroup_of[running])
        if ((present != 0) & (present != WARPGROUP)).any():
            group = int(np.flatnonzero((present != 0) & (present != WARPGROUP))[0])
            block, thread = decoder.lanes.coordinates(int(shape.warpgroups[group]))
            raise EmulationError(
                f"{location(decoder.function, ins)}: not all 128 threads of the warpgroup of block {block} thread "
                f"{thread} run it"
            )
        return np.flatnonzero(present)

    return numbers


def _option(operands: tuple[Operand, ...], i: int, name: str, values: tuple[int, int]) -> int:
    """An option of the instruction: one of two values, the first where it is not stated."""
    operand = operands[i] if i < len(operands) else Immediate(values[0], "int")
    if not isinstance(operand, Immediate) or operand.value not in values:
        raise UnsupportedFormError(f"{name} other than {values[0]} and {values[1]}")
    return int(operand.value)


class _SharedTile:
    """An operand in shared memory: reads it for each warpgroup."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction, operand: Operand, kind: str, mn_major: bool) -> None:
        self.decoder = decoder
        self.ins = ins
        self.descriptors = decoder.row(operand, "b64")
        self.type = ELEMENT_TYPES[kind]
        self.mn_major = mn_major

    def read(self, first: Array, extent: int) -> tuple[list[Array], list[Array]]:
        """The tiles of warpgroups, and where each lies.

        Args:
            first: the first lane of each warpgroup.
            extent: rows along M or N.

        Returns:
            Of each warpgroup the elements (extent, K), and their bytes of the batch's shared memory.
        """
        place = location(self.decoder.function, self.ins)
        lanes = first[:, None] + np.arange(WARPGROUP)
        descriptors = self.descriptors[lanes]
        if (descriptors != descriptors[:, :1]).any():
            raise EmulationError(f"{place}: the threads of a warpgroup have different descriptors")
        shape = TileShape(extent, ROW_BYTES // self.type.bytes, self.type.bytes, self.mn_major)
        blocks = self.decoder.lanes.shape.block_of[first]
        tiles = [
            read_tile(self.decoder.memory, place, (wgmma_descriptor, bits), block, shape)
            for bits, block in zip(descriptors[:, 0].tolist(), blocks.tolist(), strict=True)
        ]
        return [tile for tile, _ in tiles], [index for _, index in tiles]

    def numbers(self, tiles: list[Array]) -> Array:
        """The numbers in tiles; float64 (tiles, extent, K)."""
        elements = np.stack(tiles)
        return self.type.values(elements.view(self.type.dtype)).astype(np.float64)


class _Multiplication:
    """The step of a `wgmma.mma_async`."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction) -> None:
        self.kind = kind = _kind(ins)
        self.decoder = decoder
        self.warpgroups = _warpgroups(decoder, ins)
        self.computed = decoder.computes(ins)
        d, a, b, scale_d, *rest = ins.operands
        options = tuple(rest)
        in_registers = isinstance(a, Vector)
        self.accumulators = register_rows(decoder, d, kind.d, kind.n // (4 if kind.d == "f16" else 2))
        self.inputs: Rows = register_rows(decoder, a, kind.a, 4) if in_registers else ()

        def tile(operand: Operand, of_type: str, i: int) -> _SharedTile:
            transposes = kind.a in ("f16", "bf16") and bool(_option(options, i, "imm-trans", (0, 1)))
            return _SharedTile(decoder, ins, operand, of_type, transposes)

        self.a = None if in_registers else tile(a, kind.a, 2)
        self.b = tile(b, kind.b, 2 if in_registers else 3)
        self.sign = _option(options, 0, "imm-scale", (1, -1)) * _option(options, 1, "imm-scale", (1, -1))
        self.scale_d = scale_d if isinstance(scale_d, Immediate) else decoder.flag(scale_d)
        self.operation = Operation(decoder.function, ins, frozenset(self.accumulators), frozenset(self.inputs))

    def _adds(self, first: Array) -> Array:
        """Whether D is added, for the warpgroups with these first lanes."""
        if isinstance(self.scale_d, Immediate):
            return np.full(first.shape, bool(self.scale_d.value))
        row, negated = self.scale_d
        return row[first] ^ negated

    def __call__(self) -> None:
        decoder, kind = self.decoder, self.kind
        numbers = self.warpgroups()
        if not len(numbers):
            return
        first = decoder.lanes.shape.warpgroups[numbers]
        warps = (first[:, None] // WARP + np.arange(4)).reshape(-1)
        tiles_b, index = self.b.read(first, kind.n)
        tiles_a: list[Array] = []
        if self.a is not None:
            tiles_a, index_a = self.a.read(first, _M)
            index = [np.concatenate([x.reshape(-1), y.reshape(-1)]) for x, y in zip(index_a, index, strict=True)]
        for number, places in zip(numbers.tolist(), index, strict=True):
            decoder.memory.pending.warpgroups.start(number, self.operation, places)
        if self.computed:
            if self.a is None:
                file = decoder.registers.files[32]
                a = a_matrices(register_values(file, [self.inputs], kind.a, warps), 16).reshape(len(first), _M, -1)
            else:
                a = self.a.numbers(tiles_a)
            b = self.b.numbers(tiles_b)
            self._accumulate(np.matmul(a, b.swapaxes(1, 2)) * self.sign, self._adds(first), warps)
        self._count(len(first))

    def _accumulate(self, product: Array, added: Array, warps: Array) -> None:
        """Adds (warpgroups, 64, N) to D where `added`."""
        kind, file = self.kind, self.decoder.registers.files[32]
        per_tile = 2 if kind.d == "f16" else 4
        rows = self.accumulators
        tiles = [rows[i : i + per_tile] for i in range(0, len(rows), per_tile)]
        sums = product.reshape(len(warps), 16, len(tiles), 8).transpose(2, 0, 1, 3)
        if added.any():
            old = c_matrices(register_values(file, tiles, kind.d, warps))
            sums = sums + (old if added.all() else np.where(added.repeat(4)[:, None, None], old, 0))
        write_d(file, tiles, warps, saturated(sums) if kind.saturates else sums, kind.d)

    def _count(self, warpgroups: int) -> None:
        counts, kind = self.decoder.memory.counters.counts, self.kind
        ELEMENT_TYPES[kind.a].count_operations(counts, 2 * _M * kind.n * kind.k * warpgroups, "wgmma")
        if counts is not None:
            rows = kind.n + (0 if self.a is None else _M)
            counts.bump("wgmma.shared_bytes", rows * ROW_BYTES * warpgroups)


@steps("wgmma")
def _wgmma(decoder: BlockDecoder, ins: Instruction) -> Step:
    """PTX ISA, sections `wgmma.mma_async`, `wgmma.fence`, `wgmma.commit_group` and `wgmma.wait_group`."""
    what, *marks = ins.modifiers
    if what == "mma_async":
        return _Multiplication(decoder, ins)
    if marks != ["sync", "aligned"]:
        raise UnsupportedFormError
    warpgroups, operations = _warpgroups(decoder, ins), decoder.memory.pending.warpgroups
    if what == "fence":
        return lambda: operations.fence(warpgroups())
    if what == "commit_group":
        return lambda: operations.commit(warpgroups())
    if what != "wait_group" or not isinstance(ins.operands[0], Immediate):
        raise UnsupportedFormError
    allowed, counts = int(ins.operands[0].value), decoder.memory.counters.counts

    def wait() -> None:
        numbers = warpgroups()
        operations.wait(numbers, allowed)
        if counts is not None:
            counts.bump("wgmma.waits", len(numbers))

    return wait
