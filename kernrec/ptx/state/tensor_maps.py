"""Define tensor maps: the layout of a tensor in global memory, and the box that one copy moves.

NVIDIA does not publish how the driver lays out a map's 128 bytes (CUDA Driver API, `cuTensorMapEncodeTiled`). So maps
for the emulator must come from `TensorMap`, or from `tensormap.replace` in the kernel. The layout is: address (8
bytes), mark (4), rank, element type, interleave, swizzle, fill (1 each), 3 empty, five extents (4 each), four strides
in bytes (8 each), five extents of the box (2 each), five element strides (2 each). Types and modes have the numbers of
`tensormap.replace` (PTX ISA, section 9.7.9.27.1.1).
"""

import struct

from kernrec.errors import UsageError
from kernrec.util.light_dataclass import dataclass

MAP_BYTES = 128
_LAYOUT = struct.Struct("<Q4s5B3x5I4x4Q5H5H")
_MARK = b"tile"
MOST_RANK = 5

ELEMENT_TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz")
"""Names of the element types, by number."""
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
SWIZZLES = (0, 32, 64, 128)
"""Span in bytes in which 16-byte pieces are permuted, by number of the swizzle mode."""
_MOST_BOX = 256


class TensorMapError(Exception):
    """No copy can use the tensor map; the message gives the reason."""


@dataclass(frozen=True)
class TensorMap:
    """Tensor in global memory, and the box that one copy moves; dimension 0 is contiguous."""

    address: int | str
    """Start of the tensor, a multiple of 16 bytes; the name of a buffer in a launch argument."""
    type: str
    """Element type, one of `ELEMENT_TYPES`."""
    extents: tuple[int, ...]
    """Elements along each of one to five dimensions."""
    strides: tuple[int, ...]
    """Bytes between elements along dimensions 1 and higher, multiples of 16."""
    box: tuple[int, ...]
    """Elements of the box along each dimension, at most 256."""
    swizzle: int = 0
    """Span in bytes in which 16-byte pieces of shared memory are permuted: 0 (none), 32, 64 or 128."""
    element_strides: tuple[int, ...] = ()
    """Element stride along each dimension; empty for 1 everywhere."""
    fill_nan: bool = False
    """Whether elements outside of the tensor read as NaN instead of zero."""
    interleave: int = 0
    """Bytes of interleaved channels: 0 (none); a copy rejects 16 and 32."""

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[ELEMENT_TYPES.index(self.type)]

    @property
    def steps(self) -> tuple[int, ...]:
        """Element strides of all dimensions."""
        return self.element_strides or (1,) * self.rank

    def encode(self, address: int) -> bytes:
        """Return the map's 128 bytes for a tensor at an address.

        Raises:
            UsageError: no copy can use the map.
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
            self._check(address)
        except (TensorMapError, struct.error) as error:
            raise UsageError(f"tensor map of {self.address}: {error}") from None
        return raw

    def _check(self, address: int) -> None:
        """Raise if no copy can use the map (CUDA Driver API, `cuTensorMapEncodeTiled`).

        Raises:
            TensorMapError: no copy can use the map; the message gives the reason.
        """
        rank = self.rank
        strides, box, steps = (_padded(v, MOST_RANK) for v in (self.strides, self.box, self.steps))
        strides, box, steps = strides[: rank - 1], box[:rank], steps[:rank]
        if not 1 <= rank <= MOST_RANK:
            raise TensorMapError(f"rank {rank} is not from 1 to {MOST_RANK}")
        if self.interleave:
            raise TensorMapError(f"interleave of {self.interleave} bytes is not emulated")
        if address % 16 or not address:
            raise TensorMapError(f"address 0x{address:x} is not a multiple of 16")
        if not all(1 <= extent < 1 << 32 for extent in self.extents):
            raise TensorMapError(f"extents {self.extents} are not from 1 to 2^32 - 1")
        if any(stride % 16 or not 0 <= stride < 1 << 40 for stride in strides):
            raise TensorMapError(f"strides of {strides} bytes are not multiples of 16 below 2^40")
        if not all(1 <= extent <= _MOST_BOX for extent in box):
            raise TensorMapError(f"box {box} is not of 1 to {_MOST_BOX} elements along each dimension")
        if not all(1 <= step <= 8 for step in steps):
            raise TensorMapError(f"element strides {steps} are not from 1 to 8")
        row = -(-box[0] // steps[0]) * self.element_bytes
        if row % 16:
            raise TensorMapError(f"a row of the box has {row} bytes, not a multiple of 16")
        if self.swizzle and row > self.swizzle:
            raise TensorMapError(f"a row of the box has {row} bytes, more than the swizzle of {self.swizzle}")


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*values, *(0,) * length)[:length]
