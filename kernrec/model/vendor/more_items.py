"""A backend never takes longer for n items than for n + 1: what runs n + 1 rows, images or sequences runs n, too.

Trees know no order: they predict that 48 rows take 6 % less than 47, or half for another number of tokens. So they are
asked only on a grid of numbers of items, about those that recorders choose. There a time is the least of its own and of
the next larger points' (whoever is faster with more rows can pad). Between two points the bound, which is ordered,
says where in between a number of items is. Contiguous rows are left alone, because their alignment matters.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kernrec.op.scaled_workload import items_dimension

Array = np.ndarray

_AHEAD, _FAR = 4, 256
"""Larger points of the grid that bound a time: two doublings, and at least as many items as decoding has."""


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
def points(items: int) -> tuple[int, ...]:
    """Return the points of the grid that decide the time of `items`: 2^k, and 3 x 2^k from 48 on.

    The first one is the largest that is at most `items`.
    """
    grid = [1 << items.bit_length() - 1]
    if grid[0] >= 32 and 3 * grid[0] <= 2 * items:
        grid[0] += grid[0] // 2
    while len(grid) < _AHEAD + 1 + (grid[0] < items) or grid[-1] < _FAR:
        last = grid[-1]
        power = last & (last - 1) == 0
        grid.append(last + last // 2 if power and last >= 32 else 2 * last if power else last // 3 * 4)
    return tuple(grid)


@lru_cache(maxsize=4096)
def often_recorded(items: int) -> tuple[int, ...]:
    """Return numbers of items that recorders choose, ascending, and `items`.

    They are those up to 17, then quarters of a power of two, at least 16 apart, and one more each; all from an
    eighth of `items` to so many that they take longer.
    """
    least, most = max((1 << items.bit_length() - 1) // 8, 1), max(16 * items, 512)
    chosen, power = {items, *range(least, 18)}, max(least, 16)
    while power <= most:
        chosen.update(number + more for number in range(power, 2 * power, max(power // 4, 16)) for more in (0, 1))
        power *= 2
    return tuple(sorted(number for number in chosen if least <= number <= most))


def ordered_seconds(own_s: float, bounds_s: Array, seconds: Array) -> Array:
    """Return the time of a number of items for each backend, (S,).

    Args:
        own_s: The bound of the items.
        bounds_s: The bound at each of their points, (P,).
        seconds: What the trees predict there, (S, P).
    """
    upper: Array = seconds[:, 1:].min(axis=1)
    lower = np.minimum(seconds[:, 0], upper)
    below, above = bounds_s[0], bounds_s[1]
    share = min(max((own_s - below) / (above - below), 0.0), 1.0) if above > below else 1.0
    return np.asarray(lower + share * (upper - lower))
