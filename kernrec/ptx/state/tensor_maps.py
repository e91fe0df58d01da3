"""Tensor maps: how a tensor lies in global memory, and which box of it a copy moves in which order.

The driver's layout of the 128 bytes of a map is not published (CUDA Driver API, `cuTensorMapEncodeTiled`). The layout
here is ours, so a map has to be built by `TensorMap` for the emulator, or by `tensormap.replace` in the kernel: the
address (8 bytes), a mark (4), rank, element type, interleave, swizzle, fill (1 each), 3 empty, five extents (4 each),
four strides in bytes (8 each), five extents of the box (2 each), five element strides (2 each). Numbers of types and
modes are those of `tensormap.replace` (PTX ISA, section 9.7.9.27.1.1).
"""

import struct
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass

MAP_BYTES = 128
_LAYOUT = struct.Struct("<Q4s5B3x5I4x4Q5H5H")
_MARK = b"tile"
MOST_RANK = 5

ELEMENT_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
"""Names of the element types, by their number."""
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
_NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f32.ftz": 0x7FFFFFFF, "tf32": 0x7FFFFFFF}
SWIZZLES = (0, 32, 64, 128)
"""Bytes of the span in which 16-byte pieces change places, by the number of the mode."""
_MOST_BOX = 256


class TensorMapError(Exception):
    """A map that no copy can use; the text says why."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory, and the box of it that one copy moves; dimension 0 is the one that lies in a row."""

    address: int | str
    """Where the tensor begins, a multiple of 16 bytes; as an argument of a launch, the name of a buffer."""

    type: str
    """Type of the elements: one of `ELEMENT_TYPES`."""

    extents: tuple[int, ...]
    """Elements along each dimension; one to five."""

    strides: tuple[int, ...]
    """Bytes from one element to the next along dimensions 1 and on: multiples of 16."""

    box: tuple[int, ...]
    """Elements of the box along each dimension, at most 256."""

    swizzle: int = 0
    """Span in bytes in which 16-byte pieces of shared memory change places: 0 (none), 32, 64 or 128."""

    element_strides: tuple[int, ...] = ()
    """Along each dimension, every how many elements one is moved; empty: all are."""

    fill_nan: bool = False
    """Whether what is outside of the tensor reads as NaN, not as zero."""

    interleave: int = 0
    """Bytes of channels that lie together: 0 (none); layouts with 16 and 32 are refused when they are used."""

    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[ELEMENT_TYPES.index(self.type)]

    @property
    def steps(self) -> tuple[int, ...]:
        """The element strides, all of them."""
        return self.element_strides or (1,) * self.rank

    @property
    def moved(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy moves, those outside of the tensor too."""
        return int(np.prod(self.moved)) * self.element_bytes

    @property
    def fill(self) -> int:
        """Bits of an element outside of the tensor."""
        return _NAN_BITS.get(self.type, 0) if self.fill_nan else 0

    def encode(self, address: int) -> bytes:
        """The map's 128 bytes for a tensor at an address.

        Raises:
            UsageError: the map is one that no copy can use.
        """
        if self.type not in ELEMENT_TYPES or self.swizzle not in SWIZZLES or self.interleave not in (0, 16, 32):
            raise UsageError(
                f"tensor map of {self.type} with swizzle {self.swizzle}: elements are {', '.join(ELEMENT_TYPES)},"
                f" swizzles {', '.join(map(str, SWIZZLES))}"
            )
        numbers = (*_padded(self.extents, 5), *_padded(self.strides, 4), *_padded(self.box, 5), *_padded(self.steps, 5))
        modes = ELEMENT_TYPES.index(self.type), self.interleave // 16, SWIZZLES.index(self.swizzle), int(self.fill_nan)
        head = (address, _MARK, max(self.rank - 1, 0), *modes)
        try:
            raw = _LAYOUT.pack(*head, *numbers).ljust(MAP_BYTES, b"\0")
            decode(raw).check()
        except (TensorMapError, struct.error) as error:
            raise UsageError(f"tensor map of {self.address}: {error}") from None
        return raw

    def check(self) -> None:
        """Refuses a map that no copy can use (CUDA Driver API, `cuTensorMapEncodeTiled`).

        Raises:
            TensorMapError: saying why.
        """
        assert isinstance(self.address, int)
        if self.interleave:
            raise TensorMapError(f"interleave of {self.interleave} bytes is not emulated")
        if self.address % 16 or not self.address:
            raise TensorMapError(f"address 0x{self.address:x} is not a multiple of 16")
        if not all(1 <= extent < 1 << 32 for extent in self.extents):
            raise TensorMapError(f"extents {self.extents} are not from 1 to 2^32 - 1")
        if any(stride % 16 or not 0 <= stride < 1 << 40 for stride in self.strides):
            raise TensorMapError(f"strides of {self.strides} bytes are not multiples of 16 below 2^40")
        if not all(1 <= extent <= _MOST_BOX for extent in self.box):
            raise TensorMapError(f"box {self.box} is not of 1 to {_MOST_BOX} elements along each dimension")
        if not all(1 <= step <= 8 for step in self.steps):
            raise TensorMapError(f"element strides {self.steps} are not from 1 to 8")
        row = self.moved[0] * self.element_bytes
        if row % 16:
            raise TensorMapError(f"a row of the box has {row} bytes, not a multiple of 16")
        if self.swizzle and row > self.swizzle:
            raise TensorMapError(f"a row of the box has {row} bytes, more than the swizzle of {self.swizzle}")

    def elements(self, corner: tuple[int, ...]) -> tuple[Array, Array | None]:
        """The elements of the box whose first element has these coordinates, dimension 0 fastest.

        Returns:
            Bytes of each from the begin of the tensor, and which of them are inside of it (None: all).
        """
        offsets = np.zeros(1, np.int64)
        inside: Array | None = None
        for axis in reversed(range(self.rank)):
            places = corner[axis] + np.arange(self.moved[axis], dtype=np.int64) * self.steps[axis]
            stride = self.strides[axis - 1] if axis else self.element_bytes
            offsets = (offsets[:, None] + places * stride).reshape(-1)
            within = (places >= 0) & (places < self.extents[axis])
            if inside is None:
                inside = None if within.all() else within
                if inside is not None:
                    inside = np.tile(inside, len(offsets) // len(within))
            elif within.all():
                inside = np.repeat(inside, len(within))
            else:
                inside = (inside[:, None] & within).reshape(-1)
        return offsets, inside

    def rows(self, column: int, rows: tuple[int, ...]) -> tuple[Array, Array | None]:
        """As `elements`, of rows that need not follow one another (`.tile::gather4`, `.tile::scatter4`)."""
        single_row = replace(self, box=(self.box[0], 1))
        offsets, inside = zip(*(single_row.elements((column, row)) for row in rows), strict=True)
        present = [np.ones(self.moved[0], np.bool_) if part is None else part for part in inside]
        return np.concatenate(offsets), np.concatenate(present)

    @property
    def row_pitch(self) -> int:
        """Bytes from one row of the box to the next in shared memory: with a swizzle, its whole span (CUDA C++
        Programming Guide, "TMA swizzle": memory is needed for the whole span where a row is shorter)."""
        return self.swizzle or self.moved[0] * self.element_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the first to the last of the box."""
        return int(np.prod(self.moved[1:], dtype=np.int64)) * self.row_pitch

    def shared_offsets(self, start: int) -> Array:
        """Where the elements of a box lie in shared memory whose first byte has address `start`, in bytes from there.

        Pieces of 16 bytes change places by the address: the bits of a piece within the span of the swizzle are
        combined by exclusive or with those of the 128-byte row (PTX ISA, section 5.5.7).
        """
        key = start & 1023
        offsets: Array | None = self.memo.get(key)
        if offsets is None:
            rows = int(np.prod(self.moved[1:], dtype=np.int64))
            within = np.arange(self.moved[0], dtype=np.int64) * self.element_bytes
            addresses = start + (np.arange(rows)[:, None] * self.row_pitch + within).reshape(-1)
            offsets = self.memo[key] = swizzled(addresses, self.swizzle) - start
        return offsets


@lru_cache(256)
def four_rows(tensor: TensorMap) -> TensorMap:
    """The map whose box is four of a map's rows."""
    return replace(tensor, box=(tensor.box[0], 4), memo={})


def swizzled(addresses: Array, span: int) -> Array:
    """Addresses in shared memory under a swizzle of `span` bytes: 0, 32, 64 or 128 (PTX ISA, section 5.5.7)."""
    if not span:
        return addresses
    result: Array = addresses ^ (addresses >> 3 & span - 16)
    return result


@lru_cache(256)
def decode(raw: bytes) -> TensorMap:
    """The map that 128 bytes of memory hold.

    Raises:
        TensorMapError: they are no map of ours.
    """
    address, mark, rank, kind, interleave, swizzle, fill, *numbers = _LAYOUT.unpack(raw[: _LAYOUT.size])
    if mark != _MARK:
        raise TensorMapError("these 128 bytes are no tensor map (build one with kernrec.ptx.TensorMap)")
    rank += 1
    if rank > MOST_RANK or kind >= len(ELEMENT_TYPES) or swizzle >= len(SWIZZLES) or interleave > 2 or fill > 1:
        modes = f"swizzle {swizzle}, interleave {interleave}, fill {fill}"
        raise TensorMapError(f"rank {rank}, element type {kind}, {modes}")
    extents, strides, box, steps = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:]
    return TensorMap(
        address,
        ELEMENT_TYPES[kind],
        tuple(extents[:rank]),
        tuple(strides[: rank - 1]),
        tuple(box[:rank]),
        SWIZZLES[swizzle],
        tuple(steps[:rank]),
        bool(fill),
        interleave * 16,
    )


_FIELDS = {
    "global_address": (0, 8, 0), "rank": (12, 1, 0), "elemtype": (13, 1, 0), "interleave_layout": (14, 1, 0),
    "swizzle_mode": (15, 1, 0), "fill_mode": (16, 1, 0), "global_dim": (20, 4, 4), "global_stride": (44, 8, 8),
    "box_dim": (76, 2, 2), "element_stride": (86, 2, 2),
}  # fmt: skip
"""By field of `tensormap.replace`: its first byte in the map, its bytes, and bytes from one dimension to the next."""


def replaced(raw: bytes, name: str, ordinal: int, value: int) -> bytes:
    """The map with one field replaced (PTX ISA, section 9.7.9.27.1.1: the rank is given less one).

    Raises:
        TensorMapError: no such field or dimension.
    """
    if name not in _FIELDS or not 0 <= ordinal < (4 if name == "global_stride" else MOST_RANK):
        raise TensorMapError(f"there is no {name} of dimension {ordinal}")
    first, size, pitch = _FIELDS[name]
    first += ordinal * pitch
    data = bytearray(raw)
    data[8:12] = _MARK
    data[first : first + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data)


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*values, *(0,) * length)[:length]


_WRITTEN, _RELEASED = "written", "released"


class MapFences:
    """The tensor maps in global memory that a kernel wrote in a batch, and their fences.

    Copies read maps through a proxy of their own: what threads wrote is seen there after a release by the writer and an
    acquire of that map by the block that uses it (PTX ISA, section 9.7.13.6, `fence.proxy.tensormap`).
    """

    def __init__(self) -> None:
        self._states: dict[int, str] = {}
        self._acquired: set[tuple[int, int]] = set()  # (address, block)

    def start_batch(self) -> None:
        """Forgets the last batch."""
        self._states.clear()
        self._acquired.clear()

    def write(self, address: int) -> None:
        """A thread writes a map, without a fence."""
        self._states[address] = _WRITTEN
        self._forget(address)

    def release(self) -> None:
        """A thread releases what was written."""
        self._states = dict.fromkeys(self._states, _RELEASED)

    def write_released(self, address: int) -> None:
        """A thread writes and releases a map at once (`tensormap.cp_fenceproxy`)."""
        self._states[address] = _RELEASED
        self._forget(address)

    def acquire(self, address: int, block: int) -> None:
        """A thread of a block acquires a map."""
        if self._states.get(address) == _RELEASED:
            self._acquired.add((address, block))

    def missing(self, address: int, block: int) -> str:
        """The fence that a block lacks before its copies may use a map; empty: none."""
        state = self._states.get(address)
        if state is None or (address, block) in self._acquired:
            return ""
        return f"fence.proxy.tensormap::generic.{'release' if state == _WRITTEN else 'acquire'}"

    def _forget(self, address: int) -> None:
        self._acquired = {key for key in self._acquired if key[0] != address}
