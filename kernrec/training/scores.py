"""Score recommendations, and hold out whole groups of rows in folds.

`measured`, `predicted`, `latency` and `energy` are positive costs of the configs of one problem. `order`
contains the indices of configs in the recommended order.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from kernrec.util.optional import import_optional

Array = np.ndarray

NEAR = 0.05
"""Maximum difference between the costs of a good config and of the best config, as a fraction of the best cost."""


def order_of(predicted: Array) -> Array:
    """Return the indices of configs, sorted by predicted cost."""
    return np.argsort(predicted, kind="stable")


def efficiency_at(measured: Array, order: Array, k: int) -> float:
    """Return the best cost of all configs divided by the best cost of the first `k` recommendations."""
    return float(measured.min() / measured[order[: max(k, 1)]].min())


def hit(measured: Array, order: Array) -> bool:
    """Return whether the top recommendation exceeds the best cost by at most 5 % (`NEAR`)."""
    return bool(measured[order[0]] <= measured.min() * (1.0 + NEAR))


def reduction(measured: Array, order: Array) -> float:
    """Return the fraction of configs after the first good config (see `NEAR`) in the recommended order."""
    first = int(np.argmax(measured[order] <= measured.min() * (1.0 + NEAR)))
    return 1.0 - (first + 1) / len(measured)


def coverage(measured: Array, low: Array, high: Array) -> float:
    """Return the fraction of measured values inside their intervals from `low` to `high`."""
    return float(np.mean((measured >= low) & (measured <= high)))


def mean_width(low: Array, high: Array) -> float:
    """Return the geometric mean of `high / low`."""
    return float(np.exp(np.mean(np.log(high / low))))


def median_error(measured: Array, predicted: Array) -> float:
    """Return the median of |predicted / measured - 1|."""
    return float(np.median(np.abs(predicted / measured - 1.0)))


def median_of_log_errors(error: Array) -> float:
    """Return `median_error`, given log(measured / predicted)."""
    return float(np.nanmedian(np.abs(np.expm1(-error))))


def rank_correlation(a: Array, b: Array) -> float:
    """Return Spearman's rank correlation, or 0 if all values of one array are equal."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    stats = import_optional("scipy.stats", "scoring predictions", "train")
    return float(stats.spearmanr(a, b).statistic)


def front_recall(latency: Array, energy: Array, recommended: Sequence[int] | Array) -> float:
    """Return the hypervolume of the recommended configs divided by that of all configs. `recommended` lists indices."""
    worst = float(latency.max()) * 1.0000001, float(energy.max()) * 1.0000001
    chosen = np.asarray(recommended, dtype=np.int64)
    whole = hypervolume(latency, energy, worst)
    return hypervolume(latency[chosen], energy[chosen], worst) / whole if whole > 0 else 1.0


def hypervolume(latency: Array, energy: Array, bound: tuple[float, float]) -> float:
    """Return the area that points (latency, energy) dominate up to the point `bound`."""
    inside = (latency < bound[0]) & (energy < bound[1])
    by_latency = np.lexsort((energy[inside], latency[inside]))
    x, y = latency[inside][by_latency], np.minimum.accumulate(energy[inside][by_latency])
    if not len(x):
        return 0.0
    return float((np.diff(np.append(x, bound[0])) * (bound[1] - y)).sum())


def savings(latency: Array, energy: Array, chosen: int, baseline: int) -> tuple[float, float]:
    """Return (energy saved, additional latency) of a config as fractions of the costs of another config, the
    `baseline`."""
    return float(1.0 - energy[chosen] / energy[baseline]), float(latency[chosen] / latency[baseline] - 1.0)


def expected_random(measured: Array, k: int) -> tuple[float, float]:
    """Return the expected values of `efficiency_at` and `reduction` for a random order."""
    ascending = np.sort(measured)
    n, k = len(ascending), max(1, min(k, len(ascending)))
    later = np.arange(n)
    # survives[i] is the probability that k of n configs, drawn at random, do not include the i fastest configs: the
    # product of (n - k - j) / (n - j) over all j below i.
    ratios = np.clip((n - k - later) / (n - later), 0.0, None)
    survives = np.concatenate([[1.0], np.cumprod(ratios)])
    efficiency = float(((survives[:-1] - survives[1:]) * (ascending[0] / ascending)).sum())
    good = int((ascending <= ascending[0] * (1.0 + NEAR)).sum())
    # In a random order, the first good config is at position (n + 1) / (good + 1) on average.
    return efficiency, 1.0 - (n + 1) / (good + 1) / n


def group_folds(groups: np.ndarray, folds: int, seed: int = 0) -> np.ndarray:
    """Assign groups to folds at random, and return the fold of each row."""
    fold_of_row = np.zeros(len(groups), dtype=np.int64)
    folds = min(folds, len(np.unique(groups)))
    if folds < 2:
        return fold_of_row
    selection = import_optional("sklearn.model_selection", "training a model", "train")
    splitter = selection.GroupKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, held_out) in enumerate(splitter.split(groups, groups=groups)):
        fold_of_row[held_out] = fold
    return fold_of_row


def each_fold(fold: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a Boolean mask of the rows in each fold. `fold` is the fold of each row."""
    for number in range(int(fold.max()) + 1):
        yield fold == number
