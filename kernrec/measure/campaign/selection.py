"""Section 6 of the protocol: everyone is screened, few get their energy measured, and fewer are measured with care.

Pure choices over arrays of costs; what is measured, and how, is told elsewhere.
"""

from collections.abc import Sequence

import numpy as np

COARSE_SHARE = 0.15
"""Of the screened configs, the fastest that get coarse energy."""
RANDOM_SHARE = 0.05
"""Of the others, those drawn for it all the same, or a learner would see the energy of fast configs alone."""


def coarse_selection(latency_s: Sequence[float], draw: np.random.Generator) -> list[tuple[int, float]]:
    """(position, probability of having been selected) of the configs that get coarse energy, the fastest first."""
    order = np.argsort(np.asarray(latency_s), kind="stable")
    certain = min(len(order), max(1, round(COARSE_SHARE * len(order)))) if len(order) else 0
    drawn = draw.random(len(order) - certain) < RANDOM_SHARE
    chosen = [(int(i), 1.0) for i in order[:certain]]
    return chosen + [(int(i), RANDOM_SHARE) for i in order[certain:][drawn]]


def front_neighborhood(latency_s: Sequence[float], energy_j: Sequence[float], count: int) -> list[int]:
    """At most `count` positions, nearest to the latency/energy front first.

    The distance of a config is by how much, as a fraction, both its costs must fall until no other beats it in both.
    Of more than `count` configs on the front itself the ends come first and then those between, evenly.
    """
    t, e = np.log(np.asarray(latency_s, dtype=np.float64)), np.log(np.asarray(energy_j, dtype=np.float64))
    if not len(t):
        return []
    walk = np.lexsort((e, t))
    lowest = np.minimum.accumulate(e[walk])
    best = walk[np.concatenate(([True], e[walk][1:] < lowest[:-1]))]
    # How far a point of the front beats another in the cost where it beats it least: positive where it dominates it.
    beats = np.minimum(t[:, None] - t[best], e[:, None] - e[best])
    distance = np.maximum(beats.max(axis=1), 0.0)
    order = np.lexsort((t, distance))
    front = order[distance[order] <= 0.0]
    if len(front) > count:
        return [int(front[i]) for i in np.unique(np.linspace(0, len(front) - 1, count).round().astype(int))]
    return [int(i) for i in order[:count]]


def interleaved(count: int, rounds: int, draw: np.random.Generator) -> list[int]:
    """The order in which `count` finals are measured: every round all of them, each round in an order of its own."""
    return [int(i) for _ in range(rounds) for i in draw.permutation(count)]
