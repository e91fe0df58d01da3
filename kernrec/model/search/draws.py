"""Random numbers for expected regrets (losses), equal for all problems with the same number of candidates for best.

A command computes the regrets of problems in turn, each with a generator of the same seed. So the numbers are drawn
once. Numbers for problems without measurements come from a cached file, because importing NumPy's generators takes
longer.
"""

from functools import lru_cache

import numpy as np

from kernrec.util.cache import CacheEntry, cached

Array = np.ndarray

_MOST_CACHED = 64
"""Maximum number of contenders whose random numbers are cached: 0.3 MB in a file."""


@lru_cache(maxsize=8)
def student_draws(seed: tuple[int, int], rows: int, columns: int, shared: float, own: float) -> tuple[Array, Array]:
    """Return read-only draws of two Student's t distributions.

    Args:
        seed: Seed of the generator.
        rows: Number of draws.
        columns: Numbers per draw.
        shared: Degrees of freedom of the first distribution, whose draws have one scale for all columns.
        own: Degrees of freedom of the second distribution, whose numbers are independent.

    Returns:
        Draws of the first and of the second distribution, (rows, columns) each.
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
