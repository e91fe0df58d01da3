"""Learn corrections of predicted costs from the measurements of many problems (`tools/evidence refine`).

Boosted trees learn how much a config's error differs from the mean error of its problem. The trees that correct a
problem are trained without this problem's measurements, so the measurements remain independent evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

Array = np.ndarray

LEAST = 100
"""Minimum number of measurements for learning. Problems with one measurement do not count."""
_FOLDS, _MODELS, _TREES = 5, 2, 100
_SETTINGS = {
    "max_depth": 6, "eta": 0.1, "subsample": 0.7, "colsample_bytree": 0.5, "min_child_weight": 5, "max_bin": 64,
    "nthread": 1,
}  # fmt: skip
_WORTH = 0.97
"""Maximum ratio of squared errors with corrections to squared errors without, on held-out measurements. Corrections
with a larger ratio are not used."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Predictions and measurements of one problem with C contenders (configs that may be the best)."""

    inputs: Array
    """Inputs of the trees for each contender, array of shape (C, F). NaN marks unknown values."""
    expected: Array
    """Predicted log cost of each contender."""
    rows: Array
    """Indices of the measured contenders."""
    log_cost: Array
    """Measured log cost of each measured contender."""

    def errors(self) -> Array:
        """Return the errors of the predictions for the measured contenders, minus the mean error."""
        return _centered(self.log_cost - self.expected[self.rows])


def corrections(problems: Sequence[Evidence], seed: int = 0) -> tuple[list[Array], float] | None:
    """Learn corrections of the predictions of all problems. Return (corrections of each problem's log costs, fraction
    of the squared errors that remains), or None if corrections cannot be learned or do not help."""
    used = [number for number, problem in enumerate(problems) if len(problem.rows) > 1]
    if sum(len(problems[number].rows) for number in used) < LEAST or find_spec("xgboost") is None:
        return None
    import xgboost

    fold = np.random.default_rng(seed).permutation(len(problems)) % _FOLDS
    # Add a feature for the trees: by how much each config is expected to be worse than the best config.
    inputs = [np.column_stack((problem.inputs, problem.expected - problem.expected.min())) for problem in problems]
    raw = [np.zeros(len(problem.expected)) for problem in problems]
    for held_out in range(_FOLDS):
        inside = [number for number in used if fold[number] != held_out]
        wanted = np.flatnonzero(fold == held_out).tolist()
        if not inside or not wanted:
            continue
        learned = xgboost.DMatrix(
            np.concatenate([inputs[number][problems[number].rows] for number in inside]),
            np.concatenate([problems[number].errors() for number in inside]),
        )
        outside = xgboost.DMatrix(np.concatenate([inputs[number] for number in wanted]))
        trees = [xgboost.train(_SETTINGS | {"seed": seed + model}, learned, _TREES) for model in range(_MODELS)]
        predicted = np.mean([model.predict(outside) for model in trees], axis=0)
        ends = np.cumsum([len(inputs[number]) for number in wanted])
        for number, part in zip(wanted, np.split(predicted, ends[:-1]), strict=True):
            raw[number] = part
    errors = np.concatenate([problems[number].errors() for number in used])
    guesses = np.concatenate([_centered(raw[number][problems[number].rows]) for number in used])
    share = float(np.clip(errors @ guesses / max(guesses @ guesses, 1e-12), 0.0, 1.0))
    left = float(np.square(errors - share * guesses).sum() / max(errors @ errors, 1e-12))
    return ([share * part for part in raw], left) if left <= _WORTH else None


def _centered(values: Array) -> Array:
    return np.asarray(values - values.mean())
