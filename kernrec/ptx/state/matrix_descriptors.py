"""Descriptors of matrices in shared memory, and where the elements of a tile lie that one describes.

A descriptor is 64 bits (PTX ISA, sections "Matrix Descriptor Format" of `wgmma` and "Shared memory descriptor" of
`tcgen05`): start address in bits 0-13, leading dimension byte offset in 16-29, stride dimension byte offset in 32-45,
all three less their lowest four bits; base offset in 49-51; swizzle mode in 62-63 (`wgmma`) or 61-63 (`tcgen05`, which
also has the constant 1 in bits 46-48 and the mode of the leading offset in bit 52).

A tile is made of eight rows of as many bytes as the swizzle mode says (16 where there is none) one behind the other.
Rows run along K where a matrix is K-major, and along M or N where it is MN-major. In bytes, with W those of a row:

| | along the row | next eight rows |
|---|---|---|
| K-major, no swizzle | every 16 bytes: leading offset | stride offset |
| K-major, swizzled | contiguous | stride offset |
| MN-major, no swizzle | every 16 bytes: stride offset | leading offset |
| MN-major, swizzled | every W bytes: leading offset | stride offset |

Swizzling exchanges the 16-byte pieces of a row: bits 4 and up of an address are combined by exclusive or with as many
bits from bit 7 on, one for rows of 32 bytes, two for 64, three for 128. The pattern is bound to addresses: it begins at
a multiple of its size, or where the base offset says. `tcgen05` can also move pieces of 32 bytes in rows of 128, four
of which are then a pattern.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from kernrec.ptx.state.types import Array
from kernrec.util.light_dataclass import dataclass

_PERIOD = 1024  # bytes after which every swizzle pattern repeats


class DescriptorError(ValueError):
    """A descriptor that describes no matrix; the text says what of it."""


@dataclass(frozen=True)
class MatrixDescriptor:
    """Where a matrix lies in shared memory."""

    start: int
    """Address of its first element."""

    leading: int
    """Leading dimension byte offset."""

    stride: int
    """Stride dimension byte offset."""

    base_offset: int
    """Where the swizzle pattern begins: bits 7 to 9 of that address."""

    row: int
    """Bytes of a row; more than 16: its pieces are exchanged."""

    piece: int = 16
    """Bytes that stay together."""

    @property
    def rows(self) -> int:
        """Rows that lie one behind the other."""
        return 4 if self.piece == 32 else 8


_WGMMA_ROWS = {0: 16, 1: 128, 2: 64, 3: 32}
_TCGEN05_ROWS = {0: (16, 16), 1: (128, 32), 2: (128, 16), 4: (64, 16), 6: (32, 16)}


def _bits(value: int, low: int, count: int) -> int:
    return value >> low & (1 << count) - 1


@lru_cache(1024)
def wgmma_descriptor(bits: int) -> MatrixDescriptor:
    """The descriptor of an operand of `wgmma.mma_async`.

    Raises:
        DescriptorError: a reserved bit is set, or there is a base offset without a swizzle mode.
    """
    _check_reserved(bits, ((14, 2), (30, 2), (46, 3), (52, 10)))
    return _descriptor(bits, _WGMMA_ROWS[_bits(bits, 62, 2)])


@lru_cache(1024)
def tcgen05_descriptor(bits: int) -> MatrixDescriptor:
    """The descriptor of an operand of `tcgen05.mma` or `tcgen05.cp`.

    Raises:
        DescriptorError: a reserved bit is set, bits 46 to 48 are not 1, the mode of swizzling does not exist, or the
            leading offset is an address, which the emulator does not support.
    """
    _check_reserved(bits, ((14, 2), (30, 2), (53, 8)))
    if _bits(bits, 46, 3) != 1:
        raise DescriptorError(f"bits 46 to 48 of matrix descriptor 0x{bits:016x} are {_bits(bits, 46, 3)}, not 1")
    if _bits(bits, 52, 1):
        raise DescriptorError(f"the leading offset of matrix descriptor 0x{bits:016x} is an address: not supported")
    mode = _bits(bits, 61, 3)
    if mode not in _TCGEN05_ROWS:
        raise DescriptorError(f"matrix descriptor 0x{bits:016x} has swizzle mode {mode}, which does not exist")
    return _descriptor(bits, *_TCGEN05_ROWS[mode])


def _check_reserved(bits: int, fields: tuple[tuple[int, int], ...]) -> None:
    for low, count in fields:
        if _bits(bits, low, count):
            which = f"bits {low} to {low + count - 1}"
            raise DescriptorError(f"{which} of matrix descriptor 0x{bits:016x} are reserved and must be 0")


def _descriptor(bits: int, row: int, piece: int = 16) -> MatrixDescriptor:
    start, leading, stride = (_bits(bits, low, 14) << 4 for low in (0, 16, 32))
    base_offset = _bits(bits, 49, 3)
    if base_offset and row == 16:
        raise DescriptorError(f"matrix descriptor 0x{bits:016x} has a base offset and no swizzling")
    return MatrixDescriptor(start, leading, stride, base_offset, row, piece)


def tile_addresses(
    descriptor: MatrixDescriptor, extent: int, depth: int, element_bytes: int, mn_major: bool = False
) -> Array:
    """Shared-memory addresses of the elements of a tile; int64, (extent, depth).

    Args:
        descriptor: where it lies.
        extent: elements along M or N.
        depth: elements along K.
        element_bytes: bytes of an element.
        mn_major: whether rows run along M or N.
    """
    phase = descriptor.start % _PERIOD
    pattern = _tile(replace(descriptor, start=phase), extent, depth, element_bytes, mn_major)
    addresses: Array = pattern + (descriptor.start - phase)
    return addresses


@lru_cache(256)
def _tile(descriptor: MatrixDescriptor, extent: int, depth: int, element_bytes: int, mn_major: bool) -> Array:
    """`tile_addresses` of a start address below the period."""
    row, leading, stride = descriptor.row, descriptor.leading, descriptor.stride
    along, across = np.arange(depth) * element_bytes, np.arange(extent)
    if mn_major:
        along, across = np.arange(extent) * element_bytes, np.arange(depth)
    if row == 16:
        next_piece, next_rows = (stride, leading) if mn_major else (leading, stride)
        behind = along // 16 * next_piece + along % 16
    else:
        next_rows = stride
        behind = along // row * leading + along % row if mn_major else along
    below = across // descriptor.rows * next_rows + across % descriptor.rows * row
    addresses = behind[:, None] + below if mn_major else below[:, None] + behind
    addresses += descriptor.start
    piece = descriptor.piece
    if row > 16:
        turn = (addresses >> 7) - descriptor.base_offset & row // piece - 1
        addresses ^= turn * piece
    addresses.flags.writeable = False
    return addresses
