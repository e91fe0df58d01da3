"""Draw the random numbers of a posterior, and cache the numbers for a command's first problem.

Importing `numpy.random` takes 3 MB of memory. With a cached file, a command that answers one problem skips the import.
"""

from functools import lru_cache

import numpy as np

from kernrec.util.cache import CacheEntry, cached

_MOST_CACHED = 64
"""Maximum number of columns for which a file of random numbers (0.3 MB) is cached."""


@lru_cache(maxsize=8)
def student_draws(
    seed: tuple[int, int], rows: int, columns: int, shared: float, own: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return read-only draws from two Student's t distributions, (rows, columns) each, with `shared` and `own` degrees
    of freedom. Numbers in a row of the first array share one random scale."""

    def draw() -> CacheEntry:
        generator = np.random.default_rng(list(seed))
        first = generator.standard_normal((rows, columns))
        first *= np.sqrt(shared / generator.chisquare(shared, (rows, 1)))
        return {}, {"first": first, "second": generator.standard_t(own, first.shape)}

    if any(seed) or columns > _MOST_CACHED:
        _, arrays = draw()
    else:
        made_of = f"NumPy {np.__version__}: {rows} x {columns}, {shared} and {own}"
        _, arrays = cached(f"draws.{columns}", made_of.encode(), draw)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays["first"], arrays["second"]
