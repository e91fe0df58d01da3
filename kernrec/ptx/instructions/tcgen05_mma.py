"""Matrix multiplication in tensor memory: `tcgen05.mma` and `tcgen05.commit`.

PTX ISA, sections "tcgen05.mma" and "Data path layout organization". A thread multiplies A (M x K), in shared or tensor
memory, with B (K x N) in shared memory, K being 32 bytes, into D (M x N) in tensor memory; an instruction descriptor
says of which types and extents. A cell of 32 bits holds an element of D, an f16 in its lower half. With M = 128, row r
is lane r; with M = 64, rows 16 w to 16 w + 15 are the first lanes of warp w's part. In tensor memory A lies in the
lanes of D's rows, packed.

`.cta_group::2` multiplies for a pair of thread blocks of a cluster: each has half of the rows of A and D and half of
the columns of B in its own memories, at the same addresses. With M = 128 the right half of each block's D lies in lanes
64 to 127.

Block-scaled kinds multiply each group of numbers along K with a scale factor of 8 bits of A and one of B. Those of row
r are bytes of column r / 32 in lane r % 32 of tensor memory, from the byte on that the instruction descriptor says.

Sums are as for `mma.sync` (`kernrec.ptx.instructions.matrix`). `mma.<type>` counts operations as there, numbers of 4
bits in `.kind::mxf4` and `::mxf4nvf4` as a quarter of f16 (NVIDIA Blackwell architecture brief, table of peak rates);
`tcgen05.<type>` the same ones again; `tcgen05.shared_bytes` what tensor cores read of shared memory, and
`tensor_memory.mma_bytes` what they read and write of tensor memory.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from kernrec.ptx.instructions.access import address_of
from kernrec.ptx.instructions.decoder import BlockDecoder
from kernrec.ptx.instructions.fragments import (
    ELEMENT_TYPES,
    NARROW_BITS,
    narrow_values,
    nibbles,
    saturated,
    scale_values,
)
from kernrec.ptx.instructions.instruction_descriptors import InstructionDescriptor, instruction_descriptor
from kernrec.ptx.instructions.mbarrier import Barriers
from kernrec.ptx.instructions.registry import Step, UnsupportedFormError
from kernrec.ptx.instructions.shared_tiles import ROW_BYTES, TileShape, read_tile
from kernrec.ptx.ir.operand import Address, Immediate, Operand, Vector, elements
from kernrec.ptx.ir.program import Instruction
from kernrec.ptx.state.errors import EmulationError, location
from kernrec.ptx.state.matrix_descriptors import DescriptorError, tcgen05_descriptor
from kernrec.ptx.state.tensor_memory import LANES, Cells, Operation
from kernrec.ptx.state.types import Array

_KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
_PACKED = ("mxf4", "mxf4nvf4")  # two numbers of 4 bits in a byte
_VECTORS = {"mxf8f6f4": 32, "mxf4": 32, "mxf4nvf4": 16}  # numbers that share a scale factor, where not stated
_STATED = {"1X": 32, "block32": 32, "2X": 32, "4X": 16, "block16": 16}


class _Form(NamedTuple):
    """The kind and the operands that the instruction states."""

    kind: str
    ctas: int
    """Thread blocks that multiply together."""

    vector: int
    """Numbers along K that share a scale factor; 0: none does."""

    operands: tuple[Operand, ...]
    """D, A, B and the instruction descriptor."""

    scales: tuple[Operand, ...]
    """Addresses of the scale factors of A and B."""

    disabled: tuple[Operand, ...]
    """Masks of the lanes that keep what they hold."""

    enable: Operand
    """Whether D is added."""

    shift: int
    """D is divided by 2 to this power before."""


def _form(ins: Instruction) -> _Form:
    marks = list(ins.modifiers[1:])
    if "sp" in marks or "ws" in marks or "ashift" in marks:
        raise UnsupportedFormError(f".{next(m for m in marks if m in ('sp', 'ws', 'ashift'))}")
    if marks[:1] != ["cta_group"] or marks[2:3] != ["kind"] or marks[3] not in _KINDS:
        raise UnsupportedFormError
    kind, ctas, rest = marks[3], int(marks[1]), marks[4:]
    scaled = kind in _VECTORS
    if ("block_scale" in rest) != scaled:
        raise UnsupportedFormError("block scaling")
    stated = next((m for m in rest if m in _STATED or m == "scale_vec"), None)
    stated = rest[rest.index("scale_vec") + 1] if stated == "scale_vec" else stated
    vector = 0 if not scaled else _STATED[stated] if stated else _VECTORS[kind]
    operands, options = ins.operands[:4], list(ins.operands[4:])
    scales = tuple(options.pop(0) for _ in range(2)) if scaled else ()
    masks = options.pop(0) if options and isinstance(options[0], Vector) else None
    disabled = () if masks is None else elements(masks)
    if disabled and len(disabled) != 4 * ctas:
        raise UnsupportedFormError(f"{len(disabled)} masks of lanes")
    enable = options.pop(0)
    shift = options.pop(0) if options else Immediate(0, "int")
    if options or not isinstance(shift, Immediate):
        raise UnsupportedFormError
    return _Form(kind, ctas, vector, operands, scales, disabled, enable, int(shift.value))


class _Issue(NamedTuple):
    """One multiplication of one thread."""

    lane: int
    blocks: tuple[int, ...]
    """Positions in the batch of the thread blocks, the first half of the rows first."""

    says: InstructionDescriptor


class Multiplication:
    """The step of a `tcgen05.mma`."""

    def __init__(self, decoder: BlockDecoder, ins: Instruction) -> None:
        self.form = form = _form(ins)
        self.decoder = decoder
        self.place = location(decoder.function, ins)
        d, a, b, says = form.operands
        self.running = decoder.running_numbers(ins)
        self.addresses = {"d": decoder.address(address_of(d))}
        self.rows = {"b": decoder.row(b, "b64"), "says": decoder.row(says, "u32")}
        if isinstance(a, Address):
            self.addresses["a"] = decoder.address(a)
        else:
            self.rows["a"] = decoder.row(a, "b64")
        for name, operand in zip(("scale_a", "scale_b"), form.scales, strict=False):
            self.addresses[name] = decoder.address(address_of(operand))
        self.masks = [decoder.row(operand, "u32") for operand in form.disabled]
        self.enable = form.enable if isinstance(form.enable, Immediate) else decoder.flag(form.enable)

    def _enabled(self, lane: int) -> bool:
        if isinstance(self.enable, Immediate):
            return bool(self.enable.value)
        row, negated = self.enable
        return bool(row[lane]) ^ negated

    def _address(self, name: str, lane: int) -> tuple[int, int]:
        """Lane and column of an address in tensor memory."""
        row, offset = self.addresses[name]
        address = int(row[lane]) + offset
        return address >> 16 & 0xFFFF, address & 0xFFFF

    def __call__(self) -> None:
        shape, form = self.decoder.lanes.shape, self.form
        for lane in self.running().tolist():
            try:
                says = instruction_descriptor(int(self.rows["says"][lane]), form.kind, form.ctas)
            except DescriptorError as error:
                raise EmulationError(f"{self.place}: {error}") from None
            block = int(shape.block_of[lane])
            if form.ctas == 2 and shape.cluster_blocks % 2:
                raise EmulationError(f"{self.place}: a pair of thread blocks in a cluster of {shape.cluster_blocks}")
            self._multiply(_Issue(lane, (block,) if form.ctas == 1 else (block & ~1, block | 1), says))

    def _multiply(self, issue: _Issue) -> None:
        form, memory, says = self.form, self.decoder.memory, issue.says
        rows = says.m // form.ctas
        targets = [self._cells_of_d(issue, block, rows) for block in issue.blocks]
        tiles: list[Array] = []
        read: list[Cells] = []
        a = np.concatenate([self._a(issue, block, rows, (tiles, read)) for block in issue.blocks])
        b = np.concatenate(
            [self._shared("b", issue, block, says.n // form.ctas, tiles) for block in issue.blocks], dtype=np.float64
        )
        if form.vector:
            a = a * self._scales("scale_a", issue, issue.blocks, says.m, read)
            b = b * self._scales("scale_b", issue, issue.blocks[:1], says.n, read)
        memory.pending.tensor.issue(issue.lane, Operation(self.place, read, targets), np.concatenate(tiles))
        product = np.matmul(a, b.T) * says.sign
        enabled = self._enabled(issue.lane)
        for i, cells in enumerate(targets):
            part = product[i * rows : (i + 1) * rows]
            old = memory.pending.tensor.memory.values(cells)
            if enabled:
                part = part + _numbers(old, says.d) * 2.0**-form.shift
            new = _bits(saturated(part) if says.saturates else part, says.d)
            if self.masks:
                new = np.where(self._disabled(issue.lane, i)[cells.lane], old, new)
            memory.pending.tensor.memory.put(cells, new)
        self._count(issue, sum(map(len, tiles)), enabled)

    def _disabled(self, lane: int, part: int) -> Array:
        """Lanes that keep what they hold; bool (128)."""
        words = np.array([row[lane] for row in self.masks[4 * part : 4 * part + 4]], np.uint32)
        return np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)

    def _cells_of_d(self, issue: _Issue, block: int, rows: int) -> Cells:
        """The cells of a block's part of D; (rows, N)."""
        lane, column = self._address("d", issue.lane)
        row, n = np.arange(rows)[:, None], np.arange(issue.says.n)
        if rows == LANES // 2 and len(issue.blocks) == 2:
            half = issue.says.n // 2
            return Cells(block, lane + row + n // half * 64, column + n % half + 0 * row)
        return Cells(block, lane + _lanes(row, rows) + 0 * n, column + n + 0 * row)

    def _a(self, issue: _Issue, block: int, rows: int, used: tuple[list[Array], list[Cells]]) -> Array:
        """A block's rows of A as float64 (rows, K); notes what is read of shared and of tensor memory in `used`."""
        if "a" not in self.addresses:
            return self._shared("a", issue, block, rows, used[0])
        if issue.says.a in NARROW_BITS and self.form.kind not in _PACKED:
            raise EmulationError(f"{self.place}: {issue.says.a} numbers in tensor memory are not supported")
        lane, column = self._address("a", issue.lane)
        columns = np.arange(ROW_BYTES // 4)
        row = np.arange(rows)[:, None]
        lanes = row if len(issue.blocks) == 2 else _lanes(row, rows)
        cells = Cells(block, lane + lanes + 0 * columns, column + columns + 0 * row)
        used[1].append(cells)
        words = np.ascontiguousarray(self.decoder.memory.pending.tensor.memory.values(cells))
        return self._operand(words.view(np.uint8), issue.says.a)

    def _shared(self, name: str, issue: _Issue, block: int, extent: int, tiles: list[Array]) -> Array:
        """A block's part of A or B in shared memory as float64 (extent, K); notes the bytes that are read."""
        kind = issue.says.a if name == "a" else issue.says.b
        size = 1 if kind in NARROW_BITS else ELEMENT_TYPES[kind].bytes
        mn_major = issue.says.mn_major[name == "b"]
        if mn_major and kind in NARROW_BITS:
            raise EmulationError(f"{self.place}: {kind} numbers must be K-major")
        shape = TileShape(extent, ROW_BYTES // size, size, mn_major)
        descriptor = tcgen05_descriptor, int(self.rows[name][issue.lane])
        elements_, index = read_tile(self.decoder.memory, self.place, descriptor, block, shape)
        tiles.append(index.reshape(-1))
        return self._operand(np.ascontiguousarray(elements_).view(np.uint8), kind)

    def _operand(self, data: Array, kind: str) -> Array:
        """Rows of 32 bytes as numbers, float64 (rows, K)."""
        if kind not in NARROW_BITS:
            element = ELEMENT_TYPES[kind]
            return element.values(data.view(element.dtype)).astype(np.float64)
        codes = nibbles(data) if self.form.kind in _PACKED else _padded_codes(kind, data)
        return narrow_values(kind, codes).astype(np.float64)

    def _scales(self, name: str, issue: _Issue, blocks: tuple[int, ...], extent: int, read: list[Cells]) -> Array:
        """Scale factors of all rows of A or columns of B, for each number along K; float64 (extent, K)."""
        depth = ROW_BYTES * (2 if self.form.kind in _PACKED else 1)
        count = depth // self.form.vector
        lane, column = self._address(name, issue.lane)
        scales = issue.says.scales
        assert scales is not None
        first = scales.first[name == "scale_b"]
        if first + count > 4:
            raise EmulationError(f"{self.place}: {count} scale factors from byte {first} of a column on")
        parts = []
        for block in blocks:
            row = np.arange(extent // len(blocks))
            cells = Cells(block, lane + row % 32, column + row // 32)
            read.append(cells)
            words = np.ascontiguousarray(self.decoder.memory.pending.tensor.memory.values(cells))
            parts.append(words.view(np.uint8).reshape(-1, 4)[:, first : first + count])
        factors = scale_values(scales.type, np.concatenate(parts))
        return np.repeat(factors, self.form.vector, axis=1)

    def _count(self, issue: _Issue, elements_read: int, enabled: bool) -> None:
        counts, says = self.decoder.memory.counters.counts, issue.says
        if counts is None:
            return
        # Numbers of 4 and 6 bits that are not packed take a byte each, as those of 8 bits.
        element = ELEMENT_TYPES["e4m3" if says.a in NARROW_BITS else says.a]
        depth = ROW_BYTES // element.bytes
        # Twice as many packed numbers take half the time each.
        element.count_operations(counts, 2 * says.m * says.n * depth, "tcgen05")
        counts.bump("tcgen05.shared_bytes", elements_read * element.bytes)
        in_tensor = says.m * ROW_BYTES if "a" in self.addresses else 0
        counts.bump("tensor_memory.mma_bytes", says.m * says.n * 4 * (1 + enabled) + in_tensor)


def _padded_codes(kind: str, rows: Array) -> Array:
    """The codes of rows of 16-byte pieces, each with 16 numbers of 4 or 6 bits and padding behind; (..., n) of each."""
    pieces = rows.reshape(*rows.shape[:-1], -1, 16)
    if kind == "e2m1":
        return nibbles(pieces[..., :8]).reshape(rows.shape)
    bits = np.unpackbits(pieces[..., :12], axis=-1, bitorder="little").reshape(*pieces.shape[:-1], 16, 6)
    numbers: Array = (bits << np.arange(6, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8).reshape(rows.shape)
    return numbers


def _lanes(row: Array, rows: int) -> Array:
    """The lane of each row: of 64 rows, 16 in each warp's part."""
    return row if rows == LANES else row // 16 * 32 + row % 16


def _numbers(cells: Array, kind: str) -> Array:
    """Elements of D from cells."""
    if kind == "f16":
        return (cells & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    return cells.view(np.float32 if kind == "f32" else np.int32).astype(np.float64)


def _bits(values: Array, kind: str) -> Array:
    """Cells from elements of D, rounded."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    if kind == "f32":
        return values.astype(np.float32).view(np.uint32)
    return values.astype(np.int64).astype(np.int32).view(np.uint32)


def commit(decoder: BlockDecoder, ins: Instruction) -> Step:
    """The step of `tcgen05.commit`."""
    memory = decoder.memory
    barriers = Barriers(decoder, ins, ins.operands[0])
    masks = decoder.row(ins.operands[1], "u16") if "multicast" in ins.modifiers else None
    running, blocks, stride = decoder.running_numbers(ins), decoder.lanes.shape.cluster_blocks, memory.cluster.stride

    def arrive(lane: int, place: int) -> None:
        memory.mbarriers.arrive(place, 1)

    def run() -> None:
        for lane, place in zip(*(part.tolist() for part in barriers.of(running())), strict=True):
            places = [place]
            if masks is not None:
                first = place // stride // blocks * blocks
                places = [(first + i) * stride + place % stride for i in range(blocks) if int(masks[lane]) >> i & 1]
            each = np.full(len(places), lane), np.array(places)
            memory.pending.tensor.commit(lane, memory.pending.engine, places, partial(barriers.each_of, each, arrive))

    return run
