"""Train boosted trees on a table of recordings of backends.

one GPU     trees of squared errors, then of absolute errors, to predict the median and ignore outliers
any GPU     fewer and shallower trees over ratios, scaled by the fraction that carries over between recorded
            architectures
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.model.vendor.compact_trees import MOST_CUTS, Trees, compact
from kernrec.util.optional import import_optional
from library_training.table import Table

Array = np.ndarray

_ROUNDS = (60, 160)
"""Numbers of trees of squared and of absolute errors."""
_LEAVES, _LEVELS, _RATE = 96, 8, 0.15
_POWER_ROUNDS, _POWER_LEAVES = (40, 60), 32
"""Numbers of trees and of leaves for power: fewer, because recorded power is noisier."""
_FEWEST_POWERS = 2000
"""Minimum recorded powers for training trees. With fewer, only the mean level over the base is used, because trees
would apply peculiarities of a few hundred long launches to short ones."""
_NEVER_SPLIT = 1e9
_ROWS_PER_LEAF = 60
_SHARED_ROUNDS, _SHARED_LEVELS, _SHARED_LEAVES = (80, 40), 5, 16
"""Numbers of trees, levels and leaves for GPUs without recordings; deeper trees do worse on a held-out GPU."""
_SHARED_ROWS = 40_000
"""Maximum rows to train trees for any GPU."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEAST_FAMILIES = 5
"""Minimum recorded architectures for selecting one of `_SHARES`; four gave worse results when held out."""
_TESTED_ROWS = 10_000
"""Maximum rows of a held-out architecture for selecting one of `_SHARES`."""


@dataclass(frozen=True)
class Boosted:
    """Trees over some columns of a table."""

    columns: Array
    boosters: Sequence[Any]
    base: float
    share: float = 1.0
    """Fraction of the trees' sum to use."""

    def predict(self, matrix: Array) -> Array:
        """Return the predicted log ratios of the rows of a matrix with all columns."""
        part = matrix[:, self.columns]
        return np.asarray(self.base + self.share * sum(booster.inplace_predict(part) for booster in self.boosters))

    def compact(self) -> Trees:
        """Convert the trees to the form of a model file."""
        trees: list[Any] = []
        for booster in self.boosters:
            learner = json.loads(booster.save_raw("json"))["learner"]
            trees += learner["gradient_booster"]["model"]["trees"]
        return compact(trees, len(self.columns), self.base, self.share)


def boost_card(table: Table, quantity: str, rows: Array) -> Boosted:
    """Train trees for one GPU."""
    rounds, most = (_POWER_ROUNDS, _POWER_LEAVES) if quantity == "power" else (_ROUNDS, _LEAVES)
    leaves = int(np.clip(len(rows) / _ROWS_PER_LEAF, 8, most))
    settings = {"max_depth": _LEVELS, "max_leaves": leaves, "colsample_bytree": 0.5}
    columns = np.arange(len(table.columns[quantity]))
    return _boosted(table, quantity, rows, np.ones(len(rows)), columns, settings, rounds)


def boost_any(table: Table, quantity: str, families: Mapping[str, Sequence[str]]) -> Boosted:
    """Train trees for GPUs without recordings on `families`, the recorded GPUs by architecture.

    The result has the trees' level, but only the fraction of their correction that best predicts each architecture
    from the others, because peculiarities of recorded GPUs do not apply to other GPUs.
    """
    rows = {arch: np.concatenate([table.carried(gpu, quantity) for gpu in cards]) for arch, cards in families.items()}
    boosted = boost_shared(table, quantity, np.concatenate(list(rows.values())))
    if len(table.families(quantity)) < _LEAST_FAMILIES:
        return boosted
    errors = np.zeros(len(_SHARES))
    for arch in rows:
        trees = boost_shared(table, quantity, np.concatenate([part for other, part in rows.items() if other != arch]))
        tested = np.random.default_rng(1).permutation(rows[arch])[:_TESTED_ROWS]
        beside_level = table.target[quantity][tested] - trees.base
        correction = trees.predict(table.matrix[quantity][tested]) - trees.base
        errors += [np.median(np.abs(beside_level - share * correction)) for share in _SHARES]
    return replace(boosted, share=_SHARES[int(np.argmin(errors))])


def boost_shared(table: Table, quantity: str, rows: Array) -> Boosted:
    """Return few and shallow trees over ratios. Every backend on every GPU of `rows` has the same weight."""
    rows = np.random.default_rng(0).permutation(rows)[:_SHARED_ROWS]
    source = np.char.add(table.recording.gpu[rows].astype(str), table.recording.backend[rows].astype(str))
    _, number, count = np.unique(source, return_inverse=True, return_counts=True)
    weight = len(rows) / len(count) / count[number]
    settings = {"max_depth": _SHARED_LEVELS, "max_leaves": _SHARED_LEAVES, "min_child_weight": 30}
    return _boosted(table, quantity, rows, weight, table.ratios(quantity), settings, _SHARED_ROUNDS)


def _boosted(
    table: Table,
    quantity: str,
    rows: Array,
    weight: Array,
    columns: Array,
    settings: Mapping[str, Any],
    rounds: tuple[int, int],
) -> Boosted:
    xgboost = import_optional("xgboost", "training a model", "train")
    target, matrix = table.target[quantity][rows], table.matrix[quantity][rows][:, columns]
    base = float(np.median(target))
    if quantity == "power" and len(rows) < _FEWEST_POWERS:
        settings, rounds = {"gamma": _NEVER_SPLIT}, (0, 1)
    common = {
        "tree_method": "hist", "grow_policy": "lossguide", "eta": _RATE, "subsample": 0.8, "colsample_bytree": 0.8,
        "nthread": 1, "seed": 0, "base_score": 0.0, "max_bin": MOST_CUTS - 1,
    }  # fmt: skip
    boosters, left = [], target - base
    for objective, count in zip(("reg:squarederror", "reg:absoluteerror"), rounds, strict=True):
        if count:
            data = xgboost.QuantileDMatrix(matrix, left, weight=weight, max_bin=MOST_CUTS - 1, nthread=1)
            boosters.append(xgboost.train({**common, **settings, "objective": objective}, data, count))
            left = left - boosters[-1].inplace_predict(matrix)
    return Boosted(columns, boosters, base)
