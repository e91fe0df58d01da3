"""Elementary functions of loops over problems and tiles, on arrays; `tilewise.pxd` has them for numbers, compiled.

In such a loop a name stands for an array of all problems, (N,), or of all problems in all tiles, (N, T).
"""

import numpy as np

from kernrec.model.prior.elementwise import ceil as ceil
from kernrec.model.prior.elementwise import floor as floor
from kernrec.model.prior.elementwise import maximum as maximum
from kernrec.model.prior.elementwise import minimum as minimum
from kernrec.model.prior.elementwise import select as select


def per_tile(of_problem: np.ndarray) -> np.ndarray:
    """A value of each problem, (N,), to stand beside those of its tiles, (N, 1)."""
    return of_problem[:, np.newaxis]


def least(of_tiles: np.ndarray, first: int, end: int) -> np.ndarray:
    """The least of some of the tiles."""
    least: np.ndarray = of_tiles[..., first:end].min(axis=-1)
    return least
