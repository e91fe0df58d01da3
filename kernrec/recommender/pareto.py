"""Pareto front of two costs to minimize."""

import numpy as np


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto-optimal candidates, fastest first; only the first of equal candidates.

    Before sorting, remove candidates slower than the lowest-energy candidate, or using more energy than the fastest.
    A few dozen remain, and lists of this size sort faster than arrays.

    Args:
        latency: (C,), finite.
        energy: (C,), finite.
    """
    fastest, lowest_energy = latency.argmin(), energy.argmin()
    between = ((latency <= latency[lowest_energy]) & (energy <= energy[fastest])).nonzero()[0]
    front: list[int] = []
    least_j = np.inf
    for _, joules, candidate in sorted(
        zip(latency.take(between).tolist(), energy.take(between).tolist(), between.tolist(), strict=True)
    ):
        if joules < least_j:
            front.append(candidate)
            least_j = joules
    return np.array(front, dtype=np.int64)


def spread(front: np.ndarray, latency: np.ndarray, energy: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` points of a front: both ends, then repeatedly the point farthest from the selected points.

    Args:
        front: indices, fastest first, as from `pareto_front`; the result has the same order.
        latency: (C,).
        energy: (C,).
        count: maximum number of points.
    """
    if len(front) <= count:
        return front
    if count == 1:
        # A single answer for two costs has the lowest energy-delay product.
        return front[[(latency[front] * energy[front]).argmin()]]
    x, y = np.log(latency[front]), np.log(energy[front])
    chosen = [0, len(front) - 1]
    distance = np.minimum(np.hypot(x - x[0], y - y[0]), np.hypot(x - x[-1], y - y[-1]))
    while len(chosen) < count:
        far = int(distance.argmax())
        chosen.append(far)
        distance = np.minimum(distance, np.hypot(x - x[far], y - y[far]))
    return front[sorted(chosen)]
