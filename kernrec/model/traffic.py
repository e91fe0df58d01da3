"""How many bytes a launch moves between L2 and DRAM, from the order in which it walks its tiles.

Blocks that run at the same time share what they load: a wave of W blocks touches, of each tensor, as many tiles as
the walk spreads over the axes that select them. Between waves a tensor is found again in L2 as far as the working
set fits there.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Array = np.ndarray | float


def covered(order: Sequence[tuple[str, Array]], wave: Array) -> list[Array]:
    """How much of each extent of the walk `wave` consecutive blocks cover, elementwise.

    order: (axis, extent), fastest-varying first; an axis may come twice (a grouped walk).
    """
    remaining = wave
    found: list[Array] = []
    for _, extent in order[:-1]:
        found.append(np.minimum(remaining, extent))
        remaining = np.maximum(remaining / extent, 1.0)
    if order:
        found.append(np.minimum(remaining, order[-1][1]))
    return found


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
    miss = np.maximum(1.0 - l2_bytes / working_set, 0.0)
    wave = np.minimum(concurrent_blocks, blocks)
    waves = blocks / wave
    total: Array = 0.0
    # Share of each axis that a wave covers; a tensor's tiles are selected by some of the axes.
    shares = [cover / extent for cover, (_, extent) in zip(covered(order, wave), order, strict=True)]
    for name, axes in reads.items():
        size = tensor_bytes[name]
        touched = waves
        for (axis, _), share in zip(order, shares, strict=True):
            if axis in axes:
                touched = touched * share
        again = np.maximum(touched - 1.0, 0.0)
        first = miss if name in scratch else 1.0
        total = total + size * (first + miss * again)
    for name in writes:
        total = total + tensor_bytes[name] * (miss if name in scratch else 1.0)
    return total
