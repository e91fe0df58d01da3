"""The walk of many candidates down many trees.

One source in two forms, as `kernrec.model.prior.core` explains: as Python an axis of length one stands in front of the
candidates and of the trees, and each name stands for all pairs of them.
"""

from typing import Any


def go_down(flat: Any, row: Any, start: Any, feature: Any, threshold: Any, left: Any, levels: int, leaves: Any) -> None:
    """Fills `leaves` (C, T): the leaf that each candidate reaches in each tree of `model.vendor.compact_trees`.

    Args:
        flat: features of all candidates, one candidate after the other, float32.
        row: where those of each begin, (C,).
        start: the first node of each tree, (T,).
        feature, threshold, left: of each node, as in `CompactTrees`; a leaf is its own left child.
        levels: splits on the longest path.
    """
    for i in range(len(row)):
        for tree in range(len(start)):
            node = start[tree]
            for _ in range(levels):
                node = left[node] + (flat[row[i] + feature[node]] >= threshold[node])
            leaves[i, tree] = node


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
