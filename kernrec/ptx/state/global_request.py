"""One counted access to global memory, kept so that it can be counted again elsewhere in its buffer."""

from dataclasses import dataclass

import numpy as np

from kernrec.ptx.state.access import Access
from kernrec.ptx.state.access_cost import AccessPattern
from kernrec.ptx.state.errors import EmulationError
from kernrec.ptx.state.region import Region
from kernrec.ptx.state.types import Array


@dataclass(frozen=True, slots=True)
class GlobalRequest:
    """One access to a buffer, as it was counted."""

    region: Region
    """The buffer."""

    kind: str
    """`read`, `write` or `atomic`."""

    access: Access
    """What the instruction states."""

    pattern: AccessPattern
    """Relative addresses."""

    first: int
    """Address that the pattern is relative to."""

    lanes: Array | None
    """Numbers of the lanes; None: all of the batch."""

    where: Array | None
    """Byte of the buffer that each lane accesses; None: nobody asked for it."""

    step: int
    """Which run of a basic block it was part of."""

    @property
    def shape(self) -> tuple[object, ...]:
        """What is the same of another one that does the same elsewhere in the buffer."""
        return self.region.name, self.kind, self.access.size, self.pattern

    def check_moved(self, move: int) -> None:
        """Raises `EmulationError` where it would be outside of the buffer, moved by some bytes."""
        region, first = self.region, self.first + move
        end = first + self.pattern.high + self.access.size
        if first + self.pattern.low < region.base or end > region.base + region.size:
            raise EmulationError(f"an access to {region.name}, moved by {move} bytes, is outside of it")


def one_lane_per_word(request: GlobalRequest, blocks: Array, move: int) -> tuple[Array, Array]:
    """Blocks and bytes of the lanes of an access; of lanes that stay in one word together only the first."""
    assert request.where is not None
    if move % 4:
        return blocks, request.where
    kept = np.unique((blocks << 40) + (request.where >> 2), return_index=True)[1]
    return blocks[kept], request.where[kept]
