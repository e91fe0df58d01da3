"""Non-negative least squares for the multipliers of a sum of parts, in logarithmic error.

Measured values y are modeled as the sum of P parts, each times a multiplier. Iteratively reweighted least squares
minimize the weighted sum of log(predicted / measured)**2: with r = predicted / measured, the weight
log(r) / (r (r - 1)) gives (r - 1)**2 the gradient of log(r)**2. Plain relative errors would count hardly anything but
the rows that are predicted too slow.
"""

import numpy as np

from kernrec.util.optional import import_optional

Array = np.ndarray

_PRIOR_WEIGHT = 0.001
"""Weight of the belief that a multiplier is 1, in problems; it decides what the rows cannot tell apart."""
_LEAST_SHARE = 0.05
"""A part whose 90th percentile is a smaller share of the whole keeps its multiplier: rows cannot tell it from the
rest."""
_ITERATIONS = 12


def fit_multipliers(shares: Array, weights: Array, largest: float) -> Array:
    """The non-negative multipliers of least squared log error, (P,).

    It is 1 for parts that are too small to be told apart, and for those whose multiplier would not be plausible.

    Args:
        shares: each part over the measured value, (N, P); the predicted over the measured value is their weighted sum.
        weights: of the rows, (N,).
        largest: multipliers beyond this, or below its reciprocal, are not plausible.
    """
    scale = np.exp(-np.median(np.log(np.maximum(shares.sum(axis=1), 1e-12))))
    free = np.quantile(shares * scale, 0.9, axis=0) > _LEAST_SHARE
    while True:
        multipliers = _solve(shares, weights, free)
        implausible = free & ((multipliers > largest) | (multipliers < 1.0 / largest))
        if not implausible.any():
            return multipliers
        free &= ~implausible


def _solve(shares: Array, weights: Array, free: Array) -> Array:
    """The multipliers of the columns that are `free`, (P,); the others are 1."""
    multipliers = np.ones(shares.shape[1])
    if not free.any():
        return multipliers
    regression = import_optional("sklearn.linear_model", "calibrating the prior", "train").LinearRegression(
        positive=True, fit_intercept=False
    )
    fixed = shares[:, ~free].sum(axis=1)
    # The last rows are the belief that each multiplier is 1.
    design = np.concatenate([shares[:, free], np.eye(int(free.sum()))])
    target = np.concatenate([1.0 - fixed, np.ones(int(free.sum()))])
    multipliers[free] = np.exp(-np.median(np.log(np.maximum(shares.sum(axis=1), 1e-12))))
    for _ in range(_ITERATIONS):
        ratio = np.clip(shares @ multipliers, 1e-3, 1e3)
        excess = ratio - 1.0
        small = np.abs(excess) < 1e-6
        slope = np.where(small, 1.0, np.log(ratio) / np.where(small, 1.0, ratio * excess))
        # Relative to the current multiplier, so that the belief weighs the same however wrong the coefficient is.
        belief = _PRIOR_WEIGHT / np.maximum(multipliers[free], 1e-3) ** 2
        regression.fit(design, target, sample_weight=np.concatenate([weights * slope, belief]))
        multipliers[free] = regression.coef_
    return multipliers
