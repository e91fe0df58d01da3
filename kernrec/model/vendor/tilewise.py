"""Elementary functions of loops over problems, tiles and trees, on arrays; `tilewise.pxd` has them for numbers,
compiled.

In such a loop a name stands for an array of all problems, (N,), or of all problems in all tiles or trees, (N, T).
"""

import numpy as np

from kernrec.model.prior.elementwise import ceil as ceil
from kernrec.model.prior.elementwise import floor as floor
from kernrec.model.prior.elementwise import maximum as maximum
from kernrec.model.prior.elementwise import minimum as minimum
from kernrec.model.prior.elementwise import select as select
from kernrec.model.prior.elementwise import sqrt as sqrt

exp, log2, power = np.exp, np.log2, np.power


def aligned(sizes: np.ndarray, most: int) -> np.ndarray:
    """The largest power of two, up to one of them, by which sizes can be divided."""
    return np.gcd(sizes.astype(np.int64), most)


def per_tile(of_problem: np.ndarray) -> np.ndarray:
    """A value of each problem, (N,), to stand beside those of its tiles or trees, (N, 1)."""
    return of_problem[:, np.newaxis]


def of_tile(of_tiles: np.ndarray, problem: int, tile: int) -> np.ndarray:
    """A value of one of the tiles, (N,)."""
    value: np.ndarray = of_tiles[problem, 0][:, tile]
    return value


def least(of_tiles: np.ndarray, problem: int, first: int, end: int) -> np.ndarray:
    """The least of some of the tiles, (N,)."""
    least: np.ndarray = of_tiles[problem, 0][:, first:end].min(axis=-1)
    return least


def ordered(values: np.ndarray) -> np.ndarray:
    """Whole numbers that are in the order of values in single precision, int32: -0.0 is 0.0."""
    bits = (values.astype(np.float32) + np.float32(0.0)).view(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def row_of(first: int, count: int) -> np.ndarray:
    """The numbers of `count` rows from one of them on, which is the row where a name stands for one."""
    return np.arange(first, first + count)


def over_trees(of_trees: np.ndarray) -> np.ndarray:
    """The sum of a value over all trees, (N,)."""
    total: np.ndarray = of_trees.sum(axis=-1, dtype=np.float64)
    return total
