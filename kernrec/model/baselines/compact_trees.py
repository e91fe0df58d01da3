"""Compact boosted trees for shipped models: small files that load quickly.

A split is stored in two bytes: one selects the feature, and the other selects one of at most 256 thresholds. A leaf is
stored in one byte, as one of 256 values between the minimum and the maximum leaf of the tree. Rounding the leaves
changes the sum of 200 trees by about 0.001.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernrec.util.array_file import pack, unpack
from kernrec.util.engine import query

Array = np.ndarray

Trees = tuple[Mapping[str, Any], Mapping[str, Array]]
"""Stored trees: metadata as JSON values, and arrays."""

MOST_CUTS = 256
_MOST_LEVELS = 32
_MOST_NODES = 1 << 23
"""Maximum number of nodes."""
_MOST_BYTES = 16 << 20
_ARRAYS = ("nodes", "inner", "column", "cut", "cut_count", "cuts", "leaf", "leaf_low", "leaf_step")


class CompactTrees:
    """Ensemble of boosted trees in the engine."""

    def __init__(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Create trees from the result of `compact`. Raise `ValueError` if the arrays do not fit together."""
        base, levels = float(facts["base"]), int(facts["levels"])
        if levels > _MOST_LEVELS or int(arrays["nodes"].sum(dtype=np.int64)) > _MOST_NODES:
            raise ValueError(f"trees with more than {_MOST_LEVELS} levels or {_MOST_NODES} nodes")
        self.in_engine: Any = query.Trees(base, levels, *(arrays[name] for name in _ARRAYS))
        self.features = int(arrays["column"].max(initial=0)) + 1
        """Minimum number of features of a row."""

    def predict(self, matrix: Array) -> Array:
        """Return one prediction per row of a matrix of shape (C, F) without missing values."""
        predicted = np.empty(len(matrix))
        self.in_engine.predict(np.asarray(matrix, dtype=np.float32), predicted)
        return predicted


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
