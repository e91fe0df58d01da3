"""How many bytes a launch moves between L2 and DRAM, from the order in which it walks its tiles.

Blocks that run at the same time share what they load: a wave of W blocks touches, of each tensor, as many tiles as
the walk spreads over the axes that select them. Between waves a tensor is found again in L2 as far as the working
set fits there.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Array = np.ndarray | float


def distinct_tiles(order: Sequence[tuple[str, Array]], axes: frozenset[str], wave: Array) -> tuple[Array, Array]:
    """Tiles selected by `axes` that exist, and that `wave` consecutive blocks of the walk touch.

    order: (axis, extent), fastest-varying first; an axis may come twice (a grouped walk). Elementwise on arrays.
    """
    remaining: Array = wave
    touched: Array = 1.0
    existing: Array = 1.0
    for axis, extent in order:
        covered = np.minimum(remaining, extent)
        if axis in axes:
            touched = touched * covered
            existing = existing * extent
        remaining = np.maximum(remaining / extent, 1.0)
    return existing, touched


def dram_bytes(
    order: Sequence[tuple[str, Array]],
    reads: Mapping[str, frozenset[str]],
    writes: Mapping[str, frozenset[str]],
    tensor_bytes: Mapping[str, Array],
    scratch: frozenset[str],
    blocks: Array,
    concurrent_blocks: Array,
    l2_bytes: float,
) -> Array:
    """Bytes between L2 and DRAM of one launch.

    Inputs are read at least once and outputs written once; `scratch` tensors live between launches and reach DRAM
    only as far as they do not fit in L2.
    """
    working_set: Array = sum(tensor_bytes[name] for name in {*reads, *writes})
    miss = np.clip(1.0 - l2_bytes / np.maximum(working_set, 1.0), 0.0, 1.0)
    wave = np.minimum(concurrent_blocks, blocks)
    waves = blocks / wave
    total: Array = 0.0
    for name, axes in reads.items():
        size = tensor_bytes[name]
        existing, touched = distinct_tiles(order, axes, wave)
        again = np.maximum(waves * touched / existing - 1.0, 0.0)
        first = miss if name in scratch else 1.0
        total = total + size * (first + miss * again)
    for name in writes:
        total = total + tensor_bytes[name] * (miss if name in scratch else 1.0)
    return total
