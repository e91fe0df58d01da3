"""Train boosted trees on a table of recordings of backends, and measure their errors on held-out recordings.

one GPU     trees that minimize squared errors, then trees that minimize absolute errors. The result predicts the
            median and ignores outliers. If a set has few rows, its GPUs share the rows
any GPU     fewer and shallower trees that only use ratios as features. Their correction is multiplied by the fraction
            that predicts held-out architectures best

Problems, sizes and GPUs are held out. A held-out problem is held out on all GPUs, in all data types, layouts and
backends. A GPU is held out together with all GPUs of its architecture. Errors are log(measured / predicted).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.baselines.backends import AT
from kernrec.model.baselines.compact_trees import MOST_CUTS, Trees, compact
from kernrec.model.learn.conformal import Interval, calibrate
from kernrec.training.scores import group_folds
from kernrec.util.optional import import_optional
from library_training.table import FOLDS, Table

Array = np.ndarray

_ROUNDS = (60, 160)
"""Numbers of trees that minimize squared errors and absolute errors."""
_LEAVES, _LEVELS, _RATE = 96, 8, 0.15
_POWER_ROUNDS, _POWER_LEAVES = (40, 60), 32
"""Numbers of trees for power, and maximum number of leaves. They are smaller, because recorded power is noisier."""
_FEWEST_POWERS = 2000
"""Minimum number of recorded powers for training trees that split. With fewer powers, only the mean level is learned.
Trees that are trained on a few hundred long launches predict short launches badly."""
_NEVER_SPLIT = 1e9
_ROWS_PER_LEAF = 60
_FEW_ROWS = 5000
"""In sets with at most this many rows, all trees are trained on rows of all GPUs. Then held-out unaligned matmuls of
the set `inductor` are 8 and 5 % off on the A100 and the H100, instead of 10 and 7 %."""
_SHARED_ROUNDS, _SHARED_LEVELS, _SHARED_LEAVES = (80, 40), 5, 16
"""Numbers of trees, levels and leaves for unrecorded GPUs. Deeper trees predict held-out GPUs worse."""
_SHARED_ROWS = 40_000
"""Maximum number of rows for training trees for unrecorded GPUs."""
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEAST_FAMILIES = 5
"""Minimum number of recorded architectures to choose `Boosted.share`. With four, predictions were worse."""
_TESTED_ROWS = 10_000
"""Maximum number of rows of a held-out architecture with which `Boosted.share` is chosen."""


@dataclass(frozen=True)
class Boosted:
    """Trees that use some of the features in a table."""

    columns: Array
    boosters: Sequence[Any]
    base: float
    share: float = 1.0
    """Factor by which the sum of the trees is scaled."""

    def predict(self, matrix: Array) -> Array:
        """Return the predicted logarithmic ratio for each row of a matrix with all features."""
        part = matrix[:, self.columns]
        return np.asarray(self.base + self.share * sum(booster.inplace_predict(part) for booster in self.boosters))

    def errors(self, table: Table, quantity: str, rows: Array) -> Array:
        """Return log(measured / predicted) of some rows of a table."""
        return np.asarray(table.target[quantity][rows] - self.predict(table.matrix[quantity][rows]))

    def compact(self) -> Trees:
        """Convert the trees to the form that is stored in a model file."""
        learners = [json.loads(booster.save_raw("json"))["learner"] for booster in self.boosters]
        trees = [tree for learner in learners for tree in learner["gradient_booster"]["model"]["trees"]]
        return compact(trees, len(self.columns), self.base, self.share)


def boost_gpu(table: Table, quantity: str, gpu: str, rows: Array) -> Boosted:
    """Train the trees of one GPU on these rows. If the set has few rows, also train on rows of other GPUs. Skip
    problems in this GPU's remaining rows, because these problems are held out."""
    if len(table.recording) <= _FEW_ROWS:
        held_out = np.setdiff1d(table.problem[table.on(gpu, quantity)], table.problem[rows])
        every = np.flatnonzero(np.isfinite(table.target[quantity]))
        rows = every[~np.isin(table.problem[every], held_out)]
    rounds, most = (_POWER_ROUNDS, _POWER_LEAVES) if quantity == "power" else (_ROUNDS, _LEAVES)
    leaves = int(np.clip(len(rows) / _ROWS_PER_LEAF, 8, most))
    settings = {"max_depth": _LEVELS, "max_leaves": leaves, "colsample_bytree": 0.5}
    columns = np.arange(len(table.columns[quantity]))
    return _boosted(table, quantity, rows, np.ones(len(rows)), columns, settings, rounds)


def boost_any(table: Table, quantity: str, families: Mapping[str, Sequence[str]]) -> Boosted:
    """Train trees for unrecorded GPUs. families: recorded GPUs, keyed by architecture. The scale of the correction by
    trees is chosen by predicting each architecture with trees of the other architectures."""
    rows = {arch: table.carried_by(gpus, quantity) for arch, gpus in families.items()}
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
    """Train a few shallow trees that only use ratios. In `rows`, every backend on every GPU has the same weight."""
    rows = np.random.default_rng(0).permutation(rows)[:_SHARED_ROWS]
    source = np.char.add(table.recording.gpu[rows].astype(str), table.recording.backend[rows].astype(str))
    _, number, count = np.unique(source, return_inverse=True, return_counts=True)
    weight = len(rows) / len(count) / count[number]
    settings = {"max_depth": _SHARED_LEVELS, "max_leaves": _SHARED_LEAVES, "min_child_weight": 30}
    return _boosted(table, quantity, rows, weight, table.ratios(quantity), settings, _SHARED_ROUNDS)


def _boosted(
    table: Table, quantity: str, rows: Array, weight: Array, columns: Array, settings: Mapping[str, Any],
    rounds: tuple[int, int],
) -> Boosted:  # fmt: skip
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


_FEWEST_TIMES = 30
"""Minimum number of times of a backend on a GPU from which its overhead is fitted."""
_LEAST_S = 1e-6
"""Minimum overhead in seconds. A shorter overhead may be an error of the bound."""
_DIFFERENT = 1.1
"""Minimum ratio between the times of two backends that do not count as equally fast."""


def left_out_errors(table: Table, quantity: str, gpu: str, folds: int = FOLDS) -> Array:
    """Return log(measured / predicted), (N,), of trees trained without the row's problem. Other GPUs have NaN."""
    rows, fold = table.on(gpu, quantity), table.fold()
    return _errors_without(table, quantity, gpu, (fold[rows] == number for number in range(folds)))


def between_errors(table: Table, quantity: str, gpu: str) -> Array:
    """Return log(measured / predicted), (N,), of trees trained without the row's size. Other rows are NaN."""
    rows = table.on(gpu, quantity)
    folds = [group_folds(table.recording.dims[name], FOLDS, seed=7) for name in table.recording.recorded.grid]
    return _errors_without(table, quantity, gpu, [np.any([fold[rows] == 0 for fold in folds], axis=0)] * bool(folds))


def _errors_without(table: Table, quantity: str, gpu: str, left_out: Iterable[Array]) -> Array:
    """Return log(measured / predicted), (N,), of a GPU's rows that a mask in `left_out` holds out. Other rows are
    NaN."""
    errors, rows = np.full(len(table.recording), np.nan), table.on(gpu, quantity)
    for mask in left_out:
        errors[rows[mask]] = boost_gpu(table, quantity, gpu, rows[~mask]).errors(table, quantity, rows[mask])
    return errors


def gpu_left_out_errors(
    table: Table, quantity: str, families: Mapping[str, Sequence[str]], add_overheads: bool = False
) -> dict[str, Array]:
    """Return log(measured / predicted) of each GPU's rows, by trees for the other architectures.

    Superseded versions are skipped, and so are backends without recordings on other architectures: kernrec predicts
    neither for unrecorded GPUs. If nothing else was recorded on a GPU, they are included. With `add_overheads`, the
    trees correct the bound plus `overheads_s` of the other architectures."""
    errors = {}
    for arch, gpus in families.items() if len(families) > 1 else ():
        others = {other: gpus for other, gpus in families.items() if other != arch}
        other_gpus = [gpu for gpus in others.values() for gpu in gpus]
        shifted = table.with_overheads(overheads_s(table, other_gpus)) if add_overheads else table
        trees = boost_any(shifted, quantity, others)
        backends = set(table.recording.backend[table.carried_by(other_gpus, quantity)].tolist())
        for gpu in gpus:
            rows = table.carried(gpu, quantity)
            predicted = np.isin(table.recording.backend[rows], [name for name in backends if AT not in name])
            errors[gpu] = trees.errors(shifted, quantity, rows[predicted] if predicted.any() else rows)
    return errors


def overheads_s(table: Table, gpus: Sequence[str]) -> dict[str, float]:
    """Fit `overhead + ratio * bound` to the times of each backend on each GPU, by relative least squares. Return the
    median overhead over GPUs in seconds, keyed by backend.

    The overhead is the time of further launches, such as those that quantize activations. It hardly depends on the GPU,
    so it does not shrink on faster GPUs, as a ratio to the bound would."""
    fitted: dict[str, list[float]] = {}
    for gpu in gpus:
        rows = table.carried(gpu, "latency")
        for backend in np.unique(table.recording.backend[rows]):
            part = rows[table.recording.backend[rows] == backend]
            if len(part) >= _FEWEST_TIMES:
                measured_s, over_bound = table.recording.latency_s[part], np.exp(table.target["latency"][part])
                ratios = np.stack([1.0 / measured_s, 1.0 / over_bound], axis=1)
                overhead, _ = np.linalg.lstsq(ratios, np.ones(len(part)), rcond=None)[0]
                fitted.setdefault(str(backend), []).append(max(float(overhead), 0.0))
    medians = {backend: float(np.median(seconds)) for backend, seconds in sorted(fitted.items())}
    return {backend: seconds for backend, seconds in medians.items() if seconds >= _LEAST_S}


def gpu_interval(errors: Mapping[str, Array], group: Callable[[str], str]) -> Interval:
    """Return an interval that is calibrated on the errors of held-out GPUs. `group` returns the group of a GPU."""
    groups = [np.full(len(error), group(gpu)) for gpu, error in errors.items()]
    return calibrate(
        np.concatenate([*errors.values(), np.zeros(0)]), np.concatenate([*groups, np.zeros(0, str)]), "GPU"
    )


def coverage(errors: Array, problem: Array) -> float:
    """Return the fraction of errors inside an interval that was calibrated on the other half of the problems. Shapes:
    `errors` and `problem` (N,)."""
    rows = np.flatnonzero(np.isfinite(errors))
    half = group_folds(problem[rows], 2, seed=3)
    inside = np.zeros(len(rows), dtype=bool)
    for part in (0, 1):
        others = rows[half != part]
        width = calibrate(errors[others], problem[others], "problem").width
        inside[half == part] = np.abs(errors[rows[half == part]]) <= width
    return float(inside.mean())


def coverage_of_gpus(errors: Mapping[str, Array]) -> dict[str, float]:
    """Return, for each architecture, the fraction of errors inside an interval calibrated on all others."""
    shares = {}
    for arch in dict.fromkeys(map(arch_of, errors)):
        width = gpu_interval({gpu: part for gpu, part in errors.items() if arch_of(gpu) != arch}, arch_of).width
        own = np.concatenate([part for gpu, part in errors.items() if arch_of(gpu) == arch])
        shares[arch] = round(float((np.abs(own) <= width).mean()), 3)
    return shares


def arch_of(gpu: str) -> str:
    return find_gpu(gpu).arch


def fastest_named(table: Table, errors: Array) -> tuple[int, int]:
    """Return (number of problems whose fastest backend is predicted correctly, number of problems). Only problems whose
    two fastest backends differ by at least `_DIFFERENT` count. `errors` are log(measured / predicted), (N,)."""
    rows = np.flatnonzero(np.isfinite(errors))
    of_row = (table.recording.gpu[rows], table.recording.dtype[rows], table.problem[rows])
    groups: dict[tuple[str, str, int], list[int]] = {}
    for row, key in zip(rows.tolist(), zip(*of_row, strict=True), strict=True):
        groups.setdefault(key, []).append(row)
    measured_s, backend = table.recording.latency_s, table.recording.backend
    predicted_s = measured_s / np.exp(errors)
    right = count = 0
    for group in groups.values():
        first = min(group, key=measured_s.__getitem__)
        others = [measured_s[row] for row in group if backend[row] != backend[first]]
        if others and min(others) >= _DIFFERENT * measured_s[first]:
            count += 1
            right += int(backend[min(group, key=predicted_s.__getitem__)] == backend[first])
    return right, count
