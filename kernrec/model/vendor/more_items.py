"""A backend never takes longer for n items than for n + 1: what runs n + 1 rows, images or sequences runs n, too.

Trees know no order: they predict that 48 rows take 6 % less than 47, or half for another number of tokens. So they are
asked only about numbers of items that recorders choose (`chosen`). There a time is the least of its own and of larger
numbers', for whoever is faster with more rows can pad. Between two of them the bound, which is ordered, says where in
between a number of items is. Contiguous rows are left alone, because their alignment matters.

Larger numbers are looked at in full up to the next one of a coarse grid, and beyond it on the grid.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kernrec.op.scaled_workload import items_dimension
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_HALVES = 256
"""From here on the coarse grid has 3 x 2^k beside 2^k."""
_AHEAD = 4
"""Minimum number of points of the coarse grid, beyond the next one, that bound a time."""
_FAR = {"elementwise": 1 << 20}
"""Minimum number of items up to which they go on, by op: of elements, more than a launch hides."""
_FAR_ELSE = 512
"""The same for other ops: more than decoding has."""
_FURTHEST = 1024
"""Minimum number of items up to which recorded rows are looked at."""


@dataclass(frozen=True)
class Points:
    """The numbers of items that decide the time of some number of them."""

    numbers: tuple[int, ...]
    """The largest point of the grid that is at most as large, then `near` chosen numbers up to the next point, then
    further points."""
    near: int
    """0 for a point of the grid."""
    between: bool
    """Whether the number of items is between the first two of `near`, and not the first one."""


def item_place(op: str, layout: str, batched: bool, dims: Sequence[str]) -> int | None:
    """Return the place of the number of items among the dimensions of an op's features; None if there is none.

    Args:
        op: Name of the op.
        layout: Layout of the problems. In a matmul whose rows are contiguous, their number is none of items.
        batched: Whether there are several products, which are the items then.
        dims: Names of the dimensions.
    """
    name = items_dimension(op, batched)
    return None if name not in dims or (name == "m" and layout[0] == "t") else dims.index(name)


@lru_cache(maxsize=4096)
def points(items: int, op: str = "") -> Points:
    """Return the points of a number of items of an op."""
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
    """Return the points of the coarse grid from the largest one that is at most `items`: 2^k and some 3 x 2^k."""
    power = 1 << items.bit_length() - 1
    grid = [power + power // 2 if power >= _HALVES and 3 * power <= 2 * items else power]
    while len(grid) < 2 + _AHEAD or grid[-1] < _FAR.get(op, _FAR_ELSE):
        last = grid[-1]
        if last & (last - 1):
            grid.append(last // 3 * 4)
        else:
            grid.append(last + last // 2 if last >= _HALVES else 2 * last)
    return tuple(grid)


def chosen(low: int, high: int) -> list[int]:
    """Return numbers of items that recorders choose, from `low` to `high`, ascending.

    They are those up to 17, then quarters of a power of two, at least 16 apart, and one more each.
    """
    numbers, power = list(range(low, min(high, 17) + 1)), max(1 << max(low.bit_length() - 1, 0), 16)
    while power <= high:
        for number in range(power, 2 * power, max(power // 4, 16)):
            numbers += [each for each in (number, number + 1) if max(low, 18) <= each <= high]
        power *= 2
    return numbers


@lru_cache(maxsize=4096)
def often_recorded(items: int) -> tuple[int, ...]:
    """Return numbers of items that recorders choose, and `items`, ascending.

    They are from an eighth of `items` to so many that they take longer: the same largest number for every batch of
    decoding, or a batch would be faster only because a far row is looked at from there on.
    """
    numbers = chosen(max((1 << items.bit_length() - 1) // 8, 1), max(16 * items, _FURTHEST))
    return tuple(sorted({items, *numbers}))


def ordered_seconds(own_points: Points, own_s: float, bounds_s: Array, seconds: Array) -> Array:
    """Return the time of a number of items for each backend, (S,).

    Args:
        own_points: The points of that number of items.
        own_s: The bound of the items.
        bounds_s: The bound at each of the points, (P,).
        seconds: What the trees predict there, (S, P).
    """
    last = own_points.near
    upper: Array = seconds[:, max(last, 1) :].min(axis=1)
    lower: Array = np.minimum(seconds[:, 0], upper)
    if not last:
        return lower
    near = seconds[:, 1:last]
    first = upper if last == 1 else np.maximum(np.minimum(near.min(axis=1), upper), lower)
    if not own_points.between:
        return first
    second = upper if last == 2 else np.maximum(np.minimum(near[:, 1:].min(axis=1), upper), lower)
    below, above = bounds_s[1], bounds_s[2]
    share = min(max((own_s - below) / (above - below), 0.0), 1.0) if above > below else 1.0
    return np.asarray(first + share * (second - first))
