"""Predict with boosted trees without XGBoost, for queries.

Importing XGBoost takes longer than a whole recommendation. Its model files are UBJSON (ubjson.org, with the typed
arrays that XGBoost writes). `Forest.parse` converts every tree to a complete binary tree, so a step down is one
comparison and needs no links. The arrays are stored beside the model (`Forest.packed`), because loading them is much
faster than parsing UBJSON.
"""

import mmap
import struct
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from kernrec.errors import UsageError
from kernrec.util.array_file import pack, unpack
from kernrec.util.engine import query
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

_MOST_LEVELS = 10  # a complete tree doubles in size with each level
_NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_SCALARS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}
_MOST_DEPTH = 64
_MOST_TREES = 1 << 16
_LARGEST = 25.0
"""Largest leaf and base. No plausible log ratio exceeds 25."""
_EIGHT = 8  # trees are evaluated eight at a time
_MOST_FEATURES = 1 << 15  # a column index has two bytes


class _Reader:
    """Reader of one UBJSON document. Raises `ValueError`, `IndexError` or `struct.error` for other bytes."""

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
        """Return the type and count at the start of a container, if any."""
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
    """Complete binary trees of L levels over F features. Empty trees pad their number T to a multiple of eight.

    Nodes are stored level by level, and in each level tree by tree: the root of tree t is node t, and the children of
    node n are nodes 2 n + T and 2 n + T + 1.
    """

    features: int
    trees: int
    """Number of trees without empty ones."""
    levels: int
    column: Array
    """Feature of each split, uint16, (T (2**L - 1),). F is added if missing values go right."""
    value: Array
    """Threshold of each split (values from it on go right), followed by the leaves; float32, (T (2**(L + 1) - 1),)."""
    base: float
    """Constant added to every sum of leaves."""

    @classmethod
    def parse(cls, data: bytes, source: str) -> "Forest":
        """Read an XGBoost model in UBJSON.

        Args:
            source: Name of the model in the message of the `UsageError`.
        """
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
            node = np.zeros(1, np.int64)  # the tree's node at each index of the level
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
                # All nodes below a leaf repeat the leaf.
                node = np.stack([np.where(inner, left[node], node), np.where(inner, right[node], node)], 1).ravel()
            value[_place(width, number, levels)] = condition[node]
        return cls(features, len(trees), levels, column, value, base)._checked()

    def _checked(self) -> "Forest":
        """Return the forest. Raises `ValueError` if its trees are malformed or would predict impossible values."""
        splits, nodes = (_width(self.trees) * ((1 << levels) - 1) for levels in (self.levels, self.levels + 1))
        if self.column.shape != (splits,) or self.value.shape != (nodes,):
            raise ValueError("levels of wrong lengths")
        if splits and self.column.max() >= 2 * self.features:
            raise ValueError("a split on a feature that does not exist")
        # Below a leaf, thresholds are infinite. No comparison with NaN is true.
        if not (self.value[:splits] > -np.inf).all():
            raise ValueError("a threshold that is not finite")
        if not (abs(self.base) <= _LARGEST and (np.abs(self.value[splits:]) <= _LARGEST).all()):
            raise ValueError(f"a base or leaf beyond {_LARGEST:g}, or not finite")
        return self

    def predict(self, matrix: Array) -> Array:
        """Return the prediction for each row of a matrix (C, F), whose NaNs are missing values; float64 (C,)."""
        sums = np.empty(len(matrix))
        self._in_engine.predict(np.asarray(matrix, dtype=np.float32), sums)
        return sums

    @cached_property
    def _in_engine(self) -> Any:
        return query.Forest(self.features, _width(self.trees), self.levels, self.column, self.value, self.base)

    def packed(self, source: bytes) -> bytes:
        """Return the trees in the format of an array file.

        Args:
            source: UBJSON that they were parsed from.
        """
        header = {"of": sha256(source).hexdigest(), "features": self.features, "trees": self.trees, "base": self.base}
        return pack(header | {"levels": self.levels}, {"column": self.column, "value": self.value})

    @classmethod
    def unpacked(cls, data: bytes | mmap.mmap, source_sha256: str) -> "Forest":
        """Read the result of `packed`. The caller has already verified a hash of the whole file. Raises `ValueError`
        if the data is damaged, or belongs to UBJSON with another hash.
        """
        header, arrays = unpack(data, intact=True)
        try:
            if header["of"] != source_sha256:
                raise ValueError("made of other trees")
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
    """Return the number of splits on the longest path down a tree."""
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    nodes, levels = np.zeros(1, np.int64), 0
    while len(nodes := nodes[left[nodes] >= 0]):
        nodes = np.concatenate([left[nodes], right[nodes]])
        levels += 1
        if levels > _MOST_LEVELS:
            raise ValueError(f"trees deeper than {_MOST_LEVELS}")
    return levels
