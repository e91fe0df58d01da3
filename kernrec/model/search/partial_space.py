"""Decide which configs of a large space to profile statically, and when to stop.

Trees learn time and energy from profiled configs. The first configs are random. The lower bound of a config is the mean
of the trees' predictions minus `SPREADS` standard deviations, in logarithms of time, energy and their product. The
search ends if no remaining lower bound is more than `MARGIN` better than the best profiled config.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from kernrec.util.optional import import_optional

Array = np.ndarray

MARGIN = 0.05
"""Maximum fraction by which an unprofiled config may beat the best profiled config at the end of the search."""
SPREADS = 3.0
"""Standard deviations between the mean of the trees' predictions and the lower bound of a config."""
EAGER = 1.0
"""Standard deviations between the mean prediction and a second, higher lower bound. Each of the two bounds selects half
of the next configs."""
SEARCHES, WRONG = 14, 0
"""Number of test searches in recorded spaces, and number of searches that missed the best config by more than
`MARGIN`."""
_FIRST, _FIRST_SHARE = (100, 128), 0.01
"""Number of random configs at the start: minimum and maximum, and in between a fraction of the space."""
_BATCH, _BATCH_SHARE = 32, 0.1
"""Maximum number of configs between two fits, and the same limit as a fraction of the tried configs. The larger limit
applies."""
_LEAST = 16
"""Minimum number of configs between two fits. Profiling them takes as long as a fit."""
_TREES = 64
_FEWEST = 20
"""Minimum number of successful configs for a fit. Until then, configs are drawn at random."""
_RUNS = 0.05
"""Minimum predicted probability that a config runs. Other configs are not profiled."""


class Proposal(NamedTuple):
    """Configs to profile next."""

    rows: Array
    """Indices of the configs, the most promising first. The array is empty if the search is complete."""
    promising: int
    """Number of remaining configs that may beat the best profiled config by more than `MARGIN`."""


class PartialSearch:
    """Search of a space of C configs. The search stores no results: each call of `propose` receives all of them. The
    constructor raises `KernrecError` if scikit-learn is not installed."""

    def __init__(self, tunables: Array, seed: int = 0, spreads: float = SPREADS) -> None:
        """Prepare a space. `tunables` has a row for each config and a column for each tunable."""
        self._ensemble: Any = import_optional(
            "sklearn.ensemble",
            "choosing which configs of a large space to profile (`--effort exhaustive` profiles all)",
            "train",
        )
        self._features = _features(tunables)
        self._seed, self._spreads = seed, spreads
        count = len(tunables)
        self.first = min(count, max(_FIRST[0], min(_FIRST[1], math.ceil(_FIRST_SHARE * count))))

    def propose(self, tried: Array, costs: Array) -> Proposal:
        """Return the configs to profile next.

        Args:
            tried: Indices of the K configs that were tried.
            costs: Time, energy, or both of each tried config (row). NaN marks a config that failed.
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
        """Train trees on the configs `ran` and their log costs `log`. Return (means, standard deviations) of the
        predicted `criteria` of the configs `rest`, with a row for each config."""
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
    """Return the criteria to minimize: one log cost (N, 1), or two log costs and their mean (N, 3)."""
    return log if log.shape[1] == 1 else np.column_stack((log, log.mean(axis=1)))


def _features(tunables: Array) -> Array:
    """Return the inputs of the trees: log tunables, and the sums and differences of two log tunables."""
    varied = tunables[:, [len(np.unique(column)) > 1 for column in tunables.T]].astype(float)
    logs = list(np.where(varied > 0, np.log2(np.maximum(varied, 2.0**-20)), -1.0).T)
    pairs = [
        combined for i, first in enumerate(logs) for second in logs[:i] for combined in (first + second, first - second)
    ]
    return np.stack([*logs, *pairs], axis=1).astype(np.float32) if logs else np.zeros((len(tunables), 1), np.float32)
