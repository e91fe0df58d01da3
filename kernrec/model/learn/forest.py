"""Predictions of boosted trees without XGBoost, for queries.

Importing XGBoost takes longer than a whole recommendation. Its model files are UBJSON (ubjson.org, with the typed
arrays that XGBoost writes). `Forest.parse` converts every tree to a complete binary tree, so that all candidates go
down all trees one level at a time, with one gather and one comparison per level. The arrays are stored beside the model
(`Forest.packed`); loading them is a hundred times as fast as parsing UBJSON.
"""

import mmap
import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.util.array_file import pack, unpack
from kernrec.util.compiled import core
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_MOST_LEVELS = 10  # a complete tree doubles in size with each level
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_SCALARS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_MOST_DEPTH = 64
_LEVEL = ("column", "threshold")


class _Reader:
    """A reader of one UBJSON document; `ValueError`, `IndexError` or `struct.error` where the bytes are not one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0
        self.depth = 0

    def byte(self) -> str:
        self.offset += 1
        return chr(self.data[self.offset - 1])

    def number(self, kind: str) -> int | float:
        code = _SCALARS[kind]
        value: int | float = struct.unpack_from(code, self.data, self.offset)[0]
        self.offset += struct.calcsize(code)
        return value

    def length(self) -> int:
        kind = self.byte()
        if kind not in "iUIlL":
            raise ValueError(f"a length of type {kind!r}")
        value = int(self.number(kind))
        if not 0 <= value <= len(self.data):
            raise ValueError(f"length {value}")
        return value

    def text(self) -> str:
        size = self.length()
        end = self.offset + size
        if end > len(self.data):
            raise ValueError("a text beyond the end of the file")
        text = self.data[self.offset : end].decode()
        self.offset = end
        return text

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
            raise ValueError(f"a value of type {kind!r}")
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        container = self.array() if kind == "[" else self.object()
        self.depth -= 1
        return container

    def header(self) -> tuple[str | None, int | None]:
        """The type and count that a container may begin with."""
        kind = count = None
        if self.data[self.offset] == ord("$"):
            self.offset += 1
            kind = self.byte()
        if self.data[self.offset] == ord("#"):
            self.offset += 1
            count = self.length()
        return kind, count

    def array(self) -> Any:
        kind, count = self.header()
        if kind in _NUMBERS and count is not None:
            code = np.dtype(_NUMBERS[kind])
            values = np.frombuffer(self.data, code, count, self.offset)
            self.offset += count * code.itemsize
            return values
        items: list[Any] = []
        while count is None or len(items) < count:
            if count is None and self.data[self.offset] == ord("]"):
                self.offset += 1
                break
            items.append(self.value(kind))
        return items

    def object(self) -> dict[str, Any]:
        kind, count = self.header()
        members: dict[str, Any] = {}
        while count is None or len(members) < count:
            if count is None and self.data[self.offset] == ord("}"):
                self.offset += 1
                break
            name = self.text()
            members[name] = self.value(kind)
        return members


@dataclass(frozen=True)
class Forest:
    """T complete binary trees of L levels over F features."""

    features: int
    trees: int
    column: tuple[Array, ...]
    """For each level l the feature that each node splits on, (T * 2**l,), all trees one after the other. F is added
    where a missing value goes right."""
    threshold: tuple[Array, ...]
    """For each level l the threshold of each node, (T * 2**l,); values that are not less go right."""
    leaf: Array
    """Value of each leaf, (T * 2**L,)."""
    base: float
    """Added to every sum of leaves."""

    @classmethod
    def parse(cls, data: bytes, source: str) -> "Forest":
        """Read an XGBoost model that was saved as UBJSON; source: its name in the message of the `UsageError`."""
        try:
            learner = _Reader(data).value()["learner"]
            booster, shape = learner["gradient_booster"], learner["learner_model_param"]
            if booster["name"] != "gbtree" or learner["objective"]["name"] != "reg:squarederror":
                raise ValueError(f"{booster['name']} with {learner['objective']['name']}")
            trees = booster["model"]["trees"]
            return cls._laid_out(trees, int(shape["num_feature"]), float(shape["base_score"].strip("[]")))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise UsageError(f"{source} is not a model of boosted trees, or is cut short ({reason:.80})") from None

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
            node = np.zeros(1, np.int64)  # the tree's node at each place of the level
            for level in range(levels):
                place = slice(number << level, (number + 1) << level)
                inner = left[node] >= 0
                if inner.any() and not 0 <= split[node[inner]].max() < features:
                    raise ValueError("a split on a feature that does not exist")
                column[level][place] = np.where(inner, split[node] + np.where(missing_left[node] != 0, 0, features), 0)
                threshold[level][place] = np.where(inner, condition[node], np.inf)
                # Every place below a leaf is that leaf.
                node = np.stack([np.where(inner, left[node], node), np.where(inner, right[node], node)], 1).ravel()
            leaf[number << levels : (number + 1) << levels] = condition[node]
        return cls(features, len(trees), tuple(column), tuple(threshold), leaf, base)

    def predict(self, matrix: Array) -> Array:
        """The prediction for each row of a matrix (C, F), whose NaNs are missing values; float64 (C,)."""
        return self.descend(both_ways(matrix))

    def descend(self, rows: Array) -> Array:
        """As `predict`, for rows from `both_ways`, (C, 2 F)."""
        count = len(rows)
        if not self.column:
            return np.full(count, self.base + self.leaf.sum(dtype=np.float64))
        flat, row = rows.ravel(), np.arange(0, rows.size, 2 * self.features)
        nodes = np.arange(self.trees)[:, np.newaxis].repeat(count, axis=1)
        walk, moved = core("kernrec.model.learn"), nodes
        if not walk.compiled:
            row, moved = row[np.newaxis, np.newaxis], nodes[np.newaxis, np.newaxis]
        for column, threshold in zip(self.column, self.threshold, strict=True):
            walk.functions.next_level(flat, row, column, threshold, moved)
        return np.asarray(self.base + self.leaf.take(nodes).sum(axis=0, dtype=np.float64))

    def packed(self, source: bytes) -> bytes:
        """The trees as the bytes of an array file; source: the UBJSON that they were parsed from."""
        header = {"of": sha256(source).hexdigest(), "features": self.features, "trees": self.trees, "base": self.base}
        levels = enumerate(zip(self.column, self.threshold, strict=True))
        arrays = {f"{name}.{level}": part for level, both in levels for name, part in zip(_LEVEL, both, strict=True)}
        return pack(header | {"levels": len(self.column)}, arrays | {"leaf": self.leaf})

    @classmethod
    def unpacked(cls, data: bytes | mmap.mmap, source_sha256: str) -> "Forest":
        """Read what `packed` wrote; `ValueError` where it is damaged, or of other UBJSON than that with this hash."""
        header, arrays = unpack(data)
        try:
            if header["of"] != source_sha256:
                raise ValueError("made of other trees")
            column, threshold = (
                tuple([arrays[f"{name}.{level}"] for level in range(header["levels"])]) for name in _LEVEL
            )
            forest = cls(header["features"], header["trees"], column, threshold, arrays["leaf"], header["base"])
            sizes = [forest.trees << level for level in range(len(column) + 1)]
            if [len(part) for part in (*column, forest.leaf)] != sizes or [len(t) for t in threshold] != sizes[:-1]:
                raise ValueError("levels of wrong lengths")
            if any(part.min() < 0 or part.max() >= 2 * forest.features for part in column if len(part)):
                raise ValueError("a split on a feature that does not exist")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not packed trees ({type(error).__name__}: {error})") from None
        return forest


def both_ways(matrix: Array) -> Array:
    """The rows of a matrix (C, F) twice, (C, 2 F), float32: missing values go left in the first half, then right."""
    low = np.asarray(matrix, dtype=np.float32)
    missing = np.isnan(low)
    both = np.concatenate([low, low], axis=1)
    if missing.any():
        both[:, : low.shape[1]][missing], both[:, low.shape[1] :][missing] = -np.inf, np.inf
    return both


def _levels(tree: Mapping[str, Any]) -> int:
    """How many splits the longest path down a tree has."""
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    nodes, levels = np.zeros(1, np.int64), 0
    while len(nodes := nodes[left[nodes] >= 0]):
        nodes = np.concatenate([left[nodes], right[nodes]])
        levels += 1
        if levels > _MOST_LEVELS:
            raise ValueError(f"trees deeper than {_MOST_LEVELS}")
    return levels
