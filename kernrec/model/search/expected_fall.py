"""By how much a measurement is expected to lower the least expected cost: the knowledge gradient.

Errors have long tails, so outcomes of a measurement are those of a Student's t.
"""

from functools import cache

import numpy as np

Array = np.ndarray

DEGREES = 4.0
"""Degrees of freedom of the errors of a problem; the fewer, the more problems differ in how wrong predictions are."""
_NODES = 21
"""Outcomes of a measurement, of equal probability, over which its gain is averaged."""


def expected_fall(mean: Array, moves: Array, reach: float) -> Array:
    """By how much the least expected cost is expected to fall.

    Args:
        mean: expected log costs, (C,).
        moves: how far each of them moves, per scale of what will be measured, (C, measurements).
        reach: how far it can fall.

    Returns:
        One value for each measurement.
    """
    outcomes = _outcomes()
    choice = int(mean.argmin())
    # The present choice moves, too; on average it stays where it is.
    after = moves[:, :, None] * outcomes
    after += mean[:, None, None]
    fall = after[choice] - after.min(axis=0)
    return np.asarray(np.minimum(fall, reach).mean(axis=1))


@cache
def _outcomes() -> Array:
    """Values of a Student's t of `DEGREES` = 4 in the middle of intervals of equal probability.

    The quantile function has a closed form for 4 degrees of freedom (Shaw, "Sampling Student's T distribution", 2006).
    """
    probability = (np.arange(_NODES) + 0.5) / _NODES
    inside = 2.0 * np.sqrt(probability * (1.0 - probability))
    ratio = np.cos(np.arccos(np.minimum(inside, 1.0)) / 3.0) / inside
    return np.sign(probability - 0.5) * 2.0 * np.sqrt(np.maximum(ratio - 1.0, 0.0))
