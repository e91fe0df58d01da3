"""The walk of many candidates down many trees.

One source in two forms, as `kernrec.model.prior.core` explains: as Python an axis of length one stands in front of the
candidates and of the trees, and each name stands for all pairs of them.
"""

from typing import Any


def next_level(flat: Any, row: Any, column: Any, threshold: Any, nodes: Any) -> None:
    """Moves `nodes` (T, C) one level down complete trees: the children of node i are 2 i and 2 i + 1 of the next level.

    All candidates pass a tree before the next one, so that its nodes stay in the cache.

    Args:
        flat: features of all candidates, one candidate after the other, float32.
        row: where those of each begin, (C,).
        column, threshold: of each node of the level, over all trees.
        nodes: where each candidate is in each tree, changed in place.
    """
    for tree in range(nodes.shape[0]):
        for i in range(len(row)):
            node = nodes[tree, i]
            nodes[tree, i] = 2 * node + (flat[row[i] + column[node]] >= threshold[node])
