"""Draw the random numbers that estimate expected regrets.

Equal arguments give equal numbers. The numbers for seed (0, 0) come from a cached file, because importing NumPy's
random generators takes longer than reading the file.
"""

from functools import lru_cache

import numpy as np

from kernrec.util.cache import CacheEntry, cached

Array = np.ndarray

_MOST_CACHED = 64
"""Maximum number of columns for which a file of random numbers (0.3 MB) is cached."""


@lru_cache(maxsize=8)
def student_draws(seed: tuple[int, int], rows: int, columns: int, shared: float, own: float) -> tuple[Array, Array]:
    """Return read-only draws from two Student's t distributions.

    Args:
        seed: Seed of the generator.
        rows: Number of draws.
        columns: Numbers per draw.
        shared: Degrees of freedom of the first distribution, in which all numbers of a draw share one random scale.
        own: Degrees of freedom of the second distribution, in which all numbers are independent.

    Returns:
        (first, second): draws from the first and from the second distribution, (rows, columns) each.
    """

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
