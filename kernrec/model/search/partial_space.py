"""Decide which configs of a large space to profile, and when to stop, by a forest trained on profiled configs.

    first     random configs
    then      trees learn time and energy from the profiled configs; the most promising configs come next
    until     no bound of the remaining configs is more than `MARGIN` better than the best

A config's bound is the mean of the trees minus `SPREADS` standard deviations, for the logarithms of time, energy and
their product (the ends and the middle of a front). Half of the next configs are the lowest at `EAGER`
standard deviations, to find good configs soon. The other half has the lowest bounds, to finish soon. Trees also
learn which configs fail. `SEARCHES` searches of recorded spaces tested the quality of the result.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from kernrec.util.optional import import_optional

Array = np.ndarray

MARGIN = 0.05
"""Fraction by which skipped configs may be better."""
SPREADS = 3.0
EAGER = 1.0
"""Number of standard deviations below the mean for choosing half of the next configs."""
SEARCHES, WRONG = 14, 0
"""Number of tested searches of recorded spaces, and how many of them missed a config better by the margin."""
_FIRST, _FIRST_SHARE = (100, 128), 0.01
"""Number of random configs at the start: this fraction of the space, within these bounds."""
_BATCH, _BATCH_SHARE = 32, 0.1
"""Refit after this many new configs, or after this fraction of the configs already tried."""
_LEAST = 16
"""Minimum number of configs between two fits; profiling so many takes as long as a fit."""
_TREES = 64
_FEWEST = 20
"""Minimum number of successful configs for a fit; with fewer, more random configs are drawn."""
_RUNS = 0.05
"""Minimum fraction of trees that predict that a config runs."""


class Proposal(NamedTuple):
    """Configs to profile next."""

    rows: Array
    """Indices, the most promising first; empty if the search is over."""
    promising: int
    """Number of remaining configs that may be better than the best by more than `MARGIN`. They come first."""


class PartialSearch:
    """Search of a space of C configs. It stores no results; pass all results to `propose`.

    Raises:
        KernrecError: scikit-learn is not installed.
    """

    def __init__(self, tunables: Array, seed: int = 0, spreads: float = SPREADS) -> None:
        """Prepare a space of tunables, (C, T).

        Args:
            spreads: Number of standard deviations between the mean and a bound.
        """
        self._ensemble: Any = import_optional(
            "sklearn.ensemble",
            "choosing which configs of a large space to profile (`--effort exhaustive` profiles all)",
            "train",
        )
        self._features = _features(tunables)
        self._seed, self._spreads = seed, spreads
        count = len(tunables)
        self.first = min(count, max(_FIRST[0], min(_FIRST[1], math.ceil(_FIRST_SHARE * count))))
        """Number of random configs at the start."""

    def propose(self, tried: Array, costs: Array) -> Proposal:
        """Return the configs to profile next.

        Args:
            tried: Indices of the K configs that were tried.
            costs: Time and energy, or one of them, (K, 1 or 2); NaN for a config that failed.
        """
        left = np.ones(len(self._features), dtype=bool)
        left[tried] = False
        rest = np.flatnonzero(left)
        ran = np.isfinite(costs).all(axis=1)
        if len(tried) < self.first or (ran.sum() < _FEWEST and len(rest)):
            drawn = np.random.default_rng([self._seed, len(tried)]).permutation(rest)
            return Proposal(drawn[: max(self.first - len(tried), _BATCH)], len(rest))
        if not len(rest):
            return Proposal(rest, 0)
        log = np.log(costs[ran])
        mean, deviation = self._expected(tried[ran], log, rest)
        gain = mean - (criteria(log).min(axis=0) + math.log(1.0 - MARGIN))
        worth, eager = ((gain - spreads * deviation).min(axis=1) for spreads in (self._spreads, EAGER))
        if not ran.all():
            runs = self._forest(_TREES // 2).fit(self._features[tried], ran.astype(float))
            fails = runs.predict(self._features[rest]) < _RUNS
            worth[fails] = eager[fails] = np.inf
        promising = int((worth < 0.0).sum())
        batch = max(_LEAST, min(promising, max(_BATCH, int(_BATCH_SHARE * len(tried))))) if promising else 0
        first = np.argsort(np.where(worth < 0.0, eager, np.inf), kind="stable")[: min(batch // 2, promising)]
        worth[first] = -np.inf
        return Proposal(rest[np.argsort(worth, kind="stable")[:batch]], promising)

    def _forest(self, trees: int) -> Any:
        return self._ensemble.ExtraTreesRegressor(
            trees, max_features=0.5, bootstrap=True, random_state=self._seed, n_jobs=1
        )

    def _expected(self, ran: Array, log: Array, rest: Array) -> tuple[Array, Array]:
        """Return the trees' mean and deviation of each criterion for the configs `rest`, (len(rest), criteria) each."""
        forest = self._forest(_TREES)
        forest.fit(self._features[ran], log if log.shape[1] > 1 else log[:, 0])
        features = self._features[rest]
        total = squares = np.zeros((len(rest), criteria(log[:1]).shape[1]))
        for tree in forest.estimators_:
            value = criteria(tree.predict(features, check_input=False).reshape(len(rest), -1))
            total, squares = total + value, squares + value**2
        mean = total / _TREES
        return mean, np.sqrt(np.maximum(squares / _TREES - mean**2, 0.0))


def criteria(log: Array) -> Array:
    """Return the columns to minimize, from the logarithms of time and energy, (N, 1 or 3)."""
    return log if log.shape[1] == 1 else np.column_stack((log, log.mean(axis=1)))


def _features(tunables: Array) -> Array:
    """Return the logarithms of varying tunables, with the products and ratios of each pair, (C, F)."""
    varied = tunables[:, [len(np.unique(column)) > 1 for column in tunables.T]].astype(float)
    logs = list(np.where(varied > 0, np.log2(np.maximum(varied, 2.0**-20)), -1.0).T)
    pairs = [
        combined for i, first in enumerate(logs) for second in logs[:i] for combined in (first + second, first - second)
    ]
    return np.stack([*logs, *pairs], axis=1).astype(np.float32) if logs else np.zeros((len(tunables), 1), np.float32)
