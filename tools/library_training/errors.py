"""Measure how well trees predict held-out recordings of backends: problems, sizes and GPUs.

A held-out problem is held out on all GPUs, in all data types, layouts and backends. A held-out GPU is held out
with all GPUs of its architecture. Errors are log(measured / predicted).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.learn.conformal import Interval, calibrate
from kernrec.training.folds import group_folds
from library_training.table import FOLDS, Table
from library_training.trees import boost_any, boost_card

Array = np.ndarray

_DIFFERENT = 1.1
"""Backends whose times differ by less than this factor count as equally fast."""


def left_out_errors(table: Table, quantity: str, gpu: str, folds: int = FOLDS) -> Array:
    """Return log(measured / predicted) of a GPU's rows (N,), by trees trained without the row's problem. Rows of other
    GPUs, and rows outside the first `folds` of the five folds, are NaN."""
    rows, fold = table.on(gpu, quantity), table.fold()
    return _errors_without(table, quantity, rows, (fold[rows] == number for number in range(folds)))


def between_errors(table: Table, quantity: str, gpu: str) -> Array:
    """Return errors as `left_out_errors` does, of trees trained without the row's size in one grid dimension. They
    hold out a fifth of each dimension's sizes at once; rows with other sizes are NaN."""
    rows = table.on(gpu, quantity)
    folds = [group_folds(table.recording.dims[name], FOLDS, seed=7) for name in table.recording.recorded.grid]
    return _errors_without(table, quantity, rows, [np.any([fold[rows] == 0 for fold in folds], axis=0)] * bool(folds))


def _errors_without(table: Table, quantity: str, rows: Array, left_out: Iterable[Array]) -> Array:
    """Return the errors (N,) of the rows held out by each mask, from trees of the other `rows`; NaN elsewhere."""
    errors = np.full(len(table.recording), np.nan)
    for mask in left_out:
        trees, held_out = boost_card(table, quantity, rows[~mask]), rows[mask]
        errors[held_out] = table.target[quantity][held_out] - trees.predict(table.matrix[quantity][held_out])
    return errors


def card_left_out_errors(table: Table, quantity: str, families: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Return log(measured / predicted) of each GPU's rows, by trees of the other architectures in `families`."""
    errors = {}
    for arch, cards in families.items() if len(families) > 1 else ():
        trees = boost_any(table, quantity, {other: gpus for other, gpus in families.items() if other != arch})
        for gpu in cards:
            rows = table.carried(gpu, quantity)
            errors[gpu] = table.target[quantity][rows] - trees.predict(table.matrix[quantity][rows])
    return errors


def card_interval(errors: Mapping[str, Array]) -> Interval:
    """Return the interval for GPUs without recordings, from the errors of held-out GPUs, grouped by architecture."""
    by_arch = _by_architecture(errors)
    groups = np.repeat(np.arange(len(by_arch)), [len(part) for part in by_arch.values()])
    residual = np.concatenate([*by_arch.values(), np.zeros(0)])
    return calibrate(residual, groups, "GPU")


def _by_architecture(errors: Mapping[str, Array]) -> dict[str, Array]:
    parts: dict[str, list[Array]] = {}
    for gpu, error in errors.items():
        parts.setdefault(find_gpu(gpu).arch, []).append(error)
    return {arch: np.concatenate(part) for arch, part in parts.items()}


def coverage(errors: Array, problem: Array) -> float:
    """Return the fraction of rows inside the interval that comes from the other half of the problems.

    Args:
        errors: log(measured / predicted), (N,), NaN where nothing was predicted.
        problem: index of each row's problem, (N,).
    """
    rows = np.flatnonzero(np.isfinite(errors))
    half = group_folds(problem[rows], 2, seed=3)
    inside = np.zeros(len(rows), dtype=bool)
    for part in (0, 1):
        others = rows[half != part]
        width = calibrate(errors[others], problem[others], "problem").width
        inside[half == part] = np.abs(errors[rows[half == part]]) <= width
    return float(inside.mean())


def coverage_of_cards(errors: Mapping[str, Array]) -> dict[str, float]:
    """Return each architecture's fraction of rows inside the interval that the other architectures' errors give."""
    by_arch = _by_architecture(errors)
    shares = {}
    for arch, rows in by_arch.items():
        width = card_interval({gpu: part for gpu, part in errors.items() if find_gpu(gpu).arch != arch}).width
        shares[arch] = round(float((np.abs(rows) <= width).mean()), 3)
    return shares


def fastest_named(table: Table, errors: Array) -> tuple[int, int]:
    """Return (times that the predicted fastest backend is fastest, problems on a GPU whose two fastest backends
    differ).

    Args:
        table: table of the recording.
        errors: log(measured / predicted) of latency, (N,), NaN where nothing was predicted.
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    rows = np.flatnonzero(np.isfinite(errors))
    of_row = (table.recording.gpu[rows], table.recording.dtype[rows], table.problem[rows])
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
