"""Train gradient-boosted trees for one head of a model, and predict rows of groups held out from training.

Cross-validation over groups chooses the number of trees: the fewest trees whose held-out loss is close to the minimum,
because each tree slows down queries. Held-out predictions of a fold use as many trees as the other folds prefer: a
number chosen on the fold's own rows would make its residuals look too small.
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
"""Minimum number of rows for which cross-validation uses 3 folds instead of 5."""
_SAME_LOSS = 0.005  # Losses that differ by a smaller fraction count as equal.


@dataclass(frozen=True)
class TrainingSettings:
    """Settings for growing trees.

    The defaults were chosen on the recorded convolution spaces. The cost of a query limits depth and number of trees.
    """

    rounds: int = 200
    """Maximum number of trees of a head."""
    depth: int = 5
    """Maximum depth of a tree."""
    rate: float = 0.08
    """Learning rate: fraction of a tree's correction that is applied."""
    patience: int = 20
    """Number of trees without a lower held-out loss after which training stops."""
    row_share: float = 0.8
    """Fraction of rows that each tree sees."""
    column_share: float = 0.5
    """Fraction of features that each tree sees."""
    child_weight: float = 5.0
    """Minimum sum of row weights in a leaf."""
    sharpness: float = SHARPNESS
    """Exponent of the loss weights (`loss_weights`)."""
    seed: int = 0
    """Seed of all random choices."""
    threads: int = 2
    """Number of XGBoost threads."""
    shape: "TrainingSettings | None" = None
    """Settings of the trees for GPUs without measurements; None to use the trees of measured GPUs."""


@dataclass(frozen=True)
class HeadData:
    """Training data of one head: arrays over all N rows of a dataset."""

    matrix: Array
    """Features, (N, F)."""
    target: Array
    """log(measured / analytical model), (N,); NaN if not measured."""
    weights: Array
    """Weight of each row in the loss, (N,)."""

    @classmethod
    def of(cls, data: Dataset, head: str, settings: TrainingSettings) -> "HeadData":
        cost = data.latency_s if head == "latency" else data.energy_j
        weights = loss_weights(cost, data.numbers("gpu", "problem", "op"), settings.sharpness, data.trust)
        return cls(data.matrix, data.residual[head], weights)

    @classmethod
    def of_shape(cls, data: Dataset, settings: TrainingSettings) -> "HeadData":
        """Return the training data for the part of latency that GPUs share, without each problem's mean on a GPU.

        The mean is weighted like the loss, so that a problem's fast configs keep the level of the analytical model.
        """
        whole = cls.of(data, "latency", settings)
        group = data.numbers("gpu", "problem", "op", "kernel_hash")
        weight = np.where(whole.measured, whole.weights, 0.0)
        weighted = np.where(whole.measured, weight * whole.target, 0.0)
        mean = np.bincount(group, weighted) / np.maximum(np.bincount(group, weight), 1e-30)
        return replace(whole, target=whole.target - mean[group])

    @property
    def measured(self) -> Array:
        """Return whether each row has a target, (N,)."""
        return np.asarray(np.isfinite(self.target))

    def times(self, share: float) -> "HeadData":
        """Return a copy with the target scaled by `share`."""
        return replace(self, target=share * self.target)

    def slope(self, predicted: Array) -> float:
        """Return the factor, 0 to 1, that best scales predicted targets (N,) to the targets; ignore NaNs."""
        rows = np.isfinite(predicted) & self.measured
        weighted = self.weights[rows] * predicted[rows]
        fit = float(weighted @ self.target[rows]) / max(float(weighted @ predicted[rows]), 1e-30)
        return min(max(fit, 0.0), 1.0)


@dataclass(frozen=True)
class TrainedHead:
    """Trees of one head."""

    data: HeadData
    trees: Forest
    """All trees."""
    rounds: int
    """Number of trees."""
    out_of_fold: Array
    """Predictions for each row by trees trained without its group, (N,); NaN if not measured."""


def predictions_from(data: HeadData, trained_on: Array, rows: Array, rounds: int, settings: TrainingSettings) -> Array:
    """Predict `rows` by trees trained only on the rows `trained_on`; both arguments are row numbers."""
    booster, _ = _boost(data, trained_on, rounds, None, settings)
    return np.asarray(booster.inplace_predict(data.matrix[rows]))


def train_head(data: HeadData, groups: Array, settings: TrainingSettings) -> TrainedHead:
    """Train the trees of one head.

    Args:
        data: Features and targets of N rows.
        groups: Group of each row, (N,). Rows of one group are never in training and held out at the same time.
        settings: Settings for growing trees.
    """
    # Idle OpenMP threads should release their processor.
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
    """Grow trees on all measured rows; the settings determine the number of trees."""
    booster, _ = _boost(data, np.flatnonzero(data.measured), settings.rounds, None, settings)
    return Forest.of_booster(booster)


def fold_of_rows(groups: Array, settings: TrainingSettings) -> Array:
    """Return the fold of each row in cross-validation, (N,). No group is in two folds."""
    return group_folds(groups, 3 if len(groups) >= MANY_ROWS else 5, settings.seed)


def _boost(
    data: HeadData, rows: Array, rounds: int, held_out: Array | None, settings: TrainingSettings
) -> tuple[Any, Array]:
    """Return the trees trained on `rows`, and the mean squared error on the rows `held_out` after each round."""
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
    # After an early stop, the loss would hardly fall, so repeat the last value for the remaining rounds.
    return booster, np.pad(loss, (0, rounds - len(loss)), mode="edge")


def _fewest_trees(loss: Array) -> int:
    """Return the smallest number of trees with a loss close to the minimum, because each tree slows down queries."""
    return int(np.argmax(loss <= loss.min() * (1.0 + _SAME_LOSS))) + 1
