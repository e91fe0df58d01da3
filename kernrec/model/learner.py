"""Boosted trees for what the prior misses: the log of measured over predicted latency, and the same for power.

    held-out groups   K folds; trees are added until the held-out loss rises (early stopping), and the held-out
                      residuals calibrate the intervals
    final model       all rows, the median number of trees of the folds

Everything is seeded and the number of threads is fixed, so the same rows give the same file. XGBoost is imported here
and only when something is trained; asking a model takes `model.forest`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernrec.model import scores
from kernrec.model.dataset import HEADS, Dataset
from kernrec.model.features import Facts, matrix
from kernrec.model.forest import Forest
from kernrec.model.intervals import Extent, Interval, calibrate
from kernrec.model.weights import SHARPNESS, loss_weights

Array = np.ndarray

_MANY_ROWS = 50_000  # from here on fewer folds do
_FEWEST_ROWS = 8  # a head with fewer is not trained


@dataclass(frozen=True)
class Settings:
    """How trees are grown. Chosen on the recorded convolution spaces; depth and rounds also by what a query can
    afford."""

    rounds: int = 200
    depth: int = 5
    rate: float = 0.08
    patience: int = 20
    row_share: float = 0.8
    column_share: float = 0.5
    child_weight: float = 5.0
    sharpness: float = SHARPNESS
    seed: int = 0
    threads: int = 2


@dataclass(frozen=True)
class Model:
    """A trained model: trees by head as XGBoost's UBJSON, and what is needed to use and to judge them.

    intervals: by quantity (`latency`, `energy`), then by GPU, `*` for all of them. scores: on held-out groups.
    gpus, kernels (name: hash), ops: what it was trained on.
    """

    columns: tuple[str, ...]
    trees: Mapping[str, bytes]
    extent: Extent
    intervals: Mapping[str, Mapping[str, Interval]]
    scores: Mapping[str, float | str]
    gpus: tuple[str, ...]
    kernels: Mapping[str, str]
    ops: tuple[str, ...]
    forests: Mapping[str, Forest] = field(repr=False, default_factory=dict)

    def rows(self, facts: Facts) -> Array:
        """The features of candidates that this model looks at, (C, F)."""
        return matrix(facts, self.columns)

    def log_ratio(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """(log(expected / prior) by head, distance from what was trained on) of rows of features; arrays (C,)."""
        return {head: forest.predict(rows) for head, forest in self.forests.items()}, self.extent.distance(rows)


def train(data: Dataset, settings: Settings | None = None) -> Model:
    """The model of a dataset; a head without measurements is left out."""
    settings = settings or Settings()
    kind, groups = data.held_out
    trees: dict[str, bytes] = {}
    out_of_fold: dict[str, Array] = {}
    for head in HEADS:
        known = np.flatnonzero(np.isfinite(data.residual[head]))
        if len(known) < _FEWEST_ROWS:
            continue
        trees[head], found = _train_head(data, head, known, groups[known], settings)
        out_of_fold[head] = np.full(len(data), np.nan)
        out_of_fold[head][known] = found
    distance = _held_out_distance(data, _folds(groups, settings, len(data)))
    residual = {"latency": data.residual["latency"] - out_of_fold["latency"]}
    if "power" in out_of_fold:
        residual["energy"] = residual["latency"] + data.residual["power"] - out_of_fold["power"]
    intervals = {
        quantity: _intervals(data, error, kind, groups, distance) for quantity, error in residual.items()
    }  # fmt: skip
    return Model(
        data.columns,
        trees,
        Extent.of(data.matrix),
        intervals,
        _scores(data, out_of_fold, residual, kind, groups),
        tuple(sorted({group.gpu for group in data.groups})),
        {group.kernel: group.kernel_hash for group in data.groups},
        tuple(sorted({group.op for group in data.groups})),
        {head: Forest.parse(found, f"the {head} model") for head, found in trees.items()},
    )


def _train_head(
    data: Dataset, head: str, known: Array, groups: Array, settings: Settings
) -> tuple[bytes, Array]:  # fmt: skip
    """(the final trees, predictions of each row by trees that did not see its group)."""
    # Threads that wait for one another give the processor away, where others need it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xgboost

    target = data.residual[head][known]
    cost = data.latency_s if head == "latency" else data.energy_j
    weights = loss_weights(cost, data.numbers("gpu", "problem", "op"), settings.sharpness)[known]
    rows = data.matrix[known]
    fold = _folds(groups, settings, len(known))

    def boost(chosen: Array, rounds: int, held_out: Array | None) -> tuple[Any, int]:
        inside = xgboost.QuantileDMatrix(rows[chosen], target[chosen], weight=weights[chosen], nthread=settings.threads)
        watched: dict[str, Any] = {}
        if held_out is not None:
            outside = xgboost.QuantileDMatrix(
                rows[held_out], target[held_out], weight=weights[held_out], ref=inside, nthread=settings.threads
            )
            watched = {"evals": [(outside, "held_out")], "early_stopping_rounds": settings.patience}
        parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_depth": settings.depth,
            "eta": settings.rate,
            "subsample": settings.row_share,
            "colsample_bytree": settings.column_share,
            "min_child_weight": settings.child_weight,
            "base_score": float(np.average(target[chosen], weights=weights[chosen])),
            "nthread": settings.threads,
            "seed": settings.seed,
        }
        booster = xgboost.train(parameters, inside, rounds, verbose_eval=False, **watched)
        return booster, (booster.best_iteration + 1 if held_out is not None else rounds)

    predicted, counts = np.zeros(len(known)), []
    if fold.max() > 0:
        for number in range(int(fold.max()) + 1):
            outside = np.flatnonzero(fold == number)
            booster, count = boost(np.flatnonzero(fold != number), settings.rounds, outside)
            predicted[outside] = booster.inplace_predict(rows[outside], iteration_range=(0, count))
            counts.append(count)
    else:
        predicted[:] = np.average(target, weights=weights)
        counts.append(max(settings.rounds // 4, 1))
    final, _ = boost(np.arange(len(known)), int(np.median(counts)), None)
    return bytes(final.save_raw("ubj")), predicted


def _folds(groups: Array, settings: Settings, rows: int) -> Array:
    """The fold of each row: groups shuffled and dealt out, so that no group is in two."""
    numbers, place = np.unique(groups, return_inverse=True)
    count = min(len(numbers), 3 if rows >= _MANY_ROWS else 5)
    dealt = np.empty(len(numbers), dtype=np.int64)
    dealt[np.random.default_rng(settings.seed).permutation(len(numbers))] = np.arange(len(numbers)) % count
    return dealt[place]


def _held_out_distance(data: Dataset, fold: Array) -> Array:
    """How far each row lies outside of the other folds: as far as a new one does that the model is asked about."""
    found = np.zeros(len(data))
    if fold.max() > 0:
        for number in range(int(fold.max()) + 1):
            outside = fold == number
            found[outside] = Extent.of(data.matrix[~outside]).distance(data.matrix[outside])
    return found


def _intervals(data: Dataset, error: Array, kind: str, groups: Array, distance: Array) -> dict[str, Interval]:
    """The interval of all GPUs together (`*`), and of each that has groups enough for one of its own."""
    found = {}
    known = np.isfinite(error)
    gpu = np.repeat([group.gpu for group in data.groups], [len(group) for group in data.groups])
    for name in ("*", *sorted(set(gpu))):
        rows = known if name == "*" else known & (gpu == name)
        if interval := calibrate(error[rows], groups[rows], kind, distance[rows]):
            found[str(name)] = interval
    return found


def _scores(
    data: Dataset, out_of_fold: Mapping[str, Array], residual: Mapping[str, Array], kind: str, groups: Array
) -> dict[str, float | str]:
    """What the held-out rows say of the model."""
    predicted = data.prior["latency"] * np.exp(out_of_fold["latency"])
    problems = data.numbers("gpu", "problem", "op")
    ranks, firsts = [], []
    for number in np.unique(problems):
        rows = np.flatnonzero(problems == number)
        ranks.append(scores.rank_correlation(predicted[rows], data.latency_s[rows]))
        firsts.append(scores.efficiency_at(data.latency_s[rows], scores.order_of(predicted[rows]), 1))
    found: dict[str, float | str] = {
        "held out by": kind,
        "held-out groups": float(len(np.unique(groups))),
        "median latency error": scores.median_error(data.latency_s, predicted),
        "median latency error of the prior": scores.median_error(data.latency_s, data.prior["latency"]),
        "rank correlation": float(np.mean(ranks)),
        "efficiency@1": float(np.mean(firsts)),
    }
    if "energy" in residual:
        found["median energy error"] = float(np.nanmedian(np.abs(np.expm1(-residual["energy"]))))
    return found
