"""Predictions for the configs of a space that has some: a Gaussian process over the tunables continues those it has.

Of a large space only a part is profiled, and some configs cannot be emulated. Without a prediction they would count as
the slowest config, and a search that measures one would learn that predictions are far off, which they are not.
"""

import numpy as np

from kernrec.model.search.gaussian_process import GaussianProcess
from kernrec.model.search.search_space import SearchSpace

Array = np.ndarray

FEWEST = 20
"""Predicted configs without which nothing is said of the others."""
_FITTED = 300
"""Most predicted configs that a process learns from."""
_CHUNK = 4096
"""Configs that are predicted together: the memory that they take is this many times `_FITTED` numbers."""


def completed_predictions(tunables: Array, predicted_s: Array, seed: int = 0) -> Array:
    """Predicted latencies of all configs of one kernel, (C,).

    Args:
        tunables: the configs' values, (C, T).
        predicted_s: predicted latency, (C,), NaN for a config without prediction.
        seed: of the configs that are learned from, where many are predicted.

    Returns:
        What was predicted, as it was; elsewhere what is expected from the tunables, or NaN where fewer than `FEWEST`
        configs are predicted.
    """
    known = np.isfinite(predicted_s)
    rows, left = np.flatnonzero(known), np.flatnonzero(~known)
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
