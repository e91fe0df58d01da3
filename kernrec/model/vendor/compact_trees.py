"""Boosted trees in a few bytes a node, for models that ship: a fourth of XGBoost's own file, and ready in a moment.

XGBoost splits a feature only at the cuts of its histogram, at most 255, so that a split is two bytes, its feature and
its cut; a leaf is a half-precision number. Nodes of a tree are stored by level, so the children of its i-th inner node
are its nodes 2 i + 1 and 2 i + 2, and no links are stored. `kernrec.model.learn.forest` has complete trees instead, of
which 10 levels take ten times the space; it is the faster one for many candidates at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

Trees = tuple[Mapping[str, Any], Mapping[str, Array]]
"""Facts, which JSON can hold, and arrays: trees as `compact` makes them and `expand` reads them."""

PARTS = ("nodes", "inner", "column", "cut", "leaf", "cuts", "cut_count")
"""Names of the arrays."""
MOST_CUTS = 256
_MOST_LEVELS = 32


@dataclass(frozen=True)
class CompactTrees:
    """T trees with N nodes in all, over F features."""

    start: Array
    """The first node of each tree, (T,)."""
    left: Array
    """The left child of each node, (N,); the right one is the next. A leaf is its own."""
    feature: Array
    """What each node splits on, (N,); 0 in a leaf."""
    threshold: Array
    """Values that are not less go right, (N,); infinity in a leaf."""
    value: Array
    """Of each leaf, (N,); 0 in other nodes."""
    base: float
    """What is added to every sum of leaves."""
    levels: int
    """Splits on the longest path."""

    def predict(self, matrix: Array) -> Array:
        """The prediction for each row of a matrix (C, F) without missing values; float64 (C,)."""
        count, features = matrix.shape
        flat, row = np.asarray(matrix, dtype=np.float32).ravel(), (np.arange(count) * features)[:, None]
        node = np.broadcast_to(self.start, (count, len(self.start)))
        for _ in range(self.levels):
            node = self.left.take(node) + (flat.take(self.feature.take(node) + row) >= self.threshold.take(node))
        return self.base + self.value.take(node).sum(axis=1, dtype=np.float64)


def compact(trees: Sequence[Mapping[str, Any]], features: int, base: float) -> Trees:
    """The facts and arrays that `expand` reads.

    Args:
        trees: as XGBoost's JSON has them: `left_children`, `right_children`, `split_indices`, `split_conditions`.
        features: F.
        base: what is added to every sum of leaves.

    Raises:
        ValueError: a feature has more than 256 cuts, or there are more than 256 features.
    """
    ordered = [_by_level(tree) for tree in trees]
    inner = np.concatenate([part["inner"] for part in ordered])
    column = np.concatenate([part["column"] for part in ordered])
    condition = np.concatenate([part["condition"] for part in ordered]).astype(np.float32)
    split_on, split_at = column[inner], condition[inner]
    cuts = [np.unique(split_at[split_on == number]) for number in range(features)]
    if features > MOST_CUTS or max(map(len, cuts), default=0) > MOST_CUTS:
        raise ValueError("more features or cuts than a byte can number")
    cut = np.zeros(len(split_on), dtype=np.uint8)
    for number, known in enumerate(cuts):
        rows = split_on == number
        cut[rows] = np.searchsorted(known, split_at[rows])
    arrays = {
        "nodes": np.array([len(part["inner"]) for part in ordered], dtype=np.uint16),
        "inner": np.packbits(inner),
        "column": split_on.astype(np.uint8),
        "cut": cut,
        "leaf": condition[~inner].astype(np.float16),
        "cuts": np.concatenate(cuts),
        "cut_count": np.array([len(known) for known in cuts], dtype=np.uint16),
    }
    return {"base": float(base), "levels": max((part["levels"] for part in ordered), default=0)}, arrays


def expand(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> CompactTrees:
    """The trees of what `compact` gave; `ValueError` where the arrays do not fit together."""
    nodes, levels = arrays["nodes"].astype(np.int64), int(facts["levels"])
    count = int(nodes.sum())
    inner = np.unpackbits(arrays["inner"], count=count).astype(bool)
    start = np.cumsum(nodes) - nodes
    before = np.cumsum(inner) - inner  # inner nodes before each node, over all trees
    tree = np.repeat(np.arange(len(nodes)), nodes)
    rank = before - before[start][tree]
    left = np.where(inner, start[tree] + 1 + 2 * rank, np.arange(count))
    cut_count = arrays["cut_count"].astype(np.int64)
    first_cut = np.cumsum(cut_count) - cut_count
    column, cut = arrays["column"].astype(np.int64), arrays["cut"].astype(np.int64)
    splits = int(inner.sum())
    if (
        not 0 <= levels <= _MOST_LEVELS
        or (nodes < 1).any()
        or len(column) != splits
        or len(cut) != splits
        or len(arrays["leaf"]) != count - splits
        or (left[inner] + 1 >= (start + nodes)[tree][inner]).any()
        or (left[inner] <= np.flatnonzero(inner)).any()
        or (splits and column.max() >= len(first_cut))
        or (cut >= cut_count[column]).any()
        or int(cut_count.sum()) != len(arrays["cuts"])
    ):
        raise ValueError("trees whose arrays do not fit together")
    feature = np.zeros(count, dtype=np.int64)
    threshold, value = np.full(count, np.inf, np.float32), np.zeros(count, np.float32)
    feature[inner] = column
    threshold[inner] = arrays["cuts"][first_cut[column] + cut]
    value[~inner] = arrays["leaf"]
    return CompactTrees(start, left, feature, threshold, value, float(facts["base"]), levels)


def _by_level(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The nodes of a tree, level by level."""
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    order, level, levels = [np.zeros(1, dtype=np.int64)], np.zeros(1, dtype=np.int64), 0
    while len(parents := level[left[level] >= 0]):
        level = np.stack([left[parents], right[parents]], axis=1).ravel().astype(np.int64)
        order.append(level)
        levels += 1
    nodes = np.concatenate(order)
    return {
        "inner": left[nodes] >= 0,
        "column": np.asarray(tree["split_indices"])[nodes],
        "condition": np.asarray(tree["split_conditions"])[nodes],
        "levels": levels,
    }
