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

    @property
    def room(self) -> tuple[int, int]:
        """The least and the greatest number of bytes that it can be moved by within the buffer."""
        low, high = self.first + self.pattern.low, self.first + self.pattern.high + self.access.size
        return self.region.base - low, self.region.base + self.region.size - high

    def check_moved(self, move: int) -> None:
        """Raises `EmulationError` where it would be outside of the buffer, moved by some bytes."""
        back, on = self.room
        if not back <= move <= on:
            raise EmulationError(f"an access to {self.region.name}, moved by {move} bytes, is outside of it")


def turns_of(requests: list[GlobalRequest]) -> int:
    """Runs of basic blocks from the first to the last of some accesses."""
    steps = [request.step for request in requests]
    return max(steps) - min(steps) + 1 if steps else 0


def between(requests: list[GlobalRequest], following: list[GlobalRequest], times: int) -> list[Array]:
    """Where accesses are made `times` between some executed trips of a loop and the next, on a straight line.

    Args:
        requests: those of the executed trips.
        following: those of the next executed trips; an instruction may be missing, or run more often.
        times: how often.

    Returns:
        Bytes from each of `requests`; (times,) each, multiples of what a lane accesses, within the buffer.
    """
    places: dict[tuple[int, str], list[int]] = {}
    for request in reversed(following):
        places.setdefault((id(request.access), request.region.name), []).append(request.first)
    steps = np.arange(1, times + 1)
    offsets = []
    for request in requests:
        ahead = places.get((id(request.access), request.region.name))
        distance, size = (ahead.pop() - request.first if ahead else 0), request.access.size
        back, on = request.room
        moved = np.clip(abs(distance) * steps // (times + 1) * (1 if distance > 0 else -1), back, on)
        offsets.append(np.where(moved < 0, -(-moved // size), moved // size) * size)
    return offsets


def one_lane_per_word(request: GlobalRequest, blocks: Array, moved: Array) -> tuple[Array, Array]:
    """Blocks and bytes of the lanes of an access; of lanes that stay in one word together only the first.

    `moved`: by how many bytes it is repeated.
    """
    assert request.where is not None
    if (moved % 4).any():
        return blocks, request.where
    kept = np.unique((blocks << 40) + (request.where >> 2), return_index=True)[1]
    return blocks[kept], request.where[kept]
