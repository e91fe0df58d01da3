"""Train a model of stacks from what others recorded of them (`kernrec.model.vendor`).

    a card      trees of squared errors, then trees of absolute ones, so that the median is met and few strays are not
                chased; intervals from problems left out, and from whole sizes of the grid left out
    any card    few shallow trees over ratios; each card left out in turn calibrates the interval

A problem and all its duplicates, on every card and in every data type and layout, are in the same fold.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.learn.conformal import Interval, calibrate
from kernrec.model.learn.extent import Extent
from kernrec.model.vendor.bound import RATIOS, features, features_of
from kernrec.model.vendor.compact_trees import MOST_CUTS, Trees, compact
from kernrec.model.vendor.model import OTHER, STACK, RecordedSet, log_sizes
from kernrec.training.folds import each_fold, group_folds
from kernrec.training.scores import median_of_log_errors
from kernrec.util.optional import import_optional

Array = np.ndarray

FOLDS = 5
_PARTS = 2
"""How many of five parts of the sizes of each dimension are left out, each with trees of its own."""
_ROUNDS = (180, 120)
"""Trees of squared and of absolute errors."""
_LEAVES, _LEVELS, _RATE = 256, 10, 0.1
_ROWS_PER_LEAF = 40
_SHARED_ROUNDS, _SHARED_LEVELS = 35, 3
"""Of the trees for any card: with 100 trees of 4 levels the error on a card left out rises by a tenth."""


@dataclass(frozen=True)
class Recording:
    """The rows of one recorded set; arrays (N,)."""

    recorded: RecordedSet
    gpu: Array
    stack: Array
    dtype: Array
    layout: Array
    dims: Mapping[str, Array]
    latency_s: Array
    power_w: Array
    """NaN where it was not recorded, or misread."""

    def __len__(self) -> int:
        return len(self.latency_s)


@dataclass(frozen=True)
class Table:
    """A recording as trees see it."""

    recording: Recording
    columns: tuple[str, ...]
    matrix: Array
    """(N, F)."""
    target: Mapping[str, Array]
    """log(measured / roofline) of latency, log(power / TDP) of power, (N,); NaN where it was not recorded."""
    problem: Array
    """The number of each row's problem, (N,), whatever the card, data type and layout."""

    @classmethod
    def of(cls, recording: Recording) -> "Table":
        """Features and targets of every row."""
        matrix, roofline, tdp_w = None, np.empty(len(recording)), np.empty(len(recording))
        columns: tuple[str, ...] = ()
        several = tuple(recording.recorded.stacks) if len(recording.recorded.stacks) > 1 else ()
        kinds = np.stack([recording.gpu, recording.dtype, recording.layout], axis=1)
        for kind in np.unique(kinds, axis=0):
            rows = np.flatnonzero((kinds == kind).all(axis=1))
            dims = {name: sizes[rows] for name, sizes in recording.dims.items()}
            gpu = find_gpu(str(kind[0]))
            timing = recording.recorded.timing
            bound, made = features(recording.recorded.op, gpu, str(kind[1]), str(kind[2]), dims, timing)
            roofline[rows] = bound.total_s
            made |= {STACK + name: recording.stack[rows] == name for name in several}
            if matrix is None:
                columns = tuple(made)
                matrix = np.empty((len(recording), len(columns)), dtype=np.float32)
            matrix[rows] = np.stack([np.broadcast_to(made[name], len(rows)) for name in columns], axis=1)
            tdp_w[rows] = gpu.tdp_w
        assert matrix is not None
        sizes = np.stack([recording.dims[name] for name in features_of(recording.recorded.op).DIMS], axis=1)
        problem = np.unique(sizes, axis=0, return_inverse=True)[1].ravel()
        target = {"latency": np.log(recording.latency_s / roofline), "power": np.log(recording.power_w / tdp_w)}
        return cls(recording, columns, matrix, target, problem)

    def on(self, gpu: str, quantity: str) -> Array:
        """The rows of a card on which a quantity is known."""
        return np.flatnonzero((self.recording.gpu == gpu) & np.isfinite(self.target[quantity]))

    def gpus(self, quantity: str) -> list[str]:
        """The cards on which a quantity is known."""
        return sorted(set(self.recording.gpu[np.isfinite(self.target[quantity])].tolist()))

    def ratios(self) -> Array:
        """The columns that trees for any card take."""
        return np.array([i for i, name in enumerate(self.columns) if name.startswith((*RATIOS, STACK))])


@dataclass(frozen=True)
class Boosted:
    """Trees over some columns of a table."""

    columns: Array
    boosters: Sequence[Any]
    base: float

    def predict(self, matrix: Array) -> Array:
        """Predicted log ratios of the rows of a matrix with all columns."""
        part = matrix[:, self.columns]
        return np.asarray(self.base + sum(booster.inplace_predict(part) for booster in self.boosters))

    def compact(self) -> Trees:
        """The trees as a model file has them."""
        trees: list[Any] = []
        for booster in self.boosters:
            learner = json.loads(booster.save_raw("json"))["learner"]
            trees += learner["gradient_booster"]["model"]["trees"]
        return compact(trees, len(self.columns), self.base)


def boost_card(table: Table, quantity: str, rows: Array) -> Boosted:
    """Trees for one card."""
    columns = np.arange(len(table.columns))
    leaves = int(np.clip(len(rows) / _ROWS_PER_LEAF, 16, _LEAVES))
    settings = {"max_depth": _LEVELS, "max_leaves": leaves, "grow_policy": "lossguide", "min_child_weight": 1}
    return _boosted(table, quantity, rows, columns, settings, _ROUNDS)


def boost_any(table: Table, quantity: str, rows: Array) -> Boosted:
    """Trees for cards that were not recorded. Every card of `rows` has the same weight."""
    settings = {"max_depth": _SHARED_LEVELS, "min_child_weight": 50}
    return _boosted(table, quantity, rows, table.ratios(), settings, (_SHARED_ROUNDS, 0))


def _boosted(
    table: Table,
    quantity: str,
    rows: Array,
    columns: Array,
    settings: Mapping[str, Any],
    rounds: tuple[int, int],
) -> Boosted:
    xgboost = import_optional("xgboost", "training a model", "train")
    target, matrix = table.target[quantity][rows], table.matrix[rows][:, columns]
    base = float(np.median(target))
    weight = np.ones(len(rows))
    if settings["max_depth"] == _SHARED_LEVELS:
        gpus = table.recording.gpu[rows]
        for gpu in np.unique(gpus):
            weight[gpus == gpu] = len(rows) / (gpus == gpu).sum()
        weight /= weight.mean()
    common = {
        "tree_method": "hist", "eta": _RATE, "subsample": 0.8, "colsample_bytree": 0.8, "nthread": 1, "seed": 0,
        "base_score": 0.0, "max_bin": MOST_CUTS - 1,
    }  # fmt: skip
    boosters, left = [], target - base
    for objective, count in zip(("reg:squarederror", "reg:absoluteerror"), rounds, strict=True):
        if count:
            data = xgboost.QuantileDMatrix(matrix, left, weight=weight, max_bin=MOST_CUTS - 1, nthread=1)
            boosters.append(xgboost.train({**common, **settings, "objective": objective}, data, count))
            left = left - boosters[-1].inplace_predict(matrix)
    return Boosted(columns, boosters, base)


def left_out_errors(table: Table, quantity: str, gpu: str) -> Array:
    """log(measured / predicted) of a card's rows (N,), each by trees that did not see its problem; NaN elsewhere."""
    rows = table.on(gpu, quantity)
    return _errors_without(table, quantity, rows, (mask[rows] for mask in each_fold(group_folds(table.problem, FOLDS))))


def between_errors(table: Table, quantity: str, gpu: str) -> Array:
    """As `left_out_errors`, by trees that saw no problem of the row's size in one of the grid's dimensions; NaN also
    where no size of the row was left out."""
    rows = table.on(gpu, quantity)
    folds = [group_folds(table.recording.dims[name], FOLDS, seed=7) for name in table.recording.recorded.grid]
    parts = range(_PARTS if folds else 0)
    left_out = (np.any([fold[rows] == number for fold in folds], axis=0) for number in parts)
    return _errors_without(table, quantity, rows, left_out)


def _errors_without(table: Table, quantity: str, rows: Array, left_out: Iterable[Array]) -> Array:
    """Errors of those of a card's `rows` that each mask leaves out, by trees of the others, (N,); NaN elsewhere."""
    errors = np.full(len(table.recording), np.nan)
    for mask in left_out:
        trees, held_out = boost_card(table, quantity, rows[~mask]), rows[mask]
        errors[held_out] = table.target[quantity][held_out] - trees.predict(table.matrix[held_out])
    return errors


def card_left_out_errors(table: Table, quantity: str, gpus: Sequence[str]) -> dict[str, Array]:
    """log(measured / predicted) of each card's rows by trees of the other cards among `gpus`."""
    errors = {}
    for gpu in gpus if len(gpus) > 1 else ():
        trees = boost_any(table, quantity, np.concatenate([table.on(g, quantity) for g in gpus if g != gpu]))
        rows = table.on(gpu, quantity)
        errors[gpu] = table.target[quantity][rows] - trees.predict(table.matrix[rows])
    return errors


def card_interval(errors: Mapping[str, Array]) -> Interval:
    """The interval for a card that was not recorded, from the errors of cards left out."""
    groups = np.repeat(np.arange(len(errors)), [len(part) for part in errors.values()])
    residual = np.concatenate([*errors.values(), np.zeros(0)])
    return calibrate(residual, groups, "GPU")


def coverage(errors: Array, problem: Array) -> float:
    """Share of rows inside the interval that the other half of the problems gives.

    Args:
        errors: log(measured / predicted), (N,), NaN where nothing was predicted.
        problem: the number of each row's problem, (N,).
    """
    rows = np.flatnonzero(np.isfinite(errors))
    half = group_folds(problem[rows], 2, seed=3)
    inside = np.zeros(len(rows), dtype=bool)
    for part in (0, 1):
        others = rows[half != part]
        width = calibrate(errors[others], problem[others], "problem").width
        inside[half == part] = np.abs(errors[rows[half == part]]) <= width
    return float(inside.mean())


def coverage_of_cards(table: Table, quantity: str) -> dict[str, float]:
    """For each card, the share of its rows inside the interval that the other cards alone give."""
    gpus = table.gpus(quantity)
    errors = card_left_out_errors(table, quantity, gpus)
    shares = {}
    for gpu in errors:
        others = card_left_out_errors(table, quantity, [other for other in gpus if other != gpu])
        shares[gpu] = float((np.abs(errors[gpu]) <= card_interval(others).width).mean())
    return shares


def train_set(recording: Recording) -> tuple[dict[str, Any], dict[str, Trees]]:
    """Train the heads of one recorded set.

    Returns:
        Its entry in the card of the model, and the trees by name.
    """
    table, recorded = Table.of(recording), recording.recorded
    heads: dict[str, dict[str, Any]] = {}
    trees: dict[str, Trees] = {}
    for quantity in table.target:
        if not (gpus := table.gpus(quantity)):
            continue
        heads[quantity] = {}
        for gpu in gpus:
            left_out, between = left_out_errors(table, quantity, gpu), between_errors(table, quantity, gpu)
            rows = table.on(gpu, quantity)
            own = calibrate(left_out[rows], table.problem[rows], "problem")
            on_grid = np.flatnonzero(np.isfinite(between))
            other = calibrate(between[on_grid], table.problem[on_grid], "problem") if len(on_grid) else own
            name = f"{recorded.name}.{quantity}.{gpu}"
            trees[name] = boost_card(table, quantity, rows).compact()
            heads[quantity][gpu] = _head(name, table.columns, own, other) | {
                "rows": len(rows),
                "median error, problems left out": _median(left_out),
                "coverage, problems left out": round(coverage(left_out, table.problem), 3),
                **({"median error, sizes left out": _median(between)} if len(on_grid) else {}),
            }
        errors = card_left_out_errors(table, quantity, gpus)
        name = f"{recorded.name}.{quantity}.any"
        boosted = boost_any(table, quantity, np.concatenate([table.on(gpu, quantity) for gpu in gpus]))
        trees[name] = boosted.compact()
        interval = card_interval(errors)
        heads[quantity][OTHER] = _head(name, [table.columns[i] for i in boosted.columns], interval, interval) | {
            "median error, card left out": {gpu: _median(error) for gpu, error in errors.items()},
            "coverage, card left out": {
                gpu: round(share, 3) for gpu, share in coverage_of_cards(table, quantity).items()
            },
        }
    extent = Extent.of(log_sizes({name: recording.dims[name] for name in features_of(recording.recorded.op).DIMS}))
    working_sets = recorded.timing.working_sets
    finite_sets = working_sets if np.isfinite(working_sets) else None
    entry = {
        **{name: getattr(recorded, name) for name in ("name", "case", "alike_width")},
        **{name: list(getattr(recorded, name)) for name in ("dtypes", "layouts", "alike")},
        "stacks": {stack: dict(cards) for stack, cards in recorded.stacks.items()},
        "multiples": {stack: dict(steps) for stack, steps in recorded.multiples.items()},
        "timing": {"launch_clk": recorded.timing.launch_clk, "working_sets": finite_sets},
        "origin": dict(recorded.origin),
        "sizes": {name: np.unique(recording.dims[name]).tolist() for name in recorded.grid},
        "extent": {key: getattr(extent, key).tolist() for key in ("low", "high", "spread")},
        "heads": heads,
        "problems": int(table.problem.max()) + 1,
    }
    return entry, trees


def _head(name: str, columns: Sequence[str], recorded: Interval, between: Interval) -> dict[str, Any]:
    return {"trees": name, "columns": list(columns), "recorded": vars(recorded), "between": vars(between)}


def _median(error: Array) -> float:
    """The median relative error of log(measured / predicted), rounded to a hundredth of a percent."""
    return round(median_of_log_errors(error), 4)
