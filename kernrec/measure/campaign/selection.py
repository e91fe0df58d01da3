"""Which configs are measured in the final tier, and in which order: pure functions of measured costs."""

from collections.abc import Sequence

import numpy as np


def front_neighborhood(latency_s: Sequence[float], energy_j: Sequence[float], count: int) -> list[int]:
    """At most `count` positions, those nearest to the latency/energy front first.

    The distance of a config from the front is the fraction by which both its costs must fall until no other config
    beats it in both. If more than `count` configs are on the front itself, both ends and evenly spaced ones between
    them are chosen.
    """
    t, e = np.log(np.asarray(latency_s, dtype=np.float64)), np.log(np.asarray(energy_j, dtype=np.float64))
    if not len(t):
        return []
    walk = np.lexsort((e, t))
    lowest = np.minimum.accumulate(e[walk])
    best = walk[np.concatenate(([True], e[walk][1:] < lowest[:-1]))]
    # By how much a point of the front beats another in the cost where it beats it least; positive if it dominates it.
    beats = np.minimum(t[:, None] - t[best], e[:, None] - e[best])
    distance = np.maximum(beats.max(axis=1), 0.0)
    order = np.lexsort((t, distance))
    front = order[distance[order] <= 0.0]
    if len(front) > count:
        return [int(front[i]) for i in np.unique(np.linspace(0, len(front) - 1, count).round().astype(int))]
    return [int(i) for i in order[:count]]


def interleaved(count: int, rounds: int, draw: np.random.Generator) -> list[int]:
    """The order in which `count` finals are measured: all of them in each round, each round in a random order."""
    return [int(i) for _ in range(rounds) for i in draw.permutation(count)]
