"""Compact boosted trees for shipped models: small files that load quickly.

A split is stored in two bytes: one selects the feature, and the other selects one of at most 256 thresholds. A leaf is
stored in one byte, as one of 256 values between the minimum and the maximum leaf of the tree. Rounding the leaves
changes the sum of 200 trees by about 0.001.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.util.array_file import pack, unpack
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

Trees = tuple[Mapping[str, Any], Mapping[str, Array]]
"""Stored trees: metadata as JSON values, and arrays."""

MOST_CUTS = 256
_MOST_LEVELS = 32
_MOST_NODES = 1 << 23
"""Maximum number of nodes."""
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class CompactTrees:
    """Ensemble of T boosted trees with N nodes in total."""

    start: Array
    """Index of each tree's first node. The nodes of a tree are stored level by level."""
    left: Array
    """Index of each node's left child. The right child has the next index. A leaf has its own index."""
    feature: Array
    """Index of the feature that each split compares."""
    threshold: Array
    """Threshold of each split, or NaN for a leaf. Values equal to the threshold go right."""
    leaf: Array
    """Value of each leaf. Splits have the value 0."""
    base: float
    """Constant added to the sum of leaves."""
    levels: int
    """Number of splits on the longest path from a root to a leaf."""

    def predict(self, matrix: Array) -> Array:
        """Return one prediction per row of a matrix of shape (C, F) without missing values."""
        predicted = np.empty(len(matrix))
        self.in_engine.predict(np.asarray(matrix, dtype=np.float32), predicted)
        return predicted

    @cached_property
    def in_engine(self) -> Any:
        links = (np.asarray(column, dtype=np.int64) for column in (self.start, self.left, self.feature))
        values = (np.asarray(column, dtype=np.float32) for column in (self.threshold, self.leaf))
        return query.Trees(*links, *values, self.base, self.levels)


def compact(trees: Sequence[Mapping[str, Any]], features: int, base: float, share: float = 1.0) -> Trees:
    """Convert trees from XGBoost's JSON to stored trees, with all leaves multiplied by `share`. Raise `ValueError` if
    they have too many features or thresholds."""
    ordered = [_by_level(tree) for tree in trees]
    inner = np.concatenate([part["inner"] for part in ordered])
    column = np.concatenate([part["column"] for part in ordered])
    condition = np.concatenate([part["condition"] for part in ordered]).astype(np.float32)
    split_on, split_at = column[inner], condition[inner]
    cuts = [np.unique(split_at[split_on == number]) for number in range(features)]
    if features > MOST_CUTS or max(map(len, cuts), default=0) > MOST_CUTS:
        raise ValueError("more features or cuts than a byte can number")
    cut = np.zeros(len(split_on), dtype=np.uint8)
    for number, thresholds in enumerate(cuts):
        rows = split_on == number
        cut[rows] = np.searchsorted(thresholds, split_at[rows])
    arrays = {
        "nodes": np.array([len(part["inner"]) for part in ordered], dtype=np.uint16),
        "inner": np.packbits(inner),
        "column": split_on.astype(np.uint8),
        "cut": cut,
        **_leaves([share * part["condition"][~part["inner"]] for part in ordered]),
        "cuts": np.concatenate(cuts),
        "cut_count": np.array([len(thresholds) for thresholds in cuts], dtype=np.uint16),
    }
    return {"base": float(base), "levels": max((part["levels"] for part in ordered), default=0)}, arrays


def _leaves(trees: Sequence[Array]) -> dict[str, Array]:
    low = np.array([leaves.min() for leaves in trees], dtype=np.float32)
    step = np.array([(leaves.max() - leaves.min()) / 255 or 1.0 for leaves in trees], dtype=np.float32)
    nearest = [np.rint((v - a) / b) for v, a, b in zip(trees, low, step, strict=True)]
    return {"leaf": np.concatenate(nearest).clip(0, 255).astype(np.uint8), "leaf_low": low, "leaf_step": step}


def expand(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> CompactTrees:
    """Create trees from the result of `compact`. Raise `ValueError` if the arrays do not fit together."""
    nodes, levels = arrays["nodes"].astype(np.int64), int(facts["levels"])
    count = int(nodes.sum())
    inner = np.unpackbits(arrays["inner"], count=count).view(bool)
    splits = np.flatnonzero(inner)
    before = np.cumsum(inner, dtype=np.int32)
    before -= inner
    start = np.cumsum(nodes) - nodes
    # `first` is the index of each tree's first split, and `of_tree` the number of its splits.
    first = np.append(before, len(splits)).take(start)
    of_tree = np.diff(first, append=len(splits))
    left = 2 * np.arange(len(splits)) + np.repeat(start + 1 - 2 * first, of_tree)
    column, cut, cut_count = arrays["column"], arrays["cut"], arrays["cut_count"].astype(np.int64)
    if (
        not 0 <= levels <= _MOST_LEVELS
        or count > _MOST_NODES
        or (nodes < 1).any()
        or len(column) != len(splits)
        or len(cut) != len(splits)
        or len(arrays["leaf"]) != count - len(splits)
        or not len(arrays["leaf_low"]) == len(arrays["leaf_step"]) == len(nodes)
        or (left + 1 >= np.repeat(start + nodes, of_tree)).any()
        or (left <= splits).any()
        or (len(splits) and column.max() >= len(cut_count))
        or (cut >= cut_count.take(column)).any()
        or int(cut_count.sum()) != len(arrays["cuts"])
        or (levels and not len(splits))
    ):
        raise ValueError("trees whose arrays do not fit together")
    leaves = nodes - of_tree
    leaf = np.repeat(arrays["leaf_low"], leaves) + np.repeat(arrays["leaf_step"], leaves) * arrays["leaf"]
    threshold = arrays["cuts"].take((np.cumsum(cut_count) - cut_count).take(column) + cut)
    children, features, values = np.arange(count), np.zeros(count, np.int64), np.zeros(count, leaf.dtype)
    thresholds = np.full(count, np.nan, threshold.dtype)
    children[splits], features[splits], thresholds[splits], values[~inner] = left, column, threshold, leaf
    base = float(facts["base"])
    if not all(np.isfinite(part).all() for part in (base, leaf, threshold)):
        raise ValueError("trees with a number that is not finite")
    return CompactTrees(start, children, features, thresholds, values, base, levels)


def compressed(trees: Trees) -> Array:
    """Compress stored trees to bytes, as a uint8 array."""
    return np.frombuffer(zlib.compress(pack(*trees), 9), dtype=np.uint8)


def decompressed(data: Array) -> Trees:
    """Return the stored trees from compressed bytes. Raise `ValueError` if the bytes are damaged or too large."""
    inflate = zlib.decompressobj()
    try:
        whole = inflate.decompress(data.tobytes(), _MOST_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflate.eof:
        raise ValueError("trees that are cut short or far too large")
    return unpack(whole)


def _by_level(tree: Mapping[str, Any]) -> dict[str, Any]:
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
