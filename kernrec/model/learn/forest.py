"""Evaluate boosted trees without XGBoost, because importing XGBoost takes longer than a whole recommendation. Training
converts each tree to a complete binary tree in arrays, which needs one comparison per level and no pointers."""

import json
import mmap
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.util.array_file import pack, unpack
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_MOST_LEVELS = 10  # Each level doubles the size of a complete tree.
_MOST_TREES = 1 << 16
_LARGEST = 25.0
"""Maximum absolute value of a leaf or of the base. The logarithm of a plausible ratio never exceeds 25."""
_EIGHT = 8  # Files contain a multiple of eight trees.
_MOST_FEATURES = (1 << 15) - 1  # A column index has two bytes, one bit of which is a flag.


@dataclass(frozen=True)
class Forest:
    """Complete binary trees with L levels of splits over F features. Empty trees are added until the number of trees T
    is a multiple of eight. Nodes are stored level by level, and tree by tree within a level. The root of tree t is node
    t. The children of node n are nodes 2 n + T and 2 n + T + 1."""

    features: int
    trees: int
    """Number of trees, without the empty trees."""
    levels: int
    column: Array
    """Index of each split's feature, plus F if missing values go right. The array is uint16, (T (2**L - 1),)."""
    value: Array
    """Thresholds of all splits, followed by all leaves. The array is float32, (T (2**(L + 1) - 1),). A feature that
    equals its threshold goes right."""
    base: float
    """Constant added to the sum of leaves."""

    @classmethod
    def of_booster(cls, booster: Any) -> "Forest":
        """Convert an `xgboost.Booster`. Raise `ValueError` if a tree is too deep, or contains an implausible number."""
        learner = json.loads(booster.save_raw("json"))["learner"]
        shape = learner["learner_model_param"]
        trees = learner["gradient_booster"]["model"]["trees"]
        return cls.laid_out(trees, int(shape["num_feature"]), float(shape["base_score"].strip("[]")))

    @classmethod
    def laid_out(cls, trees: list[Mapping[str, Any]], features: int, base: float) -> "Forest":
        """Convert trees in XGBoost's JSON format to complete trees. Raise `ValueError` if a tree is malformed."""
        levels = max((_levels(tree) for tree in trees), default=0)
        if features > _MOST_FEATURES:
            raise ValueError(f"{features} features")
        width = _width(len(trees))
        column = np.zeros(width * ((1 << levels) - 1), np.uint16)
        value = np.full(width * ((2 << levels) - 1), np.inf, np.float32)
        value[len(column) :] = 0.0
        for number, tree in enumerate(trees):
            left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
            split, condition = np.asarray(tree["split_indices"]), np.asarray(tree["split_conditions"])
            missing_left = np.asarray(tree["default_left"])
            node = np.zeros(1, np.int64)  # For each node of the level, its index in the original tree.
            for level in range(levels):
                place = _place(width, number, level)
                inner = left[node] >= 0
                splits = split[node]
                if ((splits < 0) | (splits >= features))[inner].any():
                    raise ValueError("a split on a feature that does not exist")
                if (right[node] < 0)[inner].any() or not np.isfinite(condition[node]).all():
                    raise ValueError("a node without a right child, or a number that is not finite")
                splits = splits + np.where(missing_left[node] != 0, 0, features)
                column[place] = np.where(inner, splits, 0)
                value[place] = np.where(inner, condition[node], np.inf)
                # The children of a leaf are copies of the leaf, so that the tree is complete.
                node = np.stack([np.where(inner, left[node], node), np.where(inner, right[node], node)], 1).ravel()
            value[_place(width, number, levels)] = condition[node]
        return cls(features, len(trees), levels, column, value, base)._checked()

    def _checked(self) -> "Forest":
        splits, nodes = (_width(self.trees) * ((1 << levels) - 1) for levels in (self.levels, self.levels + 1))
        if self.column.shape != (splits,) or self.value.shape != (nodes,):
            raise ValueError("levels of wrong lengths")
        if splits and self.column.max() >= 2 * self.features:
            raise ValueError("a split on a feature that does not exist")
        # Accept +inf, because copies of a leaf have this threshold. Reject -inf and NaN.
        if not (self.value[:splits] > -np.inf).all():
            raise ValueError("a threshold that is not finite")
        if not (abs(self.base) <= _LARGEST and (np.abs(self.value[splits:]) <= _LARGEST).all()):
            raise ValueError(f"a base or leaf beyond {_LARGEST:g}, or not finite")
        return self

    def predict(self, matrix: Array) -> Array:
        """Return the prediction for each row of a matrix (C, F), as float64 (C,). NaN marks a missing value."""
        sums = np.empty(len(matrix))
        self.in_engine.predict(np.asarray(matrix, dtype=np.float32), sums)
        return sums

    @cached_property
    def in_engine(self) -> Any:
        return query.Trees(self.features, _width(self.trees), self.levels, self.column, self.value, self.base)

    def packed(self) -> bytes:
        """Return the trees as bytes for a file."""
        header = {"features": self.features, "trees": self.trees, "levels": self.levels, "base": self.base}
        return pack(header, {"column": self.column, "value": self.value})

    @classmethod
    def unpacked(cls, data: bytes | mmap.mmap) -> "Forest":
        """Create a forest from the result of `packed`. Raise `ValueError` if the bytes are damaged."""
        header, arrays = unpack(data, intact=True)
        try:
            column, value = arrays["column"], arrays["value"]
            whole = (header[name] for name in ("features", "trees", "levels"))
            features, trees, levels = (int(number) if type(number) is int else -1 for number in whole)
            if not (0 <= features <= _MOST_FEATURES and 0 <= trees <= _MOST_TREES and 0 <= levels <= _MOST_LEVELS):
                raise ValueError("impossible numbers of features, trees or levels")
            if column.dtype != np.uint16 or value.dtype != np.float32:
                raise ValueError("arrays of wrong types")
            return cls(features, trees, levels, column, value, float(header["base"]))._checked()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not packed trees ({type(error).__name__}: {error})") from None


def _width(trees: int) -> int:
    return -(-trees // _EIGHT) * _EIGHT


def _place(width: int, tree: int, level: int) -> slice:
    first = width * ((1 << level) - 1) + (tree << level)
    return slice(first, first + (1 << level))


def _levels(tree: Mapping[str, Any]) -> int:
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    nodes, levels = np.zeros(1, np.int64), 0
    while len(nodes := nodes[left[nodes] >= 0]):
        nodes = np.concatenate([left[nodes], right[nodes]])
        levels += 1
        if levels > _MOST_LEVELS:
            raise ValueError(f"trees deeper than {_MOST_LEVELS}")
    return levels
