"""Gradient-boosted trees for one head of a model, with predictions by trees that did not see a row's group.

The number of trees is chosen by cross-validation over groups: the fewest trees whose held-out loss is about the least,
because a query pays for each tree. The held-out predictions of a fold come from as many trees as the other folds find
best; a number chosen on the fold's own rows would make its residuals look too small.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernrec.model.learn.loss_weights import SHARPNESS, loss_weights
from kernrec.training.dataset import Dataset
from kernrec.training.folds import each_fold, group_folds
from kernrec.util.optional import import_optional

Array = np.ndarray

MANY_ROWS = 100_000
"""From this many rows on, cross-validation uses 3 folds instead of 5."""
_SAME_LOSS = 0.005  # losses that differ by less than this fraction count as equal


@dataclass(frozen=True)
class TrainingSettings:
    """How trees are grown.

    The defaults were chosen on the recorded convolution spaces; depth and number of trees also by what a query can
    afford.
    """

    rounds: int = 200
    """Most trees of a head."""
    depth: int = 5
    """Most levels of a tree."""
    rate: float = 0.08
    """Learning rate: the share of a tree's correction that is applied."""
    patience: int = 20
    """Trees without a lower held-out loss after which training stops."""
    row_share: float = 0.8
    """Share of the rows that each tree sees."""
    column_share: float = 0.5
    """Share of the features that each tree sees."""
    child_weight: float = 5.0
    """Least sum of row weights in a leaf."""
    sharpness: float = SHARPNESS
    """Exponent of the loss weights (`loss_weights`)."""
    seed: int = 0
    """Seed of everything that is drawn at random."""
    threads: int = 2
    """Threads that XGBoost uses."""
    shape: "TrainingSettings | None" = None
    """How the trees for GPUs without measurements are grown; None: those of measured GPUs serve for them."""


@dataclass(frozen=True)
class HeadData:
    """The training data of one head; arrays over all N rows of a dataset."""

    matrix: Array
    """(N, F)."""
    target: Array
    """log(measured / prior), (N,); NaN where it was not measured."""
    weights: Array
    """Weight of each row in the loss, (N,)."""

    @classmethod
    def of(cls, data: Dataset, head: str, settings: TrainingSettings) -> "HeadData":
        """The training data of a head of a dataset."""
        cost = data.latency_s if head == "latency" else data.energy_j
        weights = loss_weights(cost, data.numbers("gpu", "problem", "op"), settings.sharpness, data.trust)
        return cls(data.matrix, data.residual[head], weights)

    @classmethod
    def of_shape(cls, data: Dataset, settings: TrainingSettings) -> "HeadData":
        """The same for the part of latency that GPUs have in common: without the mean of the problem on the GPU.

        The mean is weighted as the loss is, so that it is the fast configs of a problem that keep the prior's level.
        """
        whole = cls.of(data, "latency", settings)
        group = data.numbers("gpu", "problem", "op", "kernel_hash")
        weight = np.where(whole.measured, whole.weights, 0.0)
        weighted = np.where(whole.measured, weight * whole.target, 0.0)
        mean = np.bincount(group, weighted) / np.maximum(np.bincount(group, weight), 1e-30)
        return replace(whole, target=whole.target - mean[group])

    @property
    def measured(self) -> Array:
        """Whether each row has a target, (N,)."""
        return np.asarray(np.isfinite(self.target))

    def times(self, share: float) -> "HeadData":
        """The same with a share of the target."""
        return replace(self, target=share * self.target)

    def slope(self, predicted: Array) -> float:
        """The share, 0 to 1, of predicted targets (N,) that fits best; NaNs do not count."""
        rows = np.isfinite(predicted) & self.measured
        weighted = self.weights[rows] * predicted[rows]
        fit = float(weighted @ self.target[rows]) / max(float(weighted @ predicted[rows]), 1e-30)
        return min(max(fit, 0.0), 1.0)


@dataclass(frozen=True)
class TrainedHead:
    """The trees of one head."""

    data: HeadData
    trees: bytes
    """All trees as XGBoost saves them (UBJSON)."""
    rounds: int
    """How many trees there are."""
    out_of_fold: Array
    """For each row, the prediction by trees that did not see its group, (N,); NaN where nothing was measured."""


def predictions_from(data: HeadData, trained_on: Array, rows: Array, rounds: int, settings: TrainingSettings) -> Array:
    """Predictions of `rows` by trees of the rows `trained_on` alone; both are row numbers."""
    booster, _ = _boost(data, trained_on, rounds, None, settings)
    return np.asarray(booster.inplace_predict(data.matrix[rows]))


def train_head(data: HeadData, groups: Array, settings: TrainingSettings) -> TrainedHead:
    """Train the trees of one head.

    Args:
        data: features and targets of N rows.
        groups: the group of each row, (N,): rows of one group are never in training and held out at the same time.
        settings: how trees are grown.
    """
    # OpenMP threads that wait should release their processor to whatever else runs.
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


def trees_of(data: HeadData, settings: TrainingSettings) -> bytes:
    """As many trees as the settings say, grown on all measured rows, as XGBoost saves them (UBJSON)."""
    booster, _ = _boost(data, np.flatnonzero(data.measured), settings.rounds, None, settings)
    return bytes(booster.save_raw("ubj"))


def fold_of_rows(groups: Array, settings: TrainingSettings) -> Array:
    """The fold of each row in cross-validation, (N,); no group is in two folds."""
    return group_folds(groups, 3 if len(groups) >= MANY_ROWS else 5, settings.seed)


def _boost(
    data: HeadData, rows: Array, rounds: int, held_out: Array | None, settings: TrainingSettings
) -> tuple[Any, Array]:
    """(trees trained on `rows`, mean squared error on the rows `held_out` after each round)."""
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
    # After an early stop the loss would hardly have fallen: the last value stands for the rounds that were not run.
    return booster, np.pad(loss, (0, rounds - len(loss)), mode="edge")


def _fewest_trees(loss: Array) -> int:
    """The fewest trees whose loss is about the least: a query pays for each tree."""
    return int(np.argmax(loss <= loss.min() * (1.0 + _SAME_LOSS))) + 1
