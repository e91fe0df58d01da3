"""Enforce that a backend never takes longer for n items than for n + 1, because it can pad rows, images or sequences.

Trees are not monotonic: they may predict less time for more rows. So they are only evaluated at numbers of items that
recorders choose (`chosen`). There, the time is the minimum of its own and of larger numbers' times. Between two of
them, the bound, which is monotonic, interpolates. Contiguous rows are not changed, because their alignment matters.

Larger numbers are considered completely up to the next point of a coarse grid, and beyond it only on the grid.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kernrec.op.scaled_workload import padded_dimension
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_HALVES = range(256, 1024)
"""Numbers between which the coarse grid has 3 x 2^k besides 2^k."""
_AHEAD = 4
"""Minimum number of points of the coarse grid, beyond the next one, that bound a time."""
_FAR = {"elementwise": 1 << 20}
"""Number of items up to which points go on, by op. For elementwise ops, it is more than a launch hides."""
_FAR_ELSE = 1 << 14
"""The same for other ops. All numbers of items share the last point. Otherwise a number could be faster only because a
far point counts from there on."""


@dataclass(frozen=True)
class Points:
    """Numbers of items that determine the time of a number of items."""

    numbers: tuple[int, ...]
    """The largest grid point that does not exceed it, then `near` chosen numbers up to the next point, then further
    points.
    """
    near: int
    """0 for a point of the grid."""
    between: bool
    """Whether the number of items is strictly between the first two of `near`."""


def item_place(op: str, layout: str, batched: bool, dims: Sequence[str]) -> int | None:
    """Return the index of the number of items among the dimensions of an op's features; None if there is none.

    Args:
        op: Name of the op.
        layout: Layout of the problems.
        batched: Whether there are several matmuls, which are the items then.
        dims: Names of the dimensions.
    """
    name = padded_dimension(op, layout, batched)
    return None if name is None or name not in dims else dims.index(name)


@lru_cache(maxsize=4096)
def points(items: int, op: str = "") -> Points:
    """Return the points for a number of items of an op."""
    low = _grid_from(items, op)[0]
    low, high, *ahead = _grid_from(low, op)
    if low == items:
        return Points((low, high, *ahead), 0, False)
    near = [number for number in chosen(low, high) if number >= items]
    between = items not in near
    if between:
        near.insert(0, max(number for number in chosen(low, high) if number < items))
    return Points((low, *near, *ahead), len(near), between)


@lru_cache(maxsize=4096)
def _grid_from(items: int, op: str) -> tuple[int, ...]:
    """Return the points of the coarse grid from the largest that does not exceed `items`: 2^k and some 3 x 2^k."""
    power = 1 << items.bit_length() - 1
    grid = [power + power // 2 if power in _HALVES and 3 * power <= 2 * items else power]
    while len(grid) < 2 + _AHEAD or grid[-1] < _FAR.get(op, _FAR_ELSE):
        last = grid[-1]
        if last & (last - 1):
            grid.append(last // 3 * 4)
        else:
            grid.append(last + last // 2 if last in _HALVES else 2 * last)
    return tuple(grid)


def chosen(low: int, high: int) -> list[int]:
    """Return numbers of items that recorders choose, from `low` to `high`, ascending.

    These are all up to 17, then quarters of a power of two, at least 16 apart, and each of them plus one.
    """
    quarters, power = list[int](), max(1 << max(low.bit_length() - 1, 0), 16)
    while power <= high:
        for number in range(power, 2 * power, max(power // 4, 16)):
            quarters += number, number + 1
        power *= 2
    start, end = bisect_left(quarters, max(low, 18)), bisect_right(quarters, high)
    return [*range(low, min(high, 17) + 1), *quarters[start:end]]


def ordered_seconds(own_points: Points, own_s: float, bounds_s: Array, seconds: Array) -> Array:
    """Return the time of a number of items for each backend, (S,).

    Args:
        own_points: Points of that number of items.
        own_s: Bound of the items.
        bounds_s: Bound at each of the points, (P,).
        seconds: Predictions of the trees there, (S, P).
    """
    last = own_points.near
    upper: Array = np.minimum.reduce(seconds[:, max(last, 1) :], axis=1)
    lower: Array = np.minimum(seconds[:, 0], upper)
    if not last:
        return lower
    near = seconds[:, 1:last]
    first = upper if last == 1 else np.maximum(np.minimum(np.minimum.reduce(near, axis=1), upper), lower)
    if not own_points.between:
        return first
    second = upper if last == 2 else np.maximum(np.minimum(np.minimum.reduce(near[:, 1:], axis=1), upper), lower)
    below, above = bounds_s[1], bounds_s[2]
    share = min(max((own_s - below) / (above - below), 0.0), 1.0) if above > below else 1.0
    return np.asarray(first + share * (second - first))
