"""Train gradient-boosted trees for one head of a model: a predicted quantity such as latency or power.

Cross-validation over groups of rows chooses the smallest number of trees whose held-out loss is close to the minimum,
because each tree slows down queries. The errors of the other folds choose the number of trees for a held-out fold. A
number chosen with the held-out fold's own errors would make these errors look too small.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.model.learn.forest import Forest
from kernrec.model.learn.loss_weights import SHARPNESS, loss_weights
from kernrec.training.dataset import Dataset
from kernrec.training.scores import each_fold, group_folds
from kernrec.util.optional import import_optional

Array = np.ndarray

MANY_ROWS = 100_000
"""Number of rows from which cross-validation uses 3 folds instead of 5, to save time."""
_SAME_LOSS = 0.005


@dataclass(frozen=True)
class TrainingSettings:
    """Settings for growing trees, chosen on recorded convolutions."""

    rounds: int = 200
    """Maximum number of trees of a head."""
    depth: int = 5
    rate: float = 0.08
    """Learning rate: factor of each tree's predictions."""
    patience: int = 20
    """Number of trees without a lower held-out loss after which training stops."""
    row_share: float = 0.8
    """Fraction of the rows, drawn at random, that train a tree."""
    column_share: float = 0.5
    """Fraction of the features, drawn at random, that a tree can use."""
    child_weight: float = 5.0
    """Minimum sum of row weights in a leaf."""
    sharpness: float = SHARPNESS
    """Exponent that gives rows of low cost more weight (see `loss_weights`)."""
    seed: int = 0
    threads: int = 2
    shape: "TrainingSettings | None" = None
    """Settings of separate trees for GPUs without measurements, or None for no separate trees."""


@dataclass(frozen=True)
class HeadData:
    """Training data of one head for N rows."""

    matrix: Array
    """Features, array of shape (N, F)."""
    target: Array
    """log(measured / prediction of the analytical model) of each row. NaN marks a row without a measurement."""
    weights: Array
    """Weight of each row in the loss."""

    @classmethod
    def of(cls, data: Dataset, head: str, settings: TrainingSettings) -> "HeadData":
        cost = data.latency_s if head == "latency" else data.energy_j
        weights = loss_weights(cost, data.numbers("gpu", "problem", "op"), settings.sharpness, data.trust)
        return cls(data.matrix, data.residual[head], weights)

    @classmethod
    def of_shape(cls, data: Dataset, settings: TrainingSettings) -> "HeadData":
        """Return data for learning latency differences between the configs of a problem. These differences transfer to
        other GPUs."""
        # Subtract the mean target of each kernel, GPU and problem. Fast configs have the largest weights in the mean,
        # as in the loss.
        whole = cls.of(data, "latency", settings)
        group = data.numbers("gpu", "problem", "op", "kernel_hash")
        weight = np.where(whole.measured, whole.weights, 0.0)
        weighted = np.where(whole.measured, weight * whole.target, 0.0)
        mean = np.bincount(group, weighted) / np.maximum(np.bincount(group, weight), 1e-30)
        return replace(whole, target=whole.target - mean[group])

    @property
    def measured(self) -> Array:
        return np.asarray(np.isfinite(self.target))

    def times(self, share: float) -> "HeadData":
        return replace(self, target=share * self.target)

    def slope(self, predicted: Array) -> float:
        """Return the factor from 0 to 1 by which to multiply predictions to fit the targets best."""
        rows = np.isfinite(predicted) & self.measured
        weighted = self.weights[rows] * predicted[rows]
        fit = float(weighted @ self.target[rows]) / max(float(weighted @ predicted[rows]), 1e-30)
        return min(max(fit, 0.0), 1.0)


@dataclass(frozen=True)
class TrainedHead:
    data: HeadData
    trees: Forest
    """Trees trained on all measured rows."""
    rounds: int
    out_of_fold: Array
    """Predictions for each row by trees trained without the row's group. NaN marks a row without a
    measurement."""


def predictions_from(data: HeadData, trained_on: Array, rows: Array, rounds: int, settings: TrainingSettings) -> Array:
    """Train trees on some rows, and return their predictions for others. Rows are given by index."""
    booster, _ = _boost(data, trained_on, rounds, None, settings)
    return np.asarray(booster.inplace_predict(data.matrix[rows]))


def train_head(data: HeadData, groups: Array, settings: TrainingSettings) -> TrainedHead:
    """Train the trees of one head. Cross-validation holds out whole groups. `groups` contains each row's group."""
    # Let idle OpenMP threads sleep, because by default, they keep their CPU cores busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    rows = np.flatnonzero(data.measured)
    out_of_fold = np.full(len(data.target), np.nan)
    fold = fold_of_rows(groups[rows], settings)
    if fold.max() > 0:
        boosted, losses = [], []
        for mask in each_fold(fold):
            held_out = rows[mask]
            booster, loss = _boost(data, rows[~mask], settings.rounds, held_out, settings)
            boosted.append((held_out, booster))
            losses.append(loss * len(held_out))
        total = np.sum(losses, axis=0)
        rounds = _fewest_trees(total)
        for (held_out, booster), loss in zip(boosted, losses, strict=True):
            count = min(_fewest_trees(total - loss), booster.num_boosted_rounds())
            out_of_fold[held_out] = booster.inplace_predict(data.matrix[held_out], iteration_range=(0, count))
    else:
        out_of_fold[rows] = np.average(data.target[rows], weights=data.weights[rows])
        rounds = max(settings.rounds // 4, 1)
    return TrainedHead(data, trees_of(data, replace(settings, rounds=rounds)), rounds, out_of_fold)


def trees_of(data: HeadData, settings: TrainingSettings) -> Forest:
    """Train `settings.rounds` trees on all measured rows."""
    booster, _ = _boost(data, np.flatnonzero(data.measured), settings.rounds, None, settings)
    return Forest.of_booster(booster)


def fold_of_rows(groups: Array, settings: TrainingSettings) -> Array:
    """Return the cross-validation fold of each row. Rows of one group have the same fold."""
    return group_folds(groups, 3 if len(groups) >= MANY_ROWS else 5, settings.seed)


def _boost(
    data: HeadData, rows: Array, rounds: int, held_out: Array | None, settings: TrainingSettings
) -> tuple[Any, Array]:
    """Train `rounds` trees on some rows. Return (booster, errors). Element i of the errors is the weighted mean squared
    error on `held_out` with i + 1 trees."""
    xgboost = import_optional("xgboost", "training a model", "train")

    def matrix(chosen: Array, reference: Any = None) -> Any:
        weights = data.weights[chosen]
        return xgboost.QuantileDMatrix(
            data.matrix[chosen], data.target[chosen], weight=weights, ref=reference, nthread=settings.threads
        )

    training = matrix(rows)
    evaluation: dict[str, Any] = {}
    if held_out is not None:
        evaluation["evals"] = [(matrix(held_out, training), "held_out")]
        evaluation["early_stopping_rounds"] = settings.patience
    parameters = {
        "objective": "reg:squarederror",
        "tree_method": "hist",
        "max_depth": settings.depth,
        "eta": settings.rate,
        "subsample": settings.row_share,
        "colsample_bytree": settings.column_share,
        "min_child_weight": settings.child_weight,
        "base_score": float(np.average(data.target[rows], weights=data.weights[rows])),
        "nthread": settings.threads,
        "seed": settings.seed,
    }
    history: dict[str, Any] = {}
    booster = xgboost.train(parameters, training, rounds, verbose_eval=False, evals_result=history, **evaluation)
    loss = np.square(history["held_out"]["rmse"]) if history else np.zeros(rounds)
    # After an early stop, repeat the last loss, because more trees would hardly change it.
    return booster, np.pad(loss, (0, rounds - len(loss)), mode="edge")


def _fewest_trees(loss: Array) -> int:
    return int(np.argmax(loss <= loss.min() * (1.0 + _SAME_LOSS))) + 1
