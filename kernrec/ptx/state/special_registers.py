"""The special registers (`%tid.x`, `%laneid`, ...): which there are, and their values in a batch of thread blocks."""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.ptx.state.batch import WARP, Lanes
from kernrec.ptx.state.types import Array

_COORDINATES = ("%tid", "%ntid", "%ctaid", "%nctaid")
_CLUSTER_COORDINATES = ("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid")
_OF_CLUSTER = ("%is_explicit_cluster", "%cluster_ctarank", "%cluster_nctarank")
_WIDE = ("%clock64", "%globaltimer")
_OF_LAUNCH = (
    *("%dynamic_smem_size", "%total_smem_size", "%envreg1", "%envreg2"),
    *(f"%reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1")),
)
FIXED = {
    **{"%smid": 0, "%nsmid": 1, "%gridid": 0, "%clock": 0, "%clock_hi": 0, "%clock64": 0, "%globaltimer": 0},
    # The carry of extended-precision arithmetic, and the next one while it is being computed.
    **{"%carry": 0, "%carry_next": 0},
}
"""Those that have one value in every launch."""


def _bit(thread: Array) -> Array:
    bit: Array = np.uint64(1) << (thread % WARP).astype(np.uint64)
    return bit


_ONE, _ALL = np.uint64(1), np.uint64(0xFFFFFFFF)
_OF_LANE: dict[str, Callable[[Array], Array]] = {
    "%laneid": lambda thread: thread % WARP,
    "%warpid": lambda thread: thread // WARP,
    "%lanemask_eq": _bit,
    "%lanemask_lt": lambda thread: _bit(thread) - _ONE,
    "%lanemask_le": lambda thread: _bit(thread) - _ONE | _bit(thread),
    "%lanemask_ge": lambda thread: _ALL ^ (_bit(thread) - _ONE),
    "%lanemask_gt": lambda thread: _ALL ^ (_bit(thread) - _ONE | _bit(thread)),
}
"""Those that follow from a thread's number in its block."""

_NAMES = frozenset({*_OF_LAUNCH, *FIXED, *_OF_LANE, *_OF_CLUSTER, "%nwarpid"})


def is_special(name: str) -> bool:
    """Whether a name is that of a special register that the emulator has."""
    base, dot, axis = name.partition(".")
    return base in (*_COORDINATES, *_CLUSTER_COORDINATES) and axis in ("x", "y", "z") if dot else name in _NAMES


def special_width(name: str) -> int:
    """Bits of a special register."""
    return 1 if name == "%is_explicit_cluster" else 64 if name in _WIDE else 32


def special_value(name: str, lanes: Lanes, launch_values: Mapping[str, int]) -> Array | int:
    """The value of a special register in each lane of the present batch, or in all of them.

    Args:
        name: one that `is_special`.
        lanes: the batch.
        launch_values: of the registers that the launch decides, such as `%dynamic_smem_size`.
    """
    shape = lanes.shape
    base, dot, axis = name.partition(".")
    if dot:
        number = "xyz".index(axis)
        if base in _CLUSTER_COORDINATES:
            return _cluster_coordinate(base, lanes, number)
        if base == "%tid":
            return _along(shape.numbers % shape.lanes_per_block, shape.block, number)
        if base == "%ctaid":
            return _along(lanes.block_numbers, shape.grid, number).repeat(shape.lanes_per_block)
        return (shape.block if base == "%ntid" else shape.grid)[number]
    if name == "%nwarpid":
        return shape.lanes_per_block // WARP
    if name in _OF_CLUSTER:
        if name == "%cluster_ctarank":
            return shape.cluster_and_rank(lanes.block_numbers)[1].repeat(shape.lanes_per_block)
        return shape.cluster_blocks if name == "%cluster_nctarank" else int(shape.cluster_blocks > 1)
    if name in _OF_LANE:
        return _OF_LANE[name](shape.numbers % shape.lanes_per_block)
    return launch_values[name] if name in _OF_LAUNCH else FIXED[name]


def _cluster_coordinate(base: str, lanes: Lanes, number: int) -> Array | int:
    """A coordinate along an axis of the cluster of each lane, or of its block there, or an extent of these."""
    shape = lanes.shape
    clusters = tuple(extent // along for extent, along in zip(shape.grid, shape.cluster, strict=True))
    if base in ("%nclusterid", "%cluster_nctaid"):
        return (clusters if base == "%nclusterid" else shape.cluster)[number]
    cluster, rank = shape.cluster_and_rank(lanes.block_numbers)
    x, y, z = clusters
    coordinate = _along(cluster, (x, y, z), number) if base == "%clusterid" else _along(rank, shape.cluster, number)
    return coordinate.repeat(shape.lanes_per_block)


def _along(linear: Array, extents: tuple[int, int, int], axis: int) -> Array:
    """The coordinate along an axis of linear numbers, x fastest."""
    coordinates: Array = linear // (1, extents[0], extents[0] * extents[1])[axis]
    return coordinates if axis == 2 else coordinates % extents[axis]
