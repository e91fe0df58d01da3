"""Shared memory of the blocks of a cluster: which block's memory an address is in (PTX ISA, section 5.1.7.1).

An address of a block's own shared memory is an address of the cluster's, too. `mapa` adds one more than the rank of
another block, shifted by `RANK_SHIFT`: what lies above on the machine is not told.
"""

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.batch import BatchShape
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.selection import Selection, signed
from kernrec.ptx.state.types import Array

RANK_SHIFT = 24
"""Shared memory of a block has fewer bytes than 2 to this power."""
RANK_BITS = 5
"""Bits of a rank, plus one, above that."""
_OFFSET = (1 << RANK_SHIFT) - 1


class ClusterMemory:
    """Shared memory of the batch by places: the bytes of its first block, then those of the second, and so on."""

    def __init__(self, shape: BatchShape, own: Region) -> None:
        """`own`: shared memory as each block sees its own."""
        self._shape = shape
        self.size = own.size
        self.stride = len(own.bytes) // shape.blocks
        """From the memory of one block to that of the next."""
        self.region = Region("shared memory of the cluster", "shared", own.bytes, len(own.bytes))
        """Shared memory by places."""

    def absolute(self, access: Access, selection: Selection) -> Array | None:
        """The place of each address less the offset of the access; None where one is in no block of the cluster."""
        shape, stride = self._shape, self.stride
        addresses = signed(selection.addresses) + access.offset
        lanes = shape.numbers if selection.lanes is None else selection.lanes
        position = shape.block_of[lanes]
        rank = (addresses >> RANK_SHIFT) - 1
        offset = addresses & _OFFSET
        if (rank >= shape.cluster_blocks).any() or (offset + access.size > self.size).any() or (rank < -1).any():
            return None
        there = position - position % shape.cluster_blocks + rank
        places = np.where(rank < 0, position, there) * stride + offset - access.offset
        return places.astype(np.int64).view(np.uint64)

    def rank(self, place: int) -> int:
        """The rank in its cluster of the block in whose memory a place is."""
        return place // self.stride % self._shape.cluster_blocks

    def name(self, place: int) -> str:
        """A place as errors name it."""
        of_block = f" of the cluster's block {self.rank(place)}" if self._shape.cluster_blocks > 1 else ""
        return f"byte {place % self.stride} of shared memory{of_block}"
