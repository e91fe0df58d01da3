"""Recorded matrix products of two GPUs, and models of one of them that are used for the other.

A model is the mean of four ensembles of boosted trees over the config, the problem and what follows from both (waves,
padding, traffic).
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evidence.recordings.files import parquet_columns
from kernrec.model.search.joint_posterior import DEGREES

Array = np.ndarray
MOST = 24
"""Contenders of a problem."""
TUNABLES = ("block_m", "block_n", "block_k", "num_stages", "num_warps")
GAPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Predicted distances from the best config, in logarithms, at which the error of predictions is estimated."""
_SHAPE = ("m", "n", "k", "dtype", "a_stride_0", "a_stride_1", "b_stride_0", "b_stride_1", "tf32")
_FOLDS, _ROUNDS, _MODELS = 3, 120, 4
"""Folds of the problems, trees of a model, and models that a prediction is the mean of."""
_MEDIAN = 0.7407
"""Of the absolute value of a Student's t of four degrees of freedom."""


@dataclass(frozen=True)
class Card:
    """The figures of a GPU that predictions need."""

    sms: int
    flops: float
    """Of f16 matrix products, a second."""
    bandwidth: float
    shared_bytes: float


CARDS = {
    # Data sheets; the bandwidth of the H100 is that of the recorded card (shared/data/README.md).
    "a100": Card(108, 312e12, 1555e9, 164e3),
    "h100": Card(132, 700e12, 2400e9, 227e3),
}


@dataclass(frozen=True)
class Recording:
    """The rows of one GPU."""

    columns: dict[str, Array]
    features: Array
    """(rows, features)."""
    log_s: Array
    roofline: Array
    """Log of the least time by data sheet, (rows,)."""
    problem: Array
    """Number of each row's problem."""
    shape: Array
    """Number of each row's (m, n, k), the same on all GPUs."""

    @property
    def vendor(self) -> Array:
        """Whether a row is of the vendor's library."""
        return np.asarray(self.columns["implementation"] == "extern_mm")

    def above_best(self) -> Array:
        """Log time over that of the problem's best config, (rows,)."""
        best = np.full(self.problem.max() + 1, np.inf)
        np.minimum.at(best, self.problem, self.log_s)
        return np.asarray(self.log_s - best[self.problem])


@dataclass(frozen=True)
class Predicted:
    """The predictions of a model for rows: log times, and those over the problem's best."""

    above_best: Array
    log_s: Array


@dataclass(frozen=True)
class Transferred:
    """A model of one GPU, used for the other."""

    predicted: Predicted
    """For the other's rows."""
    error: Array
    """`errors` of the model on problems of its own GPU that it has not seen."""
    lost: tuple[float, float]
    """Mean regret of its first choices there, and on the other GPU."""


def read(path: Path, card: Card, shapes: dict[tuple[int, ...], int]) -> Recording:
    """The rows of a file that ran."""
    table = parquet_columns(path, "latency_s IS NOT NULL")
    problems: dict[tuple[Any, ...], int] = {}
    keys = zip(*(table[name].tolist() for name in _SHAPE), strict=True)
    numbers = [(problems.setdefault(key, len(problems)), shapes.setdefault(key[:3], len(shapes))) for key in keys]
    problem, shape = np.array(numbers).T
    features, roofline = features_of(table, card)
    return Recording(table, features, np.log(table["latency_s"]), roofline, problem, shape)


def features_of(table: dict[str, Array], card: Card) -> tuple[Array, Array]:
    """(features (rows, F), log of the roofline's time (rows,))."""
    m, n, k = (table[name].astype(float) for name in "mnk")
    vendor = table["implementation"] == "extern_mm"
    tile_m, tile_n, tile_k, stages, warps = (
        np.where(vendor, usual, table[name]).astype(float)
        for name, usual in zip(TUNABLES, (128, 128, 32, 3, 4), strict=True)
    )
    single, tf32 = table["dtype"] == "float32", table["tf32"].astype(bool)
    size = np.where(single, 4.0, 2.0)
    peak = np.where(single & ~tf32, card.flops / 16, np.where(single, card.flops / 2, card.flops))
    compulsory = (m * k + k * n + m * n) * size
    roofline = np.maximum(2 * m * n * k / peak, compulsory / card.bandwidth)
    blocks, trips = np.ceil(m / tile_m) * np.ceil(n / tile_n), np.ceil(k / tile_k)
    staged = (tile_m + tile_n) * tile_k * size * np.maximum(stages - 1, 1)
    registers = np.minimum(tile_m * tile_n / (warps * 32) + 40, 255)
    limits = np.floor(card.shared_bytes / staged), np.floor(65536 / (registers * warps * 32)), 64 / warps
    resident = np.minimum.reduce([np.maximum(limit, 1) for limit in limits])
    waves, waves_alone = blocks / (card.sms * resident), blocks / card.sms
    compute = np.ceil(waves_alone) * 2 * tile_m * tile_n * tile_k * trips / (peak / card.sms)
    traffic = blocks * (tile_m + tile_n) * tile_k * trips * size / (3 * card.bandwidth)
    in_flight = np.minimum(blocks, card.sms) * np.minimum(resident, np.maximum(1, waves_alone)) * staged
    padded = np.ceil(m / tile_m) * tile_m * np.ceil(n / tile_n) * tile_n * trips * tile_k
    logs = [m, n, k, tile_m, tile_n, tile_k, warps, waves, waves_alone, trips, padded / (m * n * k), blocks, staged]
    logs += [resident, in_flight, 2 * m * n * k / compulsory, compute / roofline, traffic / roofline]
    logs += [np.maximum(np.maximum(compute, traffic), trips * 1e-6) / roofline]
    plain = [vendor, stages, single & ~tf32, tf32, size, np.ceil(waves) / waves, np.ceil(waves_alone) / waves_alone]
    plain += [registers, resident * warps, table["a_stride_0"] == 1, table["b_stride_0"] == 1, m % 8 == 0, n % 8 == 0]
    plain += [k % 8 == 0, k % tile_k == 0, np.minimum(m / tile_m, 1), np.minimum(n / tile_n, 1)]
    columns = [np.log2(value) for value in logs] + [np.asarray(value, dtype=float) for value in plain]
    return np.column_stack(columns), np.log(roofline)


def fitted(recording: Recording, rows: Array, inputs: Array) -> Predicted:
    """The predictions for `inputs` (N, F + 1: features and the log of the roofline) by a model of some rows."""
    import xgboost

    above = recording.above_best()[rows]
    weight = np.exp(-2.0 * above) + 0.05  # ranking the fast ones is the job
    settings = {
        "max_depth": 6, "eta": 0.15, "subsample": 0.7, "colsample_bytree": 0.5, "min_child_weight": 5,
        "max_bin": 64, "nthread": 1,
    }  # fmt: skip
    predictions, features = [], xgboost.DMatrix(inputs[:, :-1])
    for wanted in (np.minimum(above, 1.5), (recording.log_s - recording.roofline)[rows]):
        data = xgboost.DMatrix(recording.features[rows], wanted, weight=weight)
        models = [xgboost.train(settings | {"seed": seed}, data, _ROUNDS) for seed in range(_MODELS)]
        predictions.append(np.mean([model.predict(features) for model in models], axis=0))
    return Predicted(predictions[0], predictions[1] + inputs[:, -1])


def transferred(source: Recording, target: Recording, leave_out: bool) -> Transferred:
    """The model of one GPU, applied to another's rows."""
    allowed = ~np.isin(source.shape, target.shape) if leave_out else np.ones(len(source.log_s), dtype=bool)
    inputs = np.column_stack((target.features, target.roofline))
    predicted = fitted(source, np.flatnonzero(allowed), inputs)
    own = np.column_stack((source.features, source.roofline))
    held_out = np.full((2, len(source.log_s)), np.nan)
    for fold in range(_FOLDS):
        inside = np.flatnonzero(allowed & (source.shape % _FOLDS == fold))
        outside = np.flatnonzero(allowed & (source.shape % _FOLDS != fold))
        part = fitted(source, outside, own[inside])
        held_out[:, inside] = part.above_best, part.log_s
    rows, everywhere = np.flatnonzero(allowed), np.arange(len(target.log_s))
    lost = first_regret(source, held_out[0], rows), first_regret(target, predicted.above_best, everywhere)
    return Transferred(predicted, errors(source, Predicted(*held_out), rows), lost)


def first_regret(recording: Recording, above_best: Array, rows: Array) -> float:
    """The mean regret of the configs that are predicted to be the best of their problems."""
    regrets = []
    for members in grouped(recording.problem[rows]):
        chosen = rows[members]
        regrets.append(recording.log_s[chosen[above_best[chosen].argmin()]] - recording.log_s[chosen].min())
    return float(np.mean(regrets))


def errors(recording: Recording, predicted: Predicted, rows: Array) -> Array:
    """The stated errors of predictions relative to the problem's: by `GAPS`, and last of whole kernels.

    There are two kernels, Triton's and the vendor's. Errors have long tails. Stated is the standard deviation
    of the Student's t with their median.
    """
    gaps, residuals, of_vendor = [], [], []
    for members in grouped(recording.problem[rows]):
        chosen = rows[members][np.argsort(predicted.above_best[rows[members]])[:MOST]]
        above = predicted.above_best[chosen]
        weight = np.exp(-5.0 * (above - above.min()))
        residual = recording.log_s[chosen] - above
        vendor = recording.vendor[chosen]
        residual -= np.average(residual[~vendor], weights=weight[~vendor])
        gaps.append((above - above.min())[~vendor])
        residuals.append(residual[~vendor])
        of_vendor += residual[vendor].tolist()
    gap, residual = np.concatenate(gaps), np.concatenate(residuals)
    parts = [residual[(gap >= low) & (gap < high)] for low, high in pairwise((*GAPS, np.inf))]
    # The difference of two kernels is wider than the error of each.
    parts.append(np.array(of_vendor) / np.sqrt(2.0))
    medians = np.array([np.median(np.abs(part)) for part in parts])
    return np.asarray(medians / _MEDIAN * np.sqrt(DEGREES / (DEGREES - 2.0)))


def grouped(numbers: Array, least: int = 10) -> list[Array]:
    """The positions of each number that occurs at least so often."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return [part for part in np.split(order, starts[1:]) if len(part) >= least]
