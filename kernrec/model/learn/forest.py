"""Boosted trees without XGBoost: what a query needs to score candidates, in NumPy alone.

Importing XGBoost takes longer than a whole recommendation. Its model files are UBJSON (ubjson.org, with the typed
arrays that XGBoost writes); `Forest.parse` lays every tree out as a complete binary tree, so that all candidates go
down all trees one level at a time, with a gather and a comparison for each level. Trees laid out once are packed as
arrays (`Forest.packed`), which load a hundred times as fast as UBJSON is parsed.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.util.array_file import pack, unpack

Array = np.ndarray

_MOST_LEVELS = 10  # a complete tree doubles with each level
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_SCALARS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_MOST_DEPTH = 64
_LEVEL = ("column", "threshold")


class _Reader:
    """A UBJSON document, read from its start; `ValueError`, `IndexError` or `struct.error` where it is none."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0

    def byte(self) -> str:
        self.at += 1
        return chr(self.data[self.at - 1])

    def number(self, kind: str) -> int | float:
        code = _SCALARS[kind]
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def length(self) -> int:
        kind = self.byte()
        if kind not in "iUIlL":
            raise ValueError(f"length of type {kind!r}")
        value = int(self.number(kind))
        if not 0 <= value <= len(self.data):
            raise ValueError(f"length {value}")
        return value

    def text(self) -> str:
        size = self.length()
        end = self.at + size
        if end > len(self.data):
            raise ValueError("text beyond the end")
        found = self.data[self.at : end].decode()
        self.at = end
        return found

    def value(self, kind: str | None = None) -> Any:
        kind = kind or self.byte()
        if kind in _NUMBERS:
            return self.number(kind)
        if kind == "S":
            return self.text()
        if kind == "C":
            return self.byte()
        if kind in "TFZN":
            return {"T": True, "F": False}.get(kind)
        if kind not in "[{":
            raise ValueError(f"value of type {kind!r}")
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        found = self.array() if kind == "[" else self.object()
        self.depth -= 1
        return found

    def header(self) -> tuple[str | None, int | None]:
        """The type and count that a container may begin with."""
        kind = count = None
        if self.data[self.at] == ord("$"):
            self.at += 1
            kind = self.byte()
        if self.data[self.at] == ord("#"):
            self.at += 1
            count = self.length()
        return kind, count

    def array(self) -> Any:
        kind, count = self.header()
        if kind in _NUMBERS and count is not None:
            code = np.dtype(_NUMBERS[kind])
            found = np.frombuffer(self.data, code, count, self.at)
            self.at += count * code.itemsize
            return found
        items: list[Any] = []
        while count is None or len(items) < count:
            if count is None and self.data[self.at] == ord("]"):
                self.at += 1
                break
            items.append(self.value(kind))
        return items

    def object(self) -> dict[str, Any]:
        kind, count = self.header()
        found: dict[str, Any] = {}
        while count is None or len(found) < count:
            if count is None and self.data[self.at] == ord("}"):
                self.at += 1
                break
            name = self.text()
            found[name] = self.value(kind)
        return found


@dataclass(frozen=True)
class Forest:
    """T trees of at most L levels over F features.

    column[l], threshold[l]: of the nodes of level l, all trees one after the other, (T * 2**l,). A column of F or more
    is that of a missing value that goes right. leaf: (T * 2**L,). base: what is added to every sum.
    """

    features: int
    trees: int
    column: tuple[Array, ...]
    threshold: tuple[Array, ...]
    leaf: Array
    base: float

    @classmethod
    def parse(cls, data: bytes, source: str) -> "Forest":
        """The forest of an XGBoost model saved as UBJSON; `UsageError` naming `source` for anything else."""
        try:
            learner = _Reader(data).value()["learner"]
            booster, shape = learner["gradient_booster"], learner["learner_model_param"]
            if booster["name"] != "gbtree" or learner["objective"]["name"] != "reg:squarederror":
                raise ValueError(f"{booster['name']} with {learner['objective']['name']}")
            trees = booster["model"]["trees"]
            return cls._laid_out(trees, int(shape["num_feature"]), float(shape["base_score"].strip("[]")))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise UsageError(f"{source} is no model of boosted trees, or is cut short ({reason:.80})") from None

    @classmethod
    def _laid_out(cls, trees: list[Mapping[str, Any]], features: int, base: float) -> "Forest":
        levels = max((_levels(tree) for tree in trees), default=0)
        column = [np.zeros(len(trees) << level, np.int64) for level in range(levels)]
        threshold = [np.full(len(trees) << level, np.inf, np.float32) for level in range(levels)]
        leaf = np.zeros(len(trees) << levels, np.float32)
        for number, tree in enumerate(trees):
            left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
            split, condition = np.asarray(tree["split_indices"]), np.asarray(tree["split_conditions"])
            missing_left = np.asarray(tree["default_left"])
            node = np.zeros(1, np.int64)  # of the tree, for each place of the level
            for level in range(levels):
                place = slice(number << level, (number + 1) << level)
                inner = left[node] >= 0
                if inner.any() and not 0 <= split[node[inner]].max() < features:
                    raise ValueError("a split on a feature that there is not")
                column[level][place] = np.where(inner, split[node] + np.where(missing_left[node] != 0, 0, features), 0)
                threshold[level][place] = np.where(inner, condition[node], np.inf)
                # Below a leaf every place holds that leaf.
                node = np.stack([np.where(inner, left[node], node), np.where(inner, right[node], node)], 1).ravel()
            leaf[number << levels : (number + 1) << levels] = condition[node]
        return cls(features, len(trees), tuple(column), tuple(threshold), leaf, base)

    def predict(self, matrix: Array) -> Array:
        """The sum of the leaves of each row of a (C, F) matrix, NaN where a value is missing; float64 (C,)."""
        count = len(matrix)
        if not self.column:
            return np.full(count, self.base + self.leaf.sum(dtype=np.float64))
        low = np.asarray(matrix, dtype=np.float32)
        missing = np.isnan(low)
        both = np.concatenate([np.where(missing, -np.inf, low), np.where(missing, np.inf, low)], axis=1)
        flat, row = both.ravel(), (np.arange(count) * (2 * self.features))[:, None]
        # Node i of a level, of all trees, has the nodes 2 i and 2 i + 1 of the next.
        node = np.broadcast_to(np.arange(self.trees), (count, self.trees))
        for level, (column, threshold) in enumerate(zip(self.column, self.threshold, strict=True)):
            if level:
                place = column.take(node)
                place += row
                right = flat.take(place) >= threshold.take(node)
            else:
                right = both.take(column, axis=1) >= threshold
            node = node + node
            node += right
        return self.base + self.leaf.take(node).sum(axis=1, dtype=np.float64)

    def packed(self, source: bytes) -> bytes:
        """The trees as arrays; source: the UBJSON that they were parsed from."""
        facts = {"of": sha256(source).hexdigest(), "features": self.features, "trees": self.trees, "base": self.base}
        levels = enumerate(zip(self.column, self.threshold, strict=True))
        arrays = {f"{what}.{level}": part for level, both in levels for what, part in zip(_LEVEL, both, strict=True)}
        return pack(facts | {"levels": len(self.column)}, arrays | {"leaf": self.leaf})

    @classmethod
    def unpacked(cls, data: bytes, source: bytes) -> "Forest":
        """What `packed` made of `source`; `ValueError` where it is damaged, or of another source."""
        facts, arrays = unpack(data)
        try:
            if facts["of"] != sha256(source).hexdigest():
                raise ValueError("of other trees")
            column, threshold = (
                tuple([arrays[f"{what}.{level}"] for level in range(facts["levels"])]) for what in _LEVEL
            )
            forest = cls(facts["features"], facts["trees"], column, threshold, arrays["leaf"], facts["base"])
            sizes = [forest.trees << level for level in range(len(column) + 1)]
            if [len(part) for part in (*column, forest.leaf)] != sizes or [len(t) for t in threshold] != sizes[:-1]:
                raise ValueError("levels of other lengths")
            if any(part.min() < 0 or part.max() >= 2 * forest.features for part in column if len(part)):
                raise ValueError("a split on a feature that there is not")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no packed trees ({type(error).__name__}: {error})") from None
        return forest


def _levels(tree: Mapping[str, Any]) -> int:
    """How many splits the longest way down a tree has."""
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    nodes, levels = np.zeros(1, np.int64), 0
    while len(nodes := nodes[left[nodes] >= 0]):
        nodes = np.concatenate([left[nodes], right[nodes]])
        levels += 1
        if levels > _MOST_LEVELS:
            raise ValueError(f"trees deeper than {_MOST_LEVELS}")
    return levels
