"""Tiles that tensor cores read from shared memory by their descriptors: `wgmma`, `tcgen05.mma` and `tcgen05.cp`."""

from collections.abc import Callable
from typing import NamedTuple

from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.matrix_descriptors import DescriptorError, MatrixDescriptor, tile_addresses
from kernrec.ptx.state.memory import Memory
from kernrec.ptx.state.types import Array

ROW_BYTES = 32
"""Bytes of A and B along K that a multiplication reads."""


class TileShape(NamedTuple):
    """The extents of a tile that an instruction reads."""

    extent: int
    """Elements along M or N; `depth`: along K."""

    depth: int
    size: int
    """Bytes of an element."""

    mn_major: bool = False
    """Whether rows run along M or N."""


def read_tile(
    memory: Memory,
    place: str,
    descriptor: tuple[Callable[[int], MatrixDescriptor], int],
    block: int,
    shape: TileShape,
) -> tuple[Array, Array]:
    """Reads a tile.

    Args:
        memory: that the tile lies in.
        place: the instruction, for messages.
        descriptor: how its bits are read, and the bits.
        block: position in the batch of the block in whose shared memory the tile lies.
        shape: of the tile.

    Returns:
        Its elements as unsigned integers (extent, depth), and bytes of the batch's shared memory: the first of each.

    Raises:
        EmulationError: a descriptor that is none, or a tile beyond the shared memory of the block.
    """
    shared, size = memory.shared, shape.size
    decode, bits = descriptor
    try:
        addresses = tile_addresses(decode(bits), shape.extent, shape.depth, size, shape.mn_major)
    except DescriptorError as error:
        raise EmulationError(f"{place}: {error}") from None
    last = int(addresses.max()) + size
    if last > shared.size:
        raise EmulationError(
            f"{place}: matrix descriptor 0x{bits:016x} describes {shape.extent} rows up to byte {last - 1} of shared "
            f"memory, of which the block has {shared.size} bytes"
        )
    index = addresses + memory.cluster.stride * block
    return shared.views[size][index >> (size.bit_length() - 1)], index
