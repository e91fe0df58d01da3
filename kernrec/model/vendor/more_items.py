"""Enforce that a backend never takes longer for n items than for n + 1, because it can pad rows, images or sequences.

Trees are not monotonic: they may predict less time for more rows. So they are only evaluated at item counts that
recorders choose (`chosen`). The time at such a count is the minimum of its own and of larger counts' predictions.
Between two counts, the monotonic bound interpolates. Contiguous rows are not changed, because their alignment matters.

All larger counts are considered up to the next point of a coarse grid; beyond this point, only points of the grid.
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
"""Minimum number of coarse grid points, beyond the next point, that bound a time."""
_FAR = {"elementwise": 1 << 20}
"""Largest point by op. For elementwise ops, so many items take longer than a launch."""
_FAR_ELSE = 1 << 14
"""Largest point for other ops. All item counts share the last point. Otherwise a count could be faster only because it
reaches a further point."""


@dataclass(frozen=True)
class Points:
    """Item counts whose predictions determine the time of an item count."""

    numbers: tuple[int, ...]
    """Largest grid point at or below the item count, then `near` chosen counts up to the next grid point, then further
    grid points.
    """
    near: int
    """Number of chosen counts in `numbers`; 0 if the item count is a grid point."""
    between: bool
    """Whether the item count is strictly between the first two of the `near` counts."""


def item_place(op: str, layout: str, batched: bool, dims: Sequence[str]) -> int | None:
    """Return the index of the number of items among the dimensions of an op's features; None if there is none.

    Args:
        op: Name of the op.
        layout: Layout of the problems.
        batched: Whether there are several matmuls; the matmuls are then the items.
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
    """Return the coarse grid (2^k and some 3 x 2^k), starting with the largest point at or below `items`."""
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

    They are all numbers up to 17, then quarters of powers of two, at least 16 apart, and each quarter plus one.
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
        own_points: Points of the number of items.
        own_s: Bound of the items.
        bounds_s: Bound at each of the points, (P,).
        seconds: Predictions of the trees at the points, (S, P).
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
