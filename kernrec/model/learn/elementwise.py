"""Elementary functions of the learner's arithmetic on arrays; `elementwise.pxd` has them for single numbers, compiled.

Like NumPy's, a NaN among the operands of `minimum` and `maximum` is their result.
"""

import numpy as np

ceil, log1p, log2, sqrt = np.ceil, np.log1p, np.log2, np.sqrt
maximum, minimum = np.maximum, np.minimum
select = np.where


def largest(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The largest value over the rows, at each of these places in them."""
    return np.asarray(rows[:, places].max(axis=0))


def largest_mean(squares: np.ndarray, place: int, means: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The largest mean over a group of the features of each candidate; squares: (1, 1, C, F); means: (F, groups)."""
    return np.asarray((squares[place, place] @ means).max(axis=1))


def leaves(
    flat: np.ndarray, own: np.ndarray, tree: np.ndarray, trees: int, levels: int, column: np.ndarray, value: np.ndarray
) -> np.ndarray:
    """The sum of the leaves that each candidate reaches in these trees, (T, 1); compiled in eight from this one on.

    Each step down waits for the one before: meanwhile a processor has time for those in other trees.
    """
    node = tree
    for _ in range(levels):
        node = 2 * node + trees + (flat[own + column[node]] >= value[node])
    return np.asarray(value[node].sum(axis=0, dtype=np.float64))
