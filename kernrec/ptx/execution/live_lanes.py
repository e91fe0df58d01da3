"""The lanes of a batch that have not exited."""

import numpy as np

from kernrec.ptx.state.batch import WARP
from kernrec.ptx.state.errors import BlocksDifferError
from kernrec.ptx.state.types import Array


def warps_of(mask: Array) -> int:
    """Warps with a lane in `mask`."""
    return int(np.count_nonzero(mask.reshape(-1, WARP).any(axis=1)))


class LiveLanes:
    """The lanes that have not exited, and how many lanes and warps they are."""

    __slots__ = ("count", "mask", "mask_or_none", "warps")

    def __init__(self, mask: Array) -> None:
        self.mask = mask
        self.count = int(np.count_nonzero(mask))
        self.mask_or_none = None if self.count == len(mask) else mask  # None: all lanes of the batch are live
        self.warps = warps_of(mask)


def check_same_way(mask: Array, lanes_per_block: int, blocks: int) -> None:
    """Raises `BlocksDifferError` where not the same lanes of each of the first `blocks` blocks of a batch run."""
    lanes = mask.reshape(-1, lanes_per_block)[:blocks]
    if not (lanes == lanes[0]).all():
        raise BlocksDifferError("the blocks of a batch do not take the same way")
