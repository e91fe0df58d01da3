"""Searched space of C configs: points, genes of a genetic algorithm, and predictions.

Configs are close if their tunables and their predicted times are similar. A differing tunable adds a constant besides
the size of its difference, because a prediction from PTX often misjudges flags.

Each tunable is a gene. Offspring are crossed (each tunable from one of two parents) and mutated (a tunable gets any
value that it has in the space). Constraints hold, because only configs of the space survive.
"""

import math
from functools import cached_property

import numpy as np

from kernrec.model.search.gaussian_process import GaussianProcess, Points

Array = np.ndarray

_OFFSPRING, _MUTATIONS = 2000, 1.5
"""Number of distinct offspring of a generation, and mean number of mutated tunables."""
_MOST_CHOICES = 32
"""Number of values above which a tunable counts as a quantity, for which the size of a difference matters most."""
_GENERATIONS = 8
"""Maximum number of attempts to breed the offspring if few children are configs of the space."""
FEWEST = 20
"""Minimum number of predicted configs for extending the predictions to other configs."""
_FITTED = 300
"""Maximum number of predicted configs that a process learns from."""
_CHUNK = 4096
"""Number of configs predicted together, which takes memory for this many times `_FITTED` numbers."""


class SearchSpace:
    """Configs of a search, identified by index."""

    def __init__(self, tunables: Array, predicted_s: Array | None = None, seed: int = 0) -> None:
        """Prepare a space.

        Args:
            tunables: Values of the configs, (C, T); NaN for a tunable that a config lacks.
            predicted_s: Predicted latency, (C,), NaN for a config without prediction; None without any predictions.
            seed: Seed of the order of configs without prediction.
        """
        count = len(tunables)
        self.predicted_s = predicted_s
        self.log_s = np.zeros(count)
        """Logarithm of the predicted latency, (C,); configs without prediction get the slowest prediction."""
        predicted = np.zeros(count, dtype=bool) if predicted_s is None else np.isfinite(predicted_s)
        if predicted_s is not None and predicted.any():
            self.log_s = np.log(np.where(predicted, predicted_s, np.max(predicted_s[predicted])))
        tie = np.where(predicted, np.arange(count), np.random.default_rng(seed).random(count))
        self.by_prediction = np.lexsort((tie, self.log_s, ~predicted))
        """Indices of the configs, (C,), ordered by predicted latency."""
        columns = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in tunables.T]
        self._genes = np.stack(columns, axis=1) if columns else np.zeros((count, 0), dtype=np.int64)
        self._values = self._genes.max(axis=0) + 1 if count else np.zeros(len(columns), dtype=np.int64)
        self.points = _points(tunables, self.log_s, self._genes)
        """Points whose distance states how different two configs are, with a group for each tunable."""
        self.features = np.column_stack((np.log2(1.0 + np.maximum(np.nan_to_num(tunables), 0.0)), self.log_s))
        """Inputs of trees, (C, T + 1)."""

    def __len__(self) -> int:
        return len(self.log_s)

    @cached_property
    def covering(self) -> Array:
        """Return the config with the best prediction, then the best config for each value of each tunable."""
        covering: dict[int, None] = {}
        for column in self._genes[self.by_prediction].T:
            covering |= dict.fromkeys(np.unique(column, return_index=True)[1].tolist())
        return np.asarray(self.by_prediction[sorted(covering)])

    def offspring(self, parents: Array, left: Array, draw: np.random.Generator) -> Array:
        """Return the indices of configs bred from `parents`, ascending.

        Args:
            parents: Indices, best first. Better parents breed more often (linear ranking).
            left: Whether each config may be born, (C,).
            draw: Random generator.
        """
        ranks = np.arange(len(parents), 0.0, -1.0)
        weights = ranks / ranks.sum()
        offspring = np.empty(0, dtype=np.int64)
        for _ in range(_GENERATIONS):
            pairs = self._genes[draw.choice(parents, (2, 2 * _OFFSPRING), p=weights)]
            children = np.where(draw.random(pairs.shape[1:]) < 0.5, pairs[0], pairs[1])
            mutated = draw.random(children.shape) < _MUTATIONS / max(len(self._values), 1)
            children = np.where(mutated, (draw.random(children.shape) * self._values).astype(np.int64), children)
            order, keys = self._sorted_keys
            born = _mixed_radix(children, self._values)
            position = np.minimum(np.searchsorted(keys, born), len(order) - 1)
            rows = order[position[keys[position] == born]]  # Drop children that are not configs of the space.
            offspring = np.union1d(offspring, rows[left[rows]])
            if len(offspring) >= _OFFSPRING:
                break
        return offspring

    @cached_property
    def _sorted_keys(self) -> tuple[Array, Array]:
        keys = _mixed_radix(self._genes, self._values)
        order = np.argsort(keys)
        return order, keys[order]


def _mixed_radix(genes: Array, values: Array) -> Array:
    """Return genes (N, T) as one number each, (N,); floats, because the product of all values may exceed an integer."""
    key = np.zeros(len(genes))
    for column, count in zip(genes.T, values, strict=True):
        key = key * count + column
    return key


def _points(tunables: Array, log_s: Array, genes: Array) -> Points:
    """Return points of the configs, from the value and the identity of each tunable, and the predicted time.

    Half of the squared distance comes from the difference of log values. The other half is added if values differ.
    For a tunable with many values, which is a quantity, the second half fades.
    """
    columns = np.column_stack((np.log2(1.0 + np.maximum(tunables, 0.0)), log_s))
    columns = np.nan_to_num(columns - np.nanmean(columns, axis=0))  # A missing tunable gets the mean value.
    spread = columns.std(axis=0)
    coordinates, groups = [np.zeros((len(log_s), 0))], list[int]()
    for number, column in enumerate(np.flatnonzero(spread > 1e-6).tolist()):
        value = columns[:, column : column + 1] / spread[column] / 2.0
        same = _identity(genes[:, column]) if column < genes.shape[1] else value
        coordinates += [value, same]
        groups += [number] * (1 + same.shape[1])
    return Points(np.concatenate(coordinates, axis=1), np.array(groups, dtype=np.int64))


def _identity(genes: Array) -> Array:
    """Return coordinates of one tunable (C, V) in which any two of its V values have the same distance."""
    values = int(genes.max(initial=0)) + 1
    return np.asarray(np.eye(values)[genes] / 2.0 * min(1.0, math.sqrt(_MOST_CHOICES / values)))


def completed_predictions(tunables: Array, predicted_s: Array, seed: int = 0) -> Array:
    """Return predicted latencies of all configs of one kernel, (C,), and keep existing predictions.

    In a large space only a part is profiled, and some configs cannot be emulated. If they counted as the slowest
    config, a search that measures one would conclude that all predictions are far off. So a Gaussian process over the
    tunables extends the predictions.

    Args:
        tunables: Values of the configs, (C, T).
        predicted_s: Predicted latency, (C,), NaN for a config without prediction. The NaNs stay if fewer than `FEWEST`
            configs have predictions.
        seed: Seed for choosing the configs to learn from, if many are predicted.
    """
    predicted = np.isfinite(predicted_s)
    rows, left = np.flatnonzero(predicted), np.flatnonzero(~predicted)
    if len(rows) < FEWEST or not len(left):
        return predicted_s
    if len(rows) > _FITTED:
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:_FITTED])
    points = SearchSpace(tunables).points
    process = GaussianProcess(points[rows], np.log(predicted_s[rows]))
    completed = predicted_s.copy()
    for begin in range(0, len(left), _CHUNK):
        part = left[begin : begin + _CHUNK]
        completed[part] = np.exp(process.predict(points[part])[0])
    return completed
