"""The Pareto front of two costs, both to be minimized."""

import numpy as np


def pareto_front(latency: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Indices of the candidates no other beats in both costs, fastest first; of equals only the first.

    latency, energy: (C,) finite. Candidates slower than the most frugal or hungrier than the fastest are set aside
    before sorting, which leaves a few dozen: lists of so few are sorted quicker than arrays.
    """
    fastest, frugal = latency.argmin(), energy.argmin()
    between = ((latency <= latency[frugal]) & (energy <= energy[fastest])).nonzero()[0]
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
    """At most `count` of a front that keep most of its extent: both ends, then the farthest from those chosen.

    front: indices ordered fastest first, as `pareto_front` returns them; so is the answer.
    """
    if len(front) <= count:
        return front
    if count == 1:
        # One answer for two costs: the least energy-delay product.
        return front[[(latency[front] * energy[front]).argmin()]]
    x, y = np.log(latency[front]), np.log(energy[front])
    chosen = [0, len(front) - 1]
    distance = np.minimum(np.hypot(x - x[0], y - y[0]), np.hypot(x - x[-1], y - y[-1]))
    while len(chosen) < count:
        far = int(distance.argmax())
        chosen.append(far)
        distance = np.minimum(distance, np.hypot(x - x[far], y - y[far]))
    return front[sorted(chosen)]
