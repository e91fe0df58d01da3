"""Train a model that corrects the latency and power of the analytical model: it predicts log(measured / analytical).

    heads           One set of trees each for latency and power (`kernrec.training.boosting`).
    intervals       90 % intervals are calibrated on errors of held-out groups.
    new GPUs        Each GPU and each kernel is held out together with some problems, to measure how the model transfers
    and kernels     to an unmeasured GPU or kernel.
    shape           On request, separate trees for unmeasured GPUs learn differences between the errors of a problem's
                    configs. A GPU's mean error does not transfer to other GPUs, but the differences do in part.
                    Held-out GPUs determine the fraction that transfers.

Random choices are seeded and the number of threads is fixed, so equal rows lead to equal model files.
"""

from collections.abc import Mapping

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.learn.conformal import NEW_GPU, NEW_KERNEL, Extent, Interval, calibrate, on_dtype, on_rows
from kernrec.model.learn.features import parts
from kernrec.model.learn.model import (
    ANALYTICAL,
    HEADS,
    SHAPE,
    Model,
    bounded,
    difference_score,
    top1_score,
    transfer_score,
)
from kernrec.training import scores
from kernrec.training.boosting import HeadData, TrainingSettings, fold_of_rows, predictions_from, train_head, trees_of
from kernrec.training.dataset import Dataset
from kernrec.training.scores import each_fold, group_folds

Array = np.ndarray

_FEWEST_ROWS = 8
"""Minimum number of measured rows for training a head."""
_TRANSFER_ROWS = 30_000
"""Maximum number of rows when GPUs or kernels are held out, to limit training time."""
_TRANSFER_FOLDS = 5
"""Maximum number of folds of held-out GPUs or kernels."""
_UNKNOWN_SHARE = 0.5
"""Prior mean, weighted like one GPU, of the fraction of predicted differences that transfers to another GPU."""


def train(data: Dataset, settings: TrainingSettings | None = None) -> Model:
    """Train a model, calibrate its intervals, and score it on held-out rows. Raise `UsageError` if there are too few
    rows."""
    settings = settings or TrainingSettings()
    if (measured := int(np.isfinite(data.residual["latency"]).sum())) < _FEWEST_ROWS:
        raise UsageError(
            f"{measured} measured config{'s' * (measured != 1)} to learn from; a model needs at least {_FEWEST_ROWS}"
        )
    kind, groups = data.held_out
    problems = groups if kind == "problem" else None
    heads = {
        head: train_head(rows, groups, settings)
        for head in HEADS
        if (rows := HeadData.of(data, head, settings)).measured.sum() >= _FEWEST_ROWS
    }
    out_of_fold = {head: trained.out_of_fold for head, trained in heads.items()}
    errors = _errors_by_quantity(data, out_of_fold)
    all_scores = _held_out_scores(data, out_of_fold["latency"], errors, kind, groups)
    intervals: dict[str, dict[str, Interval]] = {quantity: {} for quantity in errors}
    if problems is not None:
        distance = held_out_distance(data, fold_of_rows(groups, settings))
        for quantity, error in errors.items():
            intervals[quantity] = _problem_intervals(data, error, groups, distance)
    helps_new_kernels, carried = False, _UNKNOWN_SHARE
    shape = HeadData.of_shape(data, settings.shape) if settings.shape else None
    for name, key, fields in (("GPU", NEW_GPU, ("gpu",)), ("kernel", NEW_KERNEL, ("kernel", "kernel_hash"))):
        unit = data.numbers(*fields)
        if unit.max() < 1:  # With a single GPU or kernel, nothing can be held out.
            continue
        if name == "GPU" and shape and settings.shape:
            latency, far, carried = _shape_predictions(data, shape, unit, problems, settings.shape)
            all_scores["share carried to new GPUs"] = carried
            all_scores |= _difference_scores(data, latency) | _top1_scores(data, latency)
            predictions = {"latency": latency}
        else:
            trained = {head: (grown.data, grown.rounds) for head, grown in heads.items()}
            predictions, far = _transfer_predictions(data, trained, unit, problems, settings)
        transfer_errors = _errors_by_quantity(data, predictions)
        for quantity, error in transfer_errors.items():
            rows = np.isfinite(error)
            intervals[quantity][key] = calibrate(error[rows], unit[rows], name, far[rows])
        all_scores |= _transfer_scores(name, unit, transfer_errors["latency"], data.residual["latency"])
        if name == "kernel":
            helps_new_kernels = _beats_analytical(unit, transfer_errors["latency"], data.residual["latency"])
    trees = {head: trained.trees for head, trained in heads.items()}
    if shape and settings.shape:
        trees[SHAPE] = trees_of(shape.times(carried), settings.shape)
    return Model(
        columns=data.columns,
        extent=Extent.of(data.matrix, parts(data.columns)),
        intervals=intervals,
        scores=all_scores,
        gpus=tuple(sorted({group.gpu for group in data.groups})),
        kernels={group.kernel: group.kernel_hash for group in data.groups},
        ops=tuple(sorted({group.op for group in data.groups})),
        helps_new_kernels=helps_new_kernels,
        forests=trees,
    )


def _errors_by_quantity(data: Dataset, predicted: Mapping[str, Array]) -> dict[str, Array]:
    errors = {"latency": data.residual["latency"] - predicted["latency"]}
    if "power" in predicted:
        errors["energy"] = errors["latency"] + data.residual["power"] - predicted["power"]
    return errors


def held_out_distance(data: Dataset, fold: Array) -> Array:
    """Return each row's distance in feature space from the rows of other folds."""
    distance = np.zeros(len(data))
    for held_out in each_fold(fold) if fold.max() > 0 else ():
        extent = Extent.of(data.matrix[~held_out], parts(data.columns))
        distance[held_out] = extent.distance(data.matrix[held_out])
    return distance


def _transfer_predictions(
    data: Dataset,
    heads: Mapping[str, tuple[HeadData, int]],
    unit: Array,
    problems: Array | None,
    settings: TrainingSettings,
) -> tuple[dict[str, Array], Array]:
    """Predict rows with models trained without the rows' GPU (or kernel) and problem.

    Return (log ratios keyed by head, distances from the training data), as arrays of shape (N,). The log ratio of a row
    without a prediction is NaN.

    Args:
        heads: Training data and number of trees of each head.
        unit: Number of each row's GPU (or kernel).
        problems: Number of each row's problem, or None to hold out no problems.
    """
    draw = np.random.default_rng(settings.seed)
    # If there are many rows, predict only a sample.
    sampled = np.ones(len(data), dtype=bool)
    if len(data) > _TRANSFER_ROWS:
        sampled[draw.permutation(len(data))[_TRANSFER_ROWS:]] = False
    fold = group_folds(unit, _TRANSFER_FOLDS, settings.seed)
    half = np.zeros(len(data), dtype=np.int64) if problems is None else group_folds(problems, 2, settings.seed)
    predicted = {head: np.full(len(data), np.nan) for head in heads}
    distance = np.zeros(len(data))
    for unit_out in each_fold(fold):
        for part in np.unique(half):
            held_out = sampled & unit_out & (half == part)
            training = sampled & ~unit_out & ((half != part) if problems is not None else True)
            if not held_out.any() or training.sum() < _FEWEST_ROWS:
                continue
            extent = Extent.of(data.matrix[training], parts(data.columns))
            distance[held_out] = extent.distance(data.matrix[held_out])
            for head, (head_data, rounds) in heads.items():
                trained_on = np.flatnonzero(training & head_data.measured)
                rows = np.flatnonzero(held_out & head_data.measured)
                if len(trained_on) >= _FEWEST_ROWS and len(rows):
                    predicted[head][rows] = predictions_from(head_data, trained_on, rows, rounds, settings)
    return predicted, distance


def _shape_predictions(
    data: Dataset, shape: HeadData, unit: Array, problems: Array | None, settings: TrainingSettings
) -> tuple[Array, Array, float]:
    """Predict rows of held-out GPUs. Return (log ratios, distances from the training data, fraction of the predicted
    differences between configs that transfers to a held-out GPU)."""
    predictions, distance = _transfer_predictions(data, {"latency": (shape, settings.rounds)}, unit, problems, settings)
    latency = predictions["latency"] * np.exp(-distance)  # Corrections shrink with the distance from training data.
    units = np.unique(unit[np.isfinite(latency)])
    slopes = [shape.slope(np.where(unit == number, latency, np.nan)) for number in units]
    carried = float(np.mean([*slopes, _UNKNOWN_SHARE]))
    sampled = np.isfinite(latency)  # If there are many rows, only a sample has predictions.
    latency[sampled] = bounded(carried * latency[sampled], data.least[sampled])
    return latency, distance, carried


def _problem_intervals(data: Dataset, error: Array, groups: Array, distance: Array) -> dict[str, Interval]:
    """Return 90 % intervals for new problems. The keys are `*` (all GPUs), GPUs, GPUs with a data type, and GPUs with a
    data type and a row alignment."""
    measured = np.isfinite(error)
    lengths = [len(group) for group in data.groups]
    intervals = {"*": calibrate(error[measured], groups[measured], "problem", distance[measured])}
    nested = [
        ("*", group.gpu, on_dtype(group.gpu, group.dtype), on_rows(group.gpu, group.dtype, group.row_kind))
        for group in data.groups
    ]
    for depth in (1, 2, 3):
        row_keys = np.repeat([keys[depth] for keys in nested], lengths)
        for *above, key in sorted({keys[: depth + 1] for keys in nested}):
            if key in above:  # Problems without a row alignment have the data type's key again.
                continue
            rows = measured & (row_keys == key)
            interval = calibrate(error[rows], groups[rows], "problem", distance[rows])
            wider = next(intervals[each] for each in reversed(above) if each in intervals)
            low, high = wider.around(np.ones(rows.sum()), distance[rows])
            covered = ((low <= np.exp(error[rows])) & (np.exp(error[rows]) <= high)).mean() if rows.any() else 1.0
            # Store intervals with enough problems. Also store intervals of a data type or row alignment for which the
            # interval `wider` covers too few of the measured errors.
            if not interval.pooled or (depth > 1 and covered < interval.level):
                intervals[key] = interval
    return intervals


def _held_out_scores(
    data: Dataset, out_of_fold: Array, errors: Mapping[str, Array], kind: str, groups: Array
) -> dict[str, float | str]:
    predicted = data.analytical["latency"] * np.exp(out_of_fold)
    problems = data.numbers("gpu", "problem", "op")
    ranks, top1 = [], []
    for number in np.unique(problems):
        rows = np.flatnonzero(problems == number)
        ranks.append(scores.rank_correlation(predicted[rows], data.latency_s[rows]))
        top1.append(scores.efficiency_at(data.latency_s[rows], scores.order_of(predicted[rows]), 1))
    held_out_scores: dict[str, float | str] = {
        "held out by": kind,
        "held-out groups": float(len(np.unique(groups))),
        "median latency error": scores.median_error(data.latency_s, predicted),
        f"median latency error{ANALYTICAL}": scores.median_error(data.latency_s, data.analytical["latency"]),
        "rank correlation": float(np.mean(ranks)),
        "efficiency@1": float(np.mean(top1)),
    }
    if "energy" in errors:
        held_out_scores["median energy error"] = scores.median_of_log_errors(errors["energy"])
    return held_out_scores


def _transfer_scores(name: str, unit: Array, error: Array, analytical: Array) -> dict[str, float | str]:
    rows = np.isfinite(error)
    if not rows.any():
        return {}
    return {
        f"held-out {name}s": float(len(np.unique(unit[rows]))),
        transfer_score(name): scores.median_of_log_errors(error),
        transfer_score(name, ANALYTICAL): scores.median_of_log_errors(analytical[rows]),
    }


def _difference_scores(data: Dataset, predicted: Array) -> dict[str, float | str]:
    """Return median errors on held-out GPUs, after subtracting the mean error of each problem."""
    problems, residual = data.numbers("gpu", "problem", "op", "kernel_hash"), data.residual["latency"]
    rows = np.isfinite(predicted) & np.isfinite(residual)
    _, problem = np.unique(problems[rows], return_inverse=True)
    medians = []
    for error in (residual[rows] - predicted[rows], residual[rows]):
        mean = np.bincount(problem, error) / np.bincount(problem)
        medians.append(scores.median_of_log_errors(error - mean[problem]))
    return {difference_score("GPU"): medians[0], difference_score("GPU", ANALYTICAL): medians[1]}


def _top1_scores(data: Dataset, predicted: Array) -> dict[str, float | str]:
    """Return how fast top recommendations are on held-out GPUs: the best time divided by the recommended time."""
    problems, gpu, analytical = data.numbers("gpu", "problem", "op"), data.numbers("gpu"), data.analytical["latency"]
    chosen: dict[int, list[tuple[float, float]]] = {}
    sampled = np.flatnonzero(np.isfinite(predicted))
    ascending = sampled[np.argsort(problems[sampled], kind="stable")]
    for rows in np.split(ascending, np.flatnonzero(np.diff(problems[ascending])) + 1):
        expected = analytical[rows] * np.exp(predicted[rows])
        best, times = data.latency_s[rows].min(), data.latency_s[rows]
        efficiency = best / times[expected.argmin()], best / times[analytical[rows].argmin()]
        chosen.setdefault(int(gpu[rows[0]]), []).append(efficiency)
    model, of_analytical = np.mean([np.mean(pairs, axis=0) for pairs in chosen.values()], axis=0)
    return {top1_score(""): float(model), top1_score(ANALYTICAL): float(of_analytical)}


def _beats_analytical(unit: Array, error: Array, analytical: Array) -> bool:
    """Return whether the trained model is more accurate than the analytical model on each of at least two held-out GPUs
    or kernels."""
    measured = [rows for number in np.unique(unit) if (rows := np.isfinite(error) & (unit == number)).any()]
    better = [np.median(np.abs(error[rows])) < np.median(np.abs(analytical[rows])) for rows in measured]
    return len(better) > 1 and all(better)
